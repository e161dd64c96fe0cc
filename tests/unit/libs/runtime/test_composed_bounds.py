"""What calls of compositions hold and take: memory that is let go, and work that is counted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from libs.common.errors import Exhausted, Invalid
from libs.runtime.plan import (
    Action,
    Block,
    Composition,
    DataType,
    Host,
    Loop,
    NamedRegister,
    Plan,
    Register,
    Run,
    SequenceType,
    SizeSource,
    TensorType,
)
from libs.runtime.program import Program
from libs.runtime.testing import DIGEST, PlanBuilder

F32, I64, BOOL = DataType.FLOAT32, DataType.INT64, DataType.BOOL
VECTOR = Register(TensorType(F32, (None,)))
NUMBER, FLAG = Register(TensorType(I64, ())), Register(TensorType(BOOL, ()))
LIST = Register(SequenceType(TensorType(F32, (None,))))


def doubling() -> Plan:
    plan = PlanBuilder()
    n = plan.dimension("n", 0, 1 << 31)
    x = plan.input("x", [n])
    plan.output("y", plan.compute("add", [x, x], [n]))
    return replace(plan.build(), model_digest="", producer="")


def double(given: int, made: int) -> Action:
    return Action(Run(0, (given,), (made,), (SizeSource(given, axis=0),)), "twice (Add)")


def composed(
    registers: list[Register],
    inputs: dict[str, int],
    outputs: dict[str, int],
    *blocks: Block,
    part: Plan | None = None,
) -> Plan:
    named = [tuple(NamedRegister(*pair) for pair in ports.items()) for ports in (inputs, outputs)]
    parts = (part or doubling(),)
    composition = Composition(parts, tuple(registers), named[0], named[1], blocks)
    return Plan(DIGEST, "a test", composition=composition)


def chain(length: int) -> Plan:
    """x, doubled so many times, each time by an action of its own."""
    actions = tuple(double(number, number + 1) for number in range(length))
    return composed([VECTOR] * (length + 1), {"x": 0}, {"y": length}, Block((), actions, ()))


X = np.ones(1000, np.float32)  # 4,000 bytes; the part's memory is three times as much


def test_registers_go_when_they_are_done_with() -> None:
    program = Program(chain(50), max_buffer_bytes=24_000)
    assert program.run({"x": X})["y"][0] == 2.0**50
    assert program.held_bytes < 16_000, "the binding alone"


def test_what_registers_hold_counts() -> None:
    with pytest.raises(Exhausted, match="are in use") as caught:
        Program(chain(50), max_buffer_bytes=15_000).run({"x": X})
    assert caught.value.reason == "TOO_MUCH_MEMORY"


def looping(*actions: Action, carried: Register, rounds: int = 1) -> Plan:
    """One thing carried through rounds: registers 4 (in) and 5 (out) of a body with x at 0."""
    registers = [VECTOR, NUMBER, NUMBER, FLAG, carried, carried, carried, carried, VECTOR]
    loop = Loop(1, None, 1, (6,), (7,))
    first = Action(Host("sequence_empty", (), (6,))) if carried is LIST else double(0, 6)
    return composed(
        registers,
        {"x": 0, "n": 1},
        {"y": 7},
        Block((), (first, Action(loop, "again (Loop)")), ()),
        Block((2, 3, 4), actions, (3, 5)),
    )


def test_rounds_dont_add_up() -> None:
    program = Program(looping(double(4, 8), double(8, 5), carried=VECTOR), max_buffer_bytes=40_000)
    found = program.run({"x": X * 0, "n": np.array(300)})
    assert found["y"].tolist() == [0.0] * 1000
    assert program.held_bytes < 16_000


def test_a_list_that_grows_counts_once_for_each_item() -> None:
    insert = Action(Host("sequence_insert", (4, 8), (5,)))
    plan = looping(double(0, 8), insert, carried=LIST)
    program = Program(plan, max_buffer_bytes=200_000)
    assert len(program.run({"x": X, "n": np.array(35)})["y"]) == 35
    with pytest.raises(Exhausted):
        program.run({"x": X, "n": np.array(50)})
    assert len(program.run({"x": X, "n": np.array(35)})["y"]) == 35, "what failed has given all back"


def test_all_calls_share_the_memory() -> None:
    program = Program(looping(double(4, 8), double(8, 5), carried=VECTOR), max_buffer_bytes=400_000)

    def call(seed: int) -> Any:
        return program.run({"x": X * seed, "n": np.array(20)})["y"][0]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(call, range(1, 17)))
    assert found == [seed * 2.0**41 for seed in range(1, 17)]
    assert program.held_bytes < 8 * 13_000


def test_a_call_of_many_rounds_is_counted_as_it_runs() -> None:
    plan = looping(double(4, 8), double(8, 5), carried=VECTOR)
    one = {"x": X * 0, "n": np.array(10)}
    Program(plan, max_work=1_000_000).run(one)
    with pytest.raises(Exhausted, match="more than 1000000 calculations") as caught:
        Program(plan, max_work=1_000_000).run({**one, "n": np.array(10_000)})
    assert caught.value.reason == "TOO_MUCH_WORK"


def test_sizes_that_are_new_each_round_cost_what_binding_them_costs() -> None:
    """Laying a part out takes much longer than running it at a size that was there before."""
    part = PlanBuilder()
    part.output("y", part.raster([], [part.dimension("n", 0, 1 << 20)], fill=0.0))
    zeros = replace(part.build(), model_digest="", producer="")
    run = Action(Run(0, (), (4,), (SizeSource(2, element=0),)), "some (ConstantOfShape)")
    plan = composed(
        [Register(TensorType(F32, (None, None))), NUMBER, NUMBER, FLAG, VECTOR],
        {"n": 1},
        {"y": 0},
        Block((), (Action(Loop(1, None, 1, (), (0,))),), ()),
        Block((2, 3), (run,), (3, 4)),
        part=zeros,
    )
    with pytest.raises(Exhausted, match="calculations"):
        Program(plan, max_work=2_000_000).run({"n": np.array(100)})
    with pytest.raises(Invalid, match="what rounds collect has several shapes"):
        Program(plan).run({"n": np.array(100)})


def test_numbers_of_rounds_that_are_collected_count() -> None:
    registers = [NUMBER, NUMBER, FLAG, Register(TensorType(I64, (None,)))]
    plan = composed(
        registers,
        {"n": 0},
        {"y": 3},
        Block((), (Action(Loop(0, None, 1, (), (3,))),), ()),
        Block((1, 2), (), (2, 1)),
    )
    assert Program(plan).run({"n": np.array(5)})["y"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(Exhausted):
        Program(plan, max_buffer_bytes=100_000).run({"n": np.array(1 << 40)})

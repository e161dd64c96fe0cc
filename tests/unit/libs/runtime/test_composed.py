"""Compositions as they run: parts with sizes that data decide, branches, loops, what a call may cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from libs.common.errors import Exhausted, Invalid
from libs.runtime.codec import decode, encode
from libs.runtime.plan import (
    Action,
    Block,
    Branch,
    Composition,
    DataType,
    Dimension,
    Equality,
    Host,
    Loop,
    NamedRegister,
    OptionalType,
    Plan,
    Register,
    Run,
    SequenceType,
    SizeSource,
    TensorType,
)
from libs.runtime.program import Program
from libs.runtime.testing import DIGEST, PlanBuilder

F32, I64, BOOL, STRING = DataType.FLOAT32, DataType.INT64, DataType.BOOL, DataType.STRING


def part(plan: PlanBuilder) -> Plan:
    return replace(plan.build(), model_digest="", producer="")


def doubling() -> Plan:
    """x [n] → x + x."""
    plan = PlanBuilder()
    n = plan.dimension("n", 0, 1 << 31)
    x = plan.input("x", [n])
    plan.output("y", plan.compute("add", [x, x], [n]))
    return part(plan)


def composed(
    registers: list[Register],
    inputs: dict[str, int],
    outputs: dict[str, int],
    *blocks: Block,
    parts: tuple[Plan, ...] = (),
    dimensions: tuple[Dimension, ...] = (),
) -> Plan:
    return Plan(
        model_digest=DIGEST,
        producer="a test",
        dimensions=dimensions,
        composition=Composition(
            parts,
            tuple(registers),
            tuple(NamedRegister(name, number) for name, number in inputs.items()),
            tuple(NamedRegister(name, number) for name, number in outputs.items()),
            blocks,
        ),
    )


def vector(type_: DataType = F32) -> Register:
    return Register(TensorType(type_, (None,)))


def scalar(type_: DataType, value: Any = None) -> Register:
    dtype = {I64: np.int64, BOOL: np.bool_}[type_]
    return Register(TensorType(type_, ()), None if value is None else np.array(value, dtype).tobytes())


def double_it(inputs: int = 0, outputs: int = 1) -> Action:
    return Action(Run(0, (inputs,), (outputs,), (SizeSource(inputs, axis=0),)), "twice (Add)")


def test_a_part_runs_at_the_sizes_that_come() -> None:
    plan = composed(
        [vector(), vector()], {"x": 0}, {"y": 1}, Block((), (double_it(),), (1,)), parts=(doubling(),)
    )
    program = Program(decode(encode(plan)))
    for size in (3, 0, 5):
        found = program.run({"x": np.arange(size, dtype=np.float32)})["y"]
        assert found.tolist() == [2.0 * number for number in range(size)]
    assert str(program.inputs[0]) == "x: float32[?]"
    assert program.held_bytes > 0


def test_a_size_that_isnt_the_inputs_is_told_by_node_and_shapes() -> None:
    run = Action(Run(0, (0,), (1,), (SizeSource(2, element=0),)), "twice (Add)")
    plan = composed(
        [vector(), vector(), vector(I64)],
        {"x": 0, "n": 2},
        {"y": 1},
        Block((), (run,), (1,)),
        parts=(doubling(),),
    )
    program = Program(plan)
    assert program.run({"x": np.ones(2, np.float32), "n": np.array([2])})["y"].tolist() == [2, 2]
    with pytest.raises(Invalid, match=r"twice \(Add\): an array has the shape \[2\]; sizes .* make it \[3\]"):
        program.run({"x": np.ones(2, np.float32), "n": np.array([3])})
    with pytest.raises(Invalid, match="size n is -1, which is not in 0 to"):
        program.run({"x": np.ones(2, np.float32), "n": np.array([-1])})
    with pytest.raises(Invalid, match="has 0 of them, fewer than the model needs"):
        program.run({"x": np.ones(2, np.float32), "n": np.zeros(0, np.int64)})


def test_sizes_that_must_be_equal() -> None:
    plan = PlanBuilder()
    n, m = plan.dimension("n"), plan.dimension("m")
    plan.input("x", [n])
    z = plan.input("z", [m])
    plan.output("y", plan.compute("neg", [z], [m]))
    equal = replace(plan.build(), equalities=(Equality(plan.size(n), plan.size(m), "both (Add)"),))
    program = Program(decode(encode(equal)))
    x = np.ones(2, np.float32)
    assert program.run({"x": x, "z": x})["y"].tolist() == [-1, -1]
    with pytest.raises(Invalid, match=r"both \(Add\): sizes n = 2 and m = 1 must be equal"):
        program.run({"x": x, "z": x[:1]})


@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_runs_one_of_its_blocks(flag: bool) -> None:
    blocks = (
        Block((), (Action(Branch(1, 1, 2, (3,)), "choice (If)"),), (3,)),
        Block((), (double_it(0, 2),), (2,)),
        Block((), (), (0,)),
    )
    plan = composed(
        [vector(), scalar(BOOL), vector(), vector()], {"x": 0, "c": 1}, {"y": 3}, *blocks, parts=(doubling(),)
    )
    found = Program(decode(encode(plan))).run({"x": np.ones(2, np.float32), "c": np.array(flag)})
    assert found["y"].tolist() == ([2, 2] if flag else [1, 1])


def looping(trip_count: int | None, **more: Any) -> Plan:
    """Double x round after round; collect what there is after each."""
    registers = [vector(), scalar(I64), scalar(I64), scalar(BOOL), vector(), vector(), vector()]
    registers.append(Register(TensorType(F32, (None, 2))))
    loop = Loop(trip_count, None, 1, (0,), (6, 7))
    body = Block((2, 3, 4), (double_it(4, 5),), (3, 5, 5))
    return composed(
        registers,
        {"x": 0, "n": 1},
        {"y": 6, "all": 7},
        Block((), (Action(loop, "again (Loop)"),), (6, 7)),
        body,
        parts=(doubling(),),
        **more,
    )


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_loop_carries_and_collects(rounds: int) -> None:
    found = Program(decode(encode(looping(1)))).run({"x": np.ones(2, np.float32), "n": np.array(rounds)})
    assert found["y"].tolist() == [2.0**rounds] * 2
    assert found["all"].shape == (rounds, 2)
    assert found["all"].tolist() == [[2.0 ** (number + 1)] * 2 for number in range(rounds)]


def test_a_loop_that_never_ends_costs_what_a_call_may() -> None:
    program = Program(looping(None), max_work=1_000_000)
    with pytest.raises(Exhausted, match="more than 1000000 calculations"):
        program.run({"x": np.ones(2, np.float32), "n": np.array(0)})


def test_what_a_loop_collects_counts() -> None:
    program = Program(looping(1), max_buffer_bytes=4096)
    with pytest.raises(Exhausted, match="of 4 KiB are in use"):
        program.run({"x": np.ones(2, np.float32), "n": np.array(1_000_000)})


def test_a_fault_in_a_round_names_it() -> None:
    plan = PlanBuilder()
    x, z = plan.input("x", [2], I64), plan.input("z", [2], I64)
    plan.output("y", plan.compute("div", [x, z], [2], type_=I64))
    divide = Action(Run(0, (0, 5), (6,)), "ratio (Div)")
    minus = PlanBuilder()
    a, one = minus.input("a", [2], I64), minus.constant([1, 1], I64)
    minus.output("b", minus.compute("sub", [a, one], [2], type_=I64))
    step = Action(Run(1, (5,), (7,)), "less (Sub)")
    pair = Register(TensorType(I64, (2,)))
    registers = [pair, scalar(I64, 5), pair, scalar(I64), scalar(BOOL), pair, pair, pair, pair]
    body = Block((3, 4, 5), (divide, step), (4, 7))
    loop = Action(Loop(1, None, 1, (0,), (8,)), "again (Loop)")
    both = composed(
        registers, {"x": 0}, {"y": 8}, Block((), (loop,), (8,)), body, parts=(part(plan), part(minus))
    )
    with pytest.raises(Invalid, match=r"again \(Loop\): round 3: ratio \(Div\).*an integer is divided by 0"):
        Program(both).run({"x": np.array([3, 9])})


def test_sequences_optionals_and_strings_come_and_go() -> None:
    lists = Register(SequenceType(TensorType(F32, (None,))))
    maybe = Register(OptionalType(TensorType(F32, (None,))))
    words = Register(TensorType(STRING, (None,)))
    insert = Action(Host("sequence_insert", (0, 3), (4,)), "more (SequenceInsert)")
    lower = Action(Host("string_case", (2,), (5,), (0,)), "small (StringNormalizer)")
    plan = composed(
        [lists, maybe, words, vector(), lists, words],
        {"list": 0, "maybe": 1, "words": 2, "item": 3},
        {"longer": 4, "maybe again": 1, "small": 5},
        Block((), (insert, lower), (4, 1, 5)),
    )
    program = Program(decode(encode(plan)))
    one = np.ones(1, np.float32)
    found = program.run({"list": [one, one], "maybe": None, "words": ["Ab", "c"], "item": one})
    assert len(found["longer"]) == 3
    assert found["maybe again"] is None
    assert found["small"].tolist() == ["ab", "c"]
    found = program.run({"list": [], "maybe": one, "words": np.array(["X"]), "item": one})
    assert found["maybe again"].tolist() == [1]
    assert [str(spec) for spec in program.inputs[:3]] == [
        "list: sequence of float32[?]",
        "maybe: optional of float32[?]",
        "words: string[?]",
    ]
    with pytest.raises(Invalid, match=r"input 'list' .* must be a list of at most"):
        program.run({"list": one, "words": [], "item": one})
    with pytest.raises(Invalid, match="must hold strings, not a int"):
        program.run({"list": [], "words": [1], "item": one})


def test_dimensions_of_inputs_are_held_to_their_bounds_and_to_one_another() -> None:
    named = Register(TensorType(F32, ("n",)))
    plan = composed(
        [named, named, named],
        {"x": 0, "z": 1},
        {"y": 2},
        Block((), (double_it(0, 2),), (2,)),
        parts=(doubling(),),
        dimensions=(Dimension("n", 1, 4),),
    )
    program = Program(plan)
    x = np.ones(2, np.float32)
    assert program.run({"x": x, "z": x})["y"].tolist() == [2, 2]
    with pytest.raises(Invalid, match="dimension 'n' is 2, and 1 in input 'z'"):
        program.run({"x": x, "z": x[:1]})
    with pytest.raises(Invalid, match="dimension 'n' is 5; the plan was made for sizes 1 to 4"):
        program.run({"x": np.ones(5, np.float32), "z": x})
    with pytest.raises(Invalid, match=r"input 'x' .* is missing"):
        program.run({"z": x})
    with pytest.raises(Invalid, match="input 'zz' isn't one of x, z; did you mean 'z'"):
        program.run({"x": x, "z": x, "zz": x})

"""What is refused of compositions before anything runs, and what hostile bytes of them do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Exhausted, Invalid
from libs.runtime.check import check_plan
from libs.runtime.codec import decode, encode
from libs.runtime.plan import (
    Action,
    Block,
    Branch,
    Composition,
    DataType,
    Dimension,
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


def doubling() -> Plan:
    plan = PlanBuilder()
    n = plan.dimension("n", 0, 1 << 31)
    x = plan.input("x", [n])
    plan.output("y", plan.compute("add", [x, x], [n]))
    return replace(plan.build(), model_digest="", producer="")


def vector(type_: DataType = F32) -> Register:
    return Register(TensorType(type_, (None,)))


LIST = Register(SequenceType(TensorType(F32, (None,))))
RUN = Run(0, (0,), (4,), (SizeSource(0, axis=0),))
SOUND = Composition(
    parts=(doubling(),),
    registers=(
        vector(),  # 0: x
        Register(TensorType(I64, ())),  # 1: n
        Register(TensorType(BOOL, ())),  # 2: c
        LIST,  # 3: list
        vector(),  # 4: doubled
        Register(TensorType(I64, ())),  # 5: round
        Register(TensorType(BOOL, ())),  # 6: going
        vector(),  # 7: carried in
        vector(),  # 8: carried out
        LIST,  # 9: longer
        Register(TensorType(F32, (2,)), b"\0" * 8),  # 10: a constant
        Register(TensorType(STRING, (1,)), b"", ("word",)),  # 11: strings
        vector(),  # 12: chosen
    ),
    inputs=tuple(NamedRegister(*each) for each in (("x", 0), ("n", 1), ("c", 2), ("list", 3))),
    outputs=(NamedRegister("y", 8), NamedRegister("longer", 9)),
    blocks=(
        Block(
            (),
            (
                Action(RUN, "twice (Add)"),
                Action(Branch(2, 2, 3, (12,))),
                Action(Loop(1, 2, 1, (4,), (8,))),
                Action(Host("sequence_insert", (3, 8), (9,))),
            ),
            (8, 9),
        ),
        Block((5, 6, 7), (), (6, 7)),
        Block((), (), (4,)),
        Block((), (), (10,)),
    ),
)


def plan(composition: Composition, **more: Any) -> Plan:
    return Plan(model_digest=DIGEST, producer="a test", composition=composition, **more)


def first(*actions: Any, **more: Any) -> Composition:
    """Return the sound one with other actions in block 0."""
    block = replace(SOUND.blocks[0], actions=tuple(Action(action) for action in actions), **more)
    return replace(SOUND, blocks=(block, *SOUND.blocks[1:]))


def registers(number: int, register: Register) -> Composition:
    changed = list(SOUND.registers)
    changed[number] = register
    return replace(SOUND, registers=tuple(changed))


def body(block: Block) -> Composition:
    return replace(SOUND, blocks=(SOUND.blocks[0], block, *SOUND.blocks[2:]))


def collecting(register: int) -> Composition:
    """Return the sound one with a loop that collects what a register has."""
    changed = first(RUN, _REST[0], Loop(1, 2, 1, (), (8,)), _REST[2])
    blocks = (changed.blocks[0], Block((5, 6), (), (6, register)), *SOUND.blocks[2:])
    return replace(changed, blocks=blocks)


_REST = [action.kind for action in SOUND.blocks[0].actions[1:]]
FAULTS: dict[str, tuple[str, Composition]] = {
    "no output": ("would compute nothing", replace(SOUND, outputs=())),
    "a name twice": ("have a name twice", replace(SOUND, outputs=(SOUND.outputs[0],) * 2)),
    "an unknown part": ("runs part 7; there are 1", first(replace(RUN, part=7), *_REST)),
    "an unknown register": ("names register 99", first(replace(RUN, inputs=(99,)), *_REST)),
    "read before written": (
        "reads register 8, which nothing has written",
        first(replace(RUN, inputs=(8,)), *_REST),
    ),
    "written twice": ("writes register 4, which is written already", first(RUN, replace(RUN), *_REST)),
    "a constant written": (
        "writes register 10, which is written",
        first(replace(RUN, outputs=(10,)), *_REST),
    ),
    "another type": (
        "has register 1 of INT64 for a tensor of FLOAT32",
        first(replace(RUN, inputs=(1,)), *_REST),
    ),
    "a list for a tensor": ("as a tensor, which it isn't", first(replace(RUN, inputs=(3,)), *_REST)),
    "too few inputs": ("gives part 0 0 inputs, not 1", first(replace(RUN, inputs=()), *_REST)),
    "too few sizes": ("gives part 0 0 dimensions, not 1", first(replace(RUN, dimensions=()), *_REST)),
    "a size of floats": (
        "takes a size from register 0, which is no INT64",
        first(replace(RUN, dimensions=(SizeSource(0, element=0),)), *_REST),
    ),
    "a size of no axis": (
        "takes a size from axis 3 of 1",
        first(replace(RUN, dimensions=(SizeSource(0, axis=3),)), *_REST),
    ),
    "a condition of numbers": (
        "which is not of type BOOL",
        first(RUN, replace(_REST[0], condition=1), *_REST[1:]),
    ),
    "an unknown block": (
        "runs block 9; there are 4",
        first(RUN, replace(_REST[0], then_block=9), *_REST[1:]),
    ),
    "a block twice": (
        "runs block 3, which something else runs",
        first(RUN, replace(_REST[0], then_block=3), *_REST[1:]),
    ),
    "itself": (
        "runs block 0, which something else runs",
        first(RUN, replace(_REST[0], then_block=0), *_REST[1:]),
    ),
    "a block alone": ("has one that nothing runs", first(RUN, *_REST[1:])),
    "a branch's results": (
        "has other parameters or results",
        first(RUN, replace(_REST[0], outputs=()), *_REST[1:]),
    ),
    "a loop's results": ("has other parameters or results", body(Block((5, 6, 7), (), (6,)))),
    "a loop's parameters": ("has other parameters or results", body(Block((5, 6), (), (6, 0)))),
    "a loop's condition": ("first result is no BOOL", body(Block((5, 6, 7), (), (5, 7)))),
    "a round of floats": ("fills register 7 with a INT64", body(Block((7, 6, 5), (), (6, 5)))),
    "a loop's inside outside": (
        "reads register 7, which nothing has written",
        first(RUN, *_REST, results=(7, 9)),
    ),
    "an unknown operator": (
        "host operator 'sequence_insrt', unknown to this runtime: update it; did you mean 'sequence_insert'",
        first(RUN, *_REST[:2], Host("sequence_insrt", (3, 8), (9,))),
    ),
    "an operator's inputs": (
        "gives sequence_insert 1 things",
        first(RUN, *_REST[:2], replace(_REST[2], inputs=(3,))),
    ),
    "no list": ("something else than sequence", first(RUN, *_REST[:2], replace(_REST[2], inputs=(0, 8)))),
    "an operator's numbers": (
        "gives sequence_insert 1 numbers, 0 texts",
        first(RUN, *_REST[:2], replace(_REST[2], integers=(1,))),
    ),
    "a branch's types": (
        "hands FLOAT32[?] of register 4 to register 9 of sequence of FLOAT32[?]",
        first(RUN, replace(_REST[0], outputs=(9,)), _REST[1], replace(_REST[2], outputs=(12,))),
    ),
    "what is carried into a round": (
        "hands FLOAT32[?] of register 4 to register 7 of INT64[?]",
        registers(7, vector(I64)),
    ),
    "what is carried out of a round": (
        "hands sequence of FLOAT32[?] of register 3 to register 7",
        body(Block((5, 6, 7), (), (6, 3))),
    ),
    "what a loop gives": (
        "to register 8 of FLOAT32[?, ?]",
        registers(8, Register(TensorType(F32, (None, None)))),
    ),
    "lists that rounds collect": (
        "collects sequence of FLOAT32[?], which is no tensor",
        collecting(3),
    ),
    "what rounds collect": (
        "collects FLOAT32[?, ?] into register 8 of FLOAT32[?]",
        collecting(4),
    ),
    "a constant that is neither true nor false": (
        "has a BOOL that is neither 0 nor 1",
        registers(10, Register(TensorType(BOOL, (2,)), b"\0\2")),
    ),
    "a constant of half a character": (
        "half of a surrogate pair",
        registers(11, Register(TensorType(STRING, (1,)), b"", ("\ud800",))),
    ),
    "a constant's bytes": (
        "has 4 bytes for its shape [2]",
        registers(10, Register(TensorType(F32, (2,)), b"1234")),
    ),
    "a constant of any size": (
        "whose shape is not fixed",
        registers(10, Register(TensorType(F32, (None,)), b"")),
    ),
    "a size below 0": (
        "has sizes [-2, -1], which no tensor has",
        registers(10, Register(TensorType(F32, (-2, -1)), b"\0" * 8)),
    ),
    "sizes beside 0 that numpy can't count": (
        "has sizes [0, 2147483648, 2147483648], which no tensor has",
        registers(10, Register(TensorType(F32, (0, 1 << 31, 1 << 31)), b"")),
    ),
    "strings that are few": (
        "has 0 strings, but its shape [1] takes 1",
        registers(11, replace(SOUND.registers[11], strings=())),
    ),
    "strings of nothing": (
        "has strings, but is no constant",
        registers(11, replace(SOUND.registers[11], constant=None)),
    ),
    "a type too deep": (
        "of a type that is too deep",
        registers(
            9, Register(SequenceType(SequenceType(OptionalType(SequenceType(SequenceType(TensorType(F32)))))))
        ),
    ),
    "an unknown dimension": (
        "has size 'm', which is no dimension",
        registers(0, Register(TensorType(F32, ("m",)))),
    ),
    "too many axes": ("has 9 axes, more than 8", registers(0, Register(TensorType(F32, (1,) * 9)))),
    "a part of strings": (
        "parts[0]: plan: tensors[0] holds strings, which only registers do",
        replace(
            SOUND,
            parts=(
                replace(
                    doubling(),
                    tensors=tuple(replace(each, type=STRING) for each in doubling().tensors),
                ),
            ),
        ),
    ),
}


def test_the_sound_one_is() -> None:
    check_plan(plan(SOUND))
    assert decode(encode(plan(SOUND))) == plan(SOUND)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named(name: str) -> None:
    text, composition = FAULTS[name]
    with pytest.raises(Invalid) as caught:
        check_plan(plan(composition))
    assert text in caught.value.message
    assert caught.value.reason == "BAD_PLAN"


def test_nothing_else_may_be_beside_a_composition() -> None:
    with pytest.raises(Invalid, match="beside a composition"):
        check_plan(plan(SOUND, tensors=doubling().tensors))


def test_a_dimension_must_be_an_inputs() -> None:
    with pytest.raises(Invalid, match="dimension 'batch' is the size of no axis"):
        check_plan(plan(SOUND, dimensions=(Dimension("batch", 1, 2),)))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_spoilt_bytes_are_refused_or_sound(data: st.DataObject) -> None:
    content = bytearray(encode(plan(SOUND)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                content[place] = data.draw(st.integers(0, 255))
            case 1:
                del content[place : place + data.draw(st.integers(1, 8))]
            case _:
                content[place:place] = bytes([data.draw(st.integers(0, 255))])
        if not content:
            return
    try:
        Program(decode(bytes(content)))
    except (Invalid, Exhausted):
        return

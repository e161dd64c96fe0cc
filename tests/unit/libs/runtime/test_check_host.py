"""What is refused of actions with host operators, by types alone; and that what isn't runs or is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Error, Invalid
from libs.runtime.atomic import HOST
from libs.runtime.check_host import check_host
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import (
    Action,
    Block,
    Composition,
    DataType,
    Host,
    NamedRegister,
    OptionalType,
    Plan,
    Register,
    RegisterType,
    SequenceType,
    TensorType,
)
from libs.runtime.program import Program
from libs.runtime.testing import DIGEST

F32, I32, I64, U8 = DataType.FLOAT32, DataType.INT32, DataType.INT64, DataType.UINT8
U32, BOOL, STRING, COMPLEX = DataType.UINT32, DataType.BOOL, DataType.STRING, DataType.COMPLEX64


def tensor(type_: DataType, axes: int | None = None) -> TensorType:
    return TensorType(type_, None if axes is None else (None,) * axes)


LIST, TEXTS = SequenceType(tensor(F32, 1)), tensor(STRING, 2)
MAYBE, PLACES = OptionalType(tensor(F32)), (tensor(I64, 2), tensor(I64, 1))
SOUND: list[tuple[Host, list[RegisterType], list[RegisterType]]] = [
    (Host("sequence_empty", (), ()), [], [LIST]),
    (Host("sequence_insert", (), ()), [LIST, tensor(F32, 1), tensor(I32)], [LIST]),
    (Host("sequence_insert", (), ()), [MAYBE, tensor(F32, 3)], [MAYBE]),
    (Host("sequence_erase", (), ()), [LIST], [LIST]),
    (Host("sequence_at", (), ()), [LIST, tensor(I64, 0)], [tensor(F32)]),
    (Host("sequence_at", (), ()), [SequenceType(LIST), tensor(I64, 0)], [LIST]),
    (Host("sequence_length", (), ()), [LIST], [tensor(I64, 0)]),
    (Host("sequence_concat", (), (), (-1, 0)), [LIST], [tensor(F32, 1)]),
    (Host("sequence_concat", (), (), (1, 1)), [LIST], [tensor(F32, 2)]),
    (Host("string_rank", (), ()), [TEXTS, tensor(STRING, 1)], [tensor(STRING, 1), *PLACES]),
    (Host("string_take", (), ()), [tensor(STRING, 1), tensor(I64, 3)], [tensor(STRING, 3)]),
    (Host("string_concat", (), ()), [TEXTS, TEXTS], [TEXTS]),
    (Host("string_case", (), (), (1,)), [TEXTS], [TEXTS]),
    (Host("string_split", (), (), (-1,), (",",)), [TEXTS], [tensor(STRING, 3), tensor(I64, 2)]),
    (Host("string_match", (), (), (), ("a*",)), [TEXTS], [tensor(BOOL, 2)]),
    (Host("string_cast", (), (), (F32,)), [TEXTS], [tensor(F32, 2)]),
    (Host("string_cast", (), (), (STRING,)), [tensor(F32, 2)], [TEXTS]),
    (Host("decode_image", (), (), (), ("RGB",)), [tensor(U8, 1)], [tensor(U8, 3)]),
    (Host("random_bits", (), (), (7,)), [tensor(I64, 1)], [tensor(U32, 2)]),
]  # fmt: skip


def test_every_operator_is_here_and_sound() -> None:
    assert {host.operator for host, _, _ in SOUND} == set(HOST)
    for host, given_, made in SOUND:
        check_host(host, given_, made, "here")


REFUSED: list[tuple[str, Host, list[RegisterType], list[RegisterType]]] = [
    ("an item is of another type", SOUND[1][0], [LIST, tensor(I64, 1)], [LIST]),
    ("an item is of another type", SOUND[1][0], [LIST, tensor(F32, 2)], [LIST]),
    ("an item is of another type", SOUND[1][0], [LIST, LIST], [LIST]),
    ("a position is INT32 or INT64", SOUND[1][0], [LIST, tensor(F32, 1), tensor(F32)], [LIST]),
    ("it gives a sequence of the same", SOUND[3][0], [LIST], [SequenceType(tensor(I64, 1))]),
    ("it gives what the sequence holds", SOUND[4][0], [LIST, tensor(I64)], [tensor(I64)]),
    ("it gives what the sequence holds", SOUND[4][0], [SequenceType(LIST), tensor(I64)], [tensor(F32)]),
    ("it gives one INT64", SOUND[6][0], [LIST], [tensor(I32, 0)]),
    ("it joins tensors", SOUND[7][0], [SequenceType(LIST)], [tensor(F32, 1)]),
    ("there is no axis 1", Host("sequence_concat", (), (), (1, 0)), [LIST], [tensor(F32, 1)]),
    ("it asks for an axis", Host("sequence_concat", (), (), (1 << 40, 0)), [LIST], [tensor(F32, 1)]),
    ("it asks for an axis", Host("sequence_concat", (), (), (0, 2)), [LIST], [tensor(F32, 1)]),
    ("elements of the same type", SOUND[7][0], [LIST], [tensor(I64, 1)]),
    ("it gives as many axes", SOUND[9][0], [TEXTS], [tensor(STRING, 1), tensor(I64, 1)]),
    ("the table has one axis", SOUND[9][0], [TEXTS], [tensor(STRING, 2), tensor(I64, 2)]),
    ("places are INT32 or INT64", SOUND[10][0], [tensor(STRING, 1), tensor(F32, 1)], [tensor(STRING, 1)]),
    ("both have as many axes", SOUND[11][0], [TEXTS, tensor(STRING, 1)], [tensor(STRING, 1)]),
    ("it gives one axis more", SOUND[13][0], [TEXTS], [TEXTS, tensor(I64, 2)]),
    ("it gives BOOL", SOUND[14][0], [TEXTS], [tensor(U8, 2)]),
    ("it asks for the type that it gives", SOUND[15][0], [TEXTS], [tensor(I64, 2)]),
    ("it asks for the type", Host("string_cast", (), (), (99,)), [TEXTS], [tensor(F32, 2)]),
    ("one of both is strings", Host("string_cast", (), (), (F32,)), [tensor(I64, 2)], [tensor(F32, 2)]),
    ("isn't complex", Host("string_cast", (), (), (COMPLEX,)), [TEXTS], [tensor(COMPLEX, 2)]),
    ("it converts a tensor", Host("string_cast", (), (), (F32,)), [LIST], [tensor(F32, 2)]),
    ("it takes a vector of UINT8", SOUND[17][0], [tensor(F32, 1)], [tensor(U8, 3)]),
    ("it gives three axes of UINT8", SOUND[17][0], [tensor(U8, 1)], [tensor(U8, 2)]),
    ("it takes a vector of INT64", SOUND[18][0], [tensor(F32, 1)], [tensor(U32, 2)]),
    ("it gives UINT32", SOUND[18][0], [tensor(I64, 1)], [tensor(I64, 2)]),
    ("something else than strings", SOUND[12][0], [tensor(F32, 2)], [TEXTS]),
    ("something else than sequence", SOUND[6][0], [tensor(F32, 1)], [tensor(I64, 0)]),
    ("0 numbers, 1 texts", Host("string_split", (), (), (), (",",)), [TEXTS], [TEXTS]),
    ("a text of more than", Host("string_match", (), (), (), ("a" * 5000,)), [TEXTS], [tensor(BOOL)]),
]


@pytest.mark.parametrize(("says", "host", "reads", "writes"), REFUSED)
def test_each_fault_is_named(
    says: str, host: Host, reads: list[RegisterType], writes: list[RegisterType]
) -> None:
    with pytest.raises(Invalid) as caught:
        check_host(host, reads, writes, "blocks[0].actions[3] (x (Op))")
    assert says in caught.value.message
    assert "blocks[0].actions[3] (x (Op))" in caught.value.message
    assert caught.value.reason == "BAD_PLAN"


_TENSORS = st.builds(
    tensor, st.sampled_from([F32, I32, I64, U8, BOOL, STRING]), st.sampled_from([None, 0, 1, 2])
)
_TYPES: st.SearchStrategy[RegisterType] = st.one_of(
    _TENSORS,
    _TENSORS.map(SequenceType),
    _TENSORS.map(OptionalType),
    _TENSORS.map(SequenceType).map(SequenceType),
)


def _value(data: st.DataObject, type_: RegisterType) -> Any:
    if not isinstance(type_, TensorType):
        items = [_value(data, type_.element) for _ in range(data.draw(st.integers(0, 2)))]
        return items if isinstance(type_, SequenceType) else items[0] if items else None
    axes = data.draw(st.integers(0, 2)) if type_.shape is None else len(type_.shape)
    shape = tuple(data.draw(st.integers(0, 3)) for _ in range(axes))
    numbers = np.asarray(data.draw(st.integers(-3, 3))) + np.arange(int(np.prod(shape))).reshape(shape)
    return (
        numbers.astype(str).astype(np.object_) if type_.type is STRING else numbers.astype(DTYPES[type_.type])
    )


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_an_action_of_any_types_is_refused_or_runs_or_is_told(data: st.DataObject) -> None:
    operator = HOST[data.draw(st.sampled_from(sorted(HOST)))]
    # Near what is sound, so that most get further than the check.
    host, reads, writes = data.draw(
        st.sampled_from([each for each in SOUND if each[0].operator == operator.name])
    )
    reads = [data.draw(_TYPES) if data.draw(st.integers(0, 3)) == 0 else type_ for type_ in reads]
    writes = [data.draw(_TYPES) if data.draw(st.integers(0, 3)) == 0 else type_ for type_ in writes]
    count = len(reads)
    action = Host(
        operator.name,
        tuple(range(count)),
        tuple(range(count, count + len(writes))),
        tuple(data.draw(st.sampled_from([number, 0, -1, 1 << 62])) for number in host.integers),
        tuple(data.draw(st.sampled_from([text, "", "(", "\ud800"])) for text in host.texts),
    )
    composition = Composition(
        (),
        tuple(Register(type_) for type_ in (*reads, *writes)),
        tuple(NamedRegister(f"x{number}", number) for number in range(count)),
        tuple(NamedRegister(f"y{number}", count + number) for number in range(len(writes))),
        (Block((), (Action(action),), ()),),
    )
    try:
        program = Program(Plan(DIGEST, "a test", composition=composition), max_buffer_bytes=1 << 20)
        found = program.run({f"x{number}": _value(data, type_) for number, type_ in enumerate(reads)})
    except Error:
        return
    for number, type_ in enumerate(writes):
        if isinstance(type_, TensorType):
            assert found[f"y{number}"].dtype == DTYPES[type_.type]
    assert program.held_bytes == 0

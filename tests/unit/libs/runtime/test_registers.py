"""What callers bring to compositions, and get back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from libs.common.errors import Invalid
from libs.runtime.plan import (
    Composition,
    DataType,
    NamedRegister,
    OptionalType,
    Plan,
    Register,
    RegisterType,
    SequenceType,
    TensorType,
)
from libs.runtime.registers import RegisterReader, constant_of, given_back, register_spec
from libs.runtime.testing import DIGEST

F32, I64, STRING = DataType.FLOAT32, DataType.INT64, DataType.STRING
WORDS = TensorType(STRING, (None,))


def taken(type_: RegisterType, value: object) -> Any:
    composition = Composition((), (Register(type_),), (NamedRegister("x", 0),), (), ())
    values, _ = RegisterReader(Plan(DIGEST, "a test", composition=composition)).values({"x": value})
    return values[0]


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (TensorType(F32, (2, None)), "x: float32[2, ?]"),
        (TensorType(F32), "x: float32[...]"),
        (WORDS, "x: string[?]"),
        (SequenceType(TensorType(F32, (None, 3))), "x: sequence of float32[?, 3]"),
        (OptionalType(SequenceType(TensorType(I64, ()))), "x: optional of sequence of int64[]"),
        (TensorType(F32, ("batch",)), "x: float32[batch]"),
    ],
)
def test_people_are_told_what_a_register_holds(type_: RegisterType, text: str) -> None:
    assert str(register_spec("x", type_)) == text


def test_what_comes_goes_back_as_the_callers_own() -> None:
    type_ = OptionalType(SequenceType(TensorType(F32, (None,))))
    array = np.ones(2, np.float32)
    held = taken(type_, [array, [3, 4]])
    back = given_back(held, type_)
    assert [each.tolist() for each in back] == [[1, 1], [3, 4]]
    assert back[0] is not array
    assert type(back) is list
    assert given_back(taken(type_, None), type_) is None
    with pytest.raises(Invalid, match="holds 2 things"):
        given_back([1, 2], OptionalType(TensorType(F32)))


@pytest.mark.parametrize(
    "value", [["a", "ü"], ("a", "ü"), np.array(["a", "ü"]), np.array([b"a", "ü".encode()], np.object_)]
)
def test_strings_come_in_several_forms(value: object) -> None:
    held = taken(WORDS, value)
    assert held.dtype == np.object_
    assert held.tolist() == ["a", "ü"]
    assert taken(TensorType(STRING, ()), "whole").shape == ()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([1], "must hold strings, not a int"),
        ([b"\xff"], "a string that isn't UTF-8"),
        (["\ud800"], "a string that isn't UTF-8"),
        ([["a"], ["b", "c"]], "must hold strings, not a list"),
        ("a", r"has the shape \[\]; it must be x: string\[\?\]"),
    ],
)
def test_strings_that_are_none_are_told(value: object, says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        taken(WORDS, value)
    assert caught.value.reason == "BAD_INPUT"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (3, "must be a list of at most 1048576, not int"),
        (np.zeros(2), "not ndarray"),
        ("ab", "not str"),
        ([None], "must hold float32, not a NoneType"),
        ([[[1]]], r"has the shape \[1, 1\]"),
    ],
)
def test_lists_that_are_none_are_told(value: object, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        taken(SequenceType(TensorType(F32, (None,))), value)


def test_constants_cant_be_written_to() -> None:
    numbers = constant_of(Register(TensorType(I64, (2, 1)), np.array([1, 2]).tobytes()))
    assert numbers.tolist() == [[1], [2]]
    assert not numbers.flags.writeable
    assert constant_of(Register(TensorType(STRING, (2,)), b"", ("a", "b"))).tolist() == ["a", "b"]

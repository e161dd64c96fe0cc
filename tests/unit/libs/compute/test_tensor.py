"""Tensors: made of what is at hand, with numpy's types and operators."""

from __future__ import annotations

import operator as operators
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.compute.eager import EAGER
from libs.compute.tensor import Tensor, array, asarray

DTYPES = [
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
]
BINARY = [
    operators.add,
    operators.sub,
    operators.mul,
    operators.truediv,
    operators.floordiv,
    operators.mod,
    operators.pow,
]
COMPARING = [operators.eq, operators.ne, operators.lt, operators.le, operators.gt, operators.ge]
BITS = [operators.and_, operators.or_, operators.xor, operators.lshift, operators.rshift]


def same(ours: Any, theirs: Any) -> None:
    found, theirs = np.asarray(ours), np.asarray(theirs)
    assert isinstance(ours, Tensor)
    assert found.dtype == theirs.dtype
    assert found.shape == theirs.shape
    np.testing.assert_allclose(found, theirs, rtol=1e-3 if found.dtype == np.float16 else 1e-6)


def numpys(function: Any, *args: Any) -> Any:
    """Return what numpy gives; None where it refuses."""
    try:
        with np.errstate(all="ignore"):
            return function(*args)
    except (TypeError, ValueError, OverflowError):
        return None


@pytest.mark.parametrize("function", [*BINARY, *COMPARING, *BITS])
@pytest.mark.parametrize("left", DTYPES)
def test_operators_of_all_pairs_of_types(function: Any, left: str) -> None:
    for right in DTYPES:
        x = np.array([[1], [5]]).astype(left)
        y = np.array([1, 2, 3]).astype(right)
        wanted = numpys(function, x, y)
        if wanted is None:
            with pytest.raises(Invalid):
                function(asarray(x), y)
            continue
        same(function(asarray(x), y), wanted)
        same(function(x, asarray(y)), wanted)


@pytest.mark.parametrize("function", [*BINARY, *COMPARING])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [2, 1.5, True, 300, -1])
def test_a_python_number_takes_the_arrays_type(function: Any, dtype: str, number: Any) -> None:
    x = np.array([1, 2, 5]).astype(dtype)
    for given_ in ((x, number), (number, x)):
        # The operator takes ways of its own where the power is 2.
        wanted = numpys(np.power if function is operators.pow else function, *given_)
        ours = [asarray(each) if each is x else each for each in given_]
        if wanted is None:
            with pytest.raises(Invalid):
                function(*ours)
            continue
        same(function(*ours), wanted)


class _Later:
    """A backend that doesn't know elements yet."""

    def known(self, x: Any) -> None:
        """Return nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(EAGER, name)


def test_negative_powers_of_integers_are_refused_where_they_are_known() -> None:
    for base in (2, 1, [1, -1], np.array([2, 3], np.int8)):
        for power in (-1, [1, -1], np.array([0, -2], np.int16)):
            with pytest.raises(Invalid, match="power: integers have no negative powers"):
                asarray(base) ** power
    assert (asarray([2.0, 4.0]) ** -1).tolist() == [0.5, 0.25]
    assert (asarray([2, 4]) ** np.array([0, 3])).tolist() == [1, 64]


def test_negative_powers_of_integers_are_cut_off_where_they_are_not_known() -> None:
    power: Any = Tensor(_Later(), np.array([-1]))
    assert (asarray([1, -1, 5, -3]) ** power).value.tolist() == [1, -1, 0, 0]
    with pytest.raises(Invalid, match="0 is raised to a negative power"):
        0**power


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([operators.floordiv, operators.mod]),
    st.sampled_from(["int8", "uint8", "int64", "float32", "float64"]),
    st.integers(-128, 127),
    st.integers(-128, 127).filter(bool),
)
def test_division_rounds_down(function: Any, dtype: str, x: int, y: int) -> None:
    left, right = np.array([x]).astype(dtype), np.array([y]).astype(dtype)
    if not right.all() or (dtype == "int8" and (x, y) == (-128, -1)):
        return
    if dtype.startswith("float"):
        left, right = left / 8, right / 4
    same(function(asarray(left), right), function(left, right))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [operators.neg, operators.pos, operators.invert, operators.abs])
def test_operators_of_one(function: Any, dtype: str) -> None:
    x = np.array([0, 1, 5]).astype(dtype)
    wanted = numpys(function, x)
    if wanted is None:
        if function is not operators.pos:
            with pytest.raises(Invalid):
                function(asarray(x))
        return
    same(function(asarray(x)), wanted)


@pytest.mark.parametrize(
    "thing",
    [
        1,
        2.5,
        True,
        [1, 2],
        [[1.0], [2.0]],
        [],
        np.float32(3),
        np.arange(4, dtype=np.uint8),
        ((1, 2), (3, 4)),
        [True],
    ],
)
def test_arrays_of_what_is_at_hand(thing: Any) -> None:
    same(asarray(thing), np.asarray(thing))
    same(array(thing, "float32"), np.array(thing, np.float32))


def test_lists_of_tensors_are_stacked() -> None:
    same(asarray([asarray([1, 2]), [3, 4]]), np.array([[1, 2], [3, 4]]))


def test_array_copies_and_no_tensor_can_be_written_to() -> None:
    source = np.arange(3)
    made = array(source)
    source[0] = 9
    assert made.tolist() == [0, 1, 2]
    view = np.asarray(made)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_what_it_is() -> None:
    x = asarray(np.zeros((2, 3), np.float32))
    assert (x.shape, x.dtype, x.ndim, x.size, len(x)) == ((2, 3), "float32", 2, 6, 2)
    assert x.T.shape == (3, 2)
    assert x.reshape(-1).shape == x.ravel().shape == (6,)
    assert x.reshape((3, -1)).shape == x.reshape(3, 2).shape == (3, 2)
    assert x.transpose(1, 0).shape == x.transpose((1, 0)).shape == (3, 2)
    assert [row.tolist() for row in x] == [[0, 0, 0], [0, 0, 0]]
    assert repr(asarray([1, 2])) == "Tensor([1, 2], dtype='int64')"


def test_single_elements() -> None:
    assert asarray([2.5]).item() == 2.5
    assert asarray([[1, 2]]).item(0, 1) == 2
    assert int(asarray(3)) == 3
    assert float(asarray(3)) == 3.0
    assert bool(asarray([1]))
    assert [10, 20, 30][asarray(1)] == 20


@pytest.mark.parametrize(
    ("given_", "wanted"), [("int8", "int8"), (int, "int64"), (np.float32, "float32"), ("bool", "bool")]
)
def test_conversions(given_: Any, wanted: str) -> None:
    same(asarray([0.0, 1.7]).astype(given_), np.array([0.0, 1.7]).astype(wanted))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: asarray([[1], [2, 3]]), "no regular array"),
        (lambda: asarray("text"), "can't be made of a str"),
        (lambda: asarray([1 << 70]), "more than 64 bits"),
        (lambda: asarray([None]), "objects"),
        (lambda: asarray([300], "int8"), "don't hold 300"),
        (lambda: asarray(np.zeros(2, complex)) + 1, "only kept and moved"),
        (lambda: asarray([1], "int9"), "did you mean 'int"),
        (lambda: asarray([1, 2]) * [1, 2, 3], "don't broadcast"),
        (lambda: asarray([1], "int8") + 300, "don't hold the number 300"),
        (lambda: asarray([1]) // 0, "divided by 0"),
        (lambda: asarray([True]) - asarray([True]), "subtract doesn't take booleans"),
        (lambda: asarray([1.0]) & 1, "bitwise_and"),
        (lambda: bool(asarray([1, 2])), "neither true nor false"),
        (lambda: asarray([1, 2]).item(), "item of an array"),
        (lambda: asarray([1, 2]).reshape(3), "2 elements"),
        (lambda: asarray([1, 2]).reshape(-1, -1), "more than one size"),
        (lambda: asarray([[1]]).transpose(0, 0), "no order"),
        (lambda: asarray(np.zeros((1,) * 9)), "9 axes"),
        (lambda: asarray([1]) @ 2, "1 axis or more"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()


def test_a_number_has_no_length() -> None:
    with pytest.raises(TypeError, match="no length"):
        len(asarray(1))

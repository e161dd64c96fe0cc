"""Arithmetic, rounding, real functions, logic and bits against numpy's, over types and odd values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from libs.common.errors import Invalid
from libs.compute import matrix
from libs.compute.testing import Array, assert_same

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "float32", "float64"]
ODD = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-3, 7.25, 300.0, np.inf, -np.inf, np.nan]

_ONE = (
    "absolute fabs sign negative positive square rint floor ceil trunc fix signbit isnan isinf isfinite "
    "isposinf isneginf logical_not exp exp2 expm1 log log2 log10 log1p sqrt cbrt sin cos tan arcsin arccos "
    "arctan sinh cosh tanh arcsinh arccosh arctanh degrees radians sinc reciprocal nan_to_num modf"
)
_TWO = (
    "add subtract multiply divide floor_divide remainder fmod divmod maximum minimum fmax fmin power "
    "arctan2 hypot copysign heaviside logaddexp logaddexp2 float_power equal less greater_equal "
    "logical_and logical_xor"
)
OF_ONE, OF_TWO = _ONE.split(), _TWO.split()
BITWISE = ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "gcd", "lcm"]


def numbers(dtype: str) -> Array:
    if dtype == "bool":
        return np.array([True, False, True])
    if dtype in FLOATS:
        return np.array(ODD).astype(dtype)
    limits = np.iinfo(dtype)
    some = [0, 1, 2, 3, 7, 100, limits.max, limits.min, limits.min + 1]
    return np.array([*some, *([-1, -7, -100] if limits.min else [])], dtype)


def theirs(name: str, *args: Any) -> Any:
    """Return what numpy gives; None where it refuses."""
    try:
        with np.errstate(all="ignore"):
            return getattr(np, name)(*args)
    except (TypeError, ValueError):
        return None


@pytest.mark.parametrize("name", OF_ONE)
@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
def test_functions_of_one(name: str, dtype: str) -> None:
    x = numbers(dtype)
    if name == "reciprocal" and dtype not in FLOATS:
        x = x[x != 0]
    expected = theirs(name, x)
    if expected is None:
        with pytest.raises(Invalid):
            getattr(matrix, name)(x)
        return
    # In float16 numpy goes by tables of float32, we by float64: the last bit may differ.
    loose = dtype in ("float16", "bool")
    # numpy multiplies by π in the very type, before it takes the sine.
    least = {"float16": 2e-3, "float32": 1e-6}.get(dtype, 1e-15) if name == "sinc" else 0
    assert_same(getattr(matrix, name)(x), expected, rtol=2e-3 if loose else 1e-13, atol=least)


@pytest.mark.parametrize("name", OF_TWO)
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "uint64", *FLOATS])
def test_functions_of_two(name: str, dtype: str) -> None:
    x = numbers(dtype)
    left, right = x[:, None], x[None, :]
    if dtype not in FLOATS and name in ("floor_divide", "remainder", "fmod", "divmod"):
        right = right[right != 0][None, :]
    if dtype not in FLOATS and name == "power":
        right = right[(right >= 0) & (right < 50)][None, :]
    expected = theirs(name, left, right)
    if expected is None:
        with pytest.raises(Invalid):
            getattr(matrix, name)(left, right)
        return
    loose = dtype in ("float16", "bool", "int8")
    assert_same(getattr(matrix, name)(left, right), expected, rtol=4e-3 if loose else 1e-13)


@pytest.mark.parametrize("name", BITWISE)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits_and_divisors(name: str, dtype: str) -> None:
    x = numbers(dtype)
    if name in ("gcd", "lcm"):
        x = x[np.abs(x.astype(np.float64)) < 120]
        x = x[x != np.iinfo(dtype).min] if np.iinfo(dtype).min else x
    left, right = x[:, None], x[None, :]
    if "shift" in name:
        right = np.arange(8 * x.itemsize + 2, dtype=dtype)[None, :]
    assert_same(getattr(matrix, name)(left, right), theirs(name, left, right))


@settings(max_examples=40, deadline=None)
@given(
    arrays(np.float64, st.integers(0, 6), elements=st.floats(allow_nan=True, allow_infinity=True)),
    st.sampled_from(["log1p", "expm1", "sinh", "cosh", "arcsinh", "arctan", "cbrt", "exp", "tanh", "log2"]),
)
def test_functions_of_any_numbers(x: Array, name: str) -> None:
    # What numpy keeps below the normal numbers may be 0 here, or the other way round.
    assert_same(getattr(matrix, name)(x), theirs(name, x), rtol=1e-12, atol=1e-300)


@settings(max_examples=40, deadline=None)
@given(
    arrays(np.float64, 4, elements=st.floats(-1e6, 1e6)),
    arrays(np.float64, 4, elements=st.floats(-1e6, 1e6)),
)
def test_division_with_a_rest(x: Array, y: Array) -> None:
    with np.errstate(all="ignore"):
        quotient, rest = np.divmod(x, y)
    ours = matrix.divmod(x, y)
    assert_same(ours[1], rest)
    # Where the quotient is too large for whole numbers to be exact, its last digit is open.
    np.testing.assert_allclose(ours[0], quotient, rtol=1e-15)


def test_numbers_take_the_type_of_arrays() -> None:
    x = np.array([1, 2, 3], np.uint8)
    for ours, expected in (
        (matrix.add(x, 1), np.add(x, 1)),
        (matrix.multiply(x, 1.5), np.multiply(x, 1.5)),
        (matrix.power(x, 2), np.power(x, 2)),
        (matrix.maximum(np.float32(2), x), np.maximum(np.float32(2), x)),
    ):
        assert_same(ours, expected)


@pytest.mark.parametrize(
    ("low", "high"), [(None, 3), (2, None), (2, 3), (np.array([0, 1, 5, 2]), 4), (-1.5, 1.5)]
)
def test_clip(low: Any, high: Any) -> None:
    for x in (np.array([1, -4, 9, 3]), np.array([1.5, np.nan, -7, 3])):
        assert_same(matrix.clip(x, low, high), np.clip(x, low, high))


def test_where_and_closeness() -> None:
    x, y = np.array([1.0, 2.0, np.inf, np.nan, 0.0]), np.array([1.0 + 1e-9, 2.1, np.inf, np.nan, -0.0])
    for options in ({}, {"equal_nan": True}, {"rtol": 0.1}):
        assert_same(matrix.isclose(x, y, **options), np.isclose(x, y, **options))
        assert_same(matrix.allclose(x, y, **options), np.allclose(x, y, **options))
    assert_same(matrix.where(x > 1, x, 0), np.where(x > 1, x, 0))
    assert_same(matrix.array_equal(x, x, equal_nan=True), np.array_equal(x, x, equal_nan=True))
    assert_same(matrix.array_equal(x, x[:2]), np.array_equal(x, x[:2]))
    assert_same(matrix.array_equiv(x[:1], [[1.0], [1.0]]), np.array_equiv(x[:1], [[1.0], [1.0]]))
    assert_same(matrix.array_equiv(x, [1.0, 2.0]), np.array_equiv(x, [1.0, 2.0]))


@pytest.mark.parametrize("decimals", [-3, -1, 0, 1, 3])
@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_round(decimals: int, dtype: str) -> None:
    x = np.array([0.5, 1.5, 2.675, -12345.6789, 999.5, 15]).astype(dtype)
    assert_same(matrix.round(x, decimals), np.round(x, decimals))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: matrix.subtract([True], [False]), "logical_xor"),
        (lambda: matrix.floor_divide([1], [0]), "divided by 0"),
        (lambda: matrix.add(np.int8([1]), 1000), "don't hold the number 1000"),
        (lambda: matrix.bitwise_and([1.5], [1]), "integers and booleans"),
        (lambda: matrix.gcd([1.5], [1]), "gcd takes integers"),
        (lambda: matrix.ldexp([1.5], [0.5]), "not integers"),
        (lambda: matrix.bitwise_count([1.5]), "takes integers"),
        (lambda: matrix.unpackbits([1]), "takes uint8"),
        (lambda: matrix.packbits([1], bitorder="odd"), "bitorder is .* one of 'big', 'little'"),
        (lambda: matrix.where([True], 1), "both x and y"),
        (lambda: matrix.add("a", 1), "^add: an array can.t be made of a str"),
        (lambda: matrix.negative([True]), "no way to negate"),
        (lambda: matrix.add(np.ones(3), np.ones(4)), "don't broadcast"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()

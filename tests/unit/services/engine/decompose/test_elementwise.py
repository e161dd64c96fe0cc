"""What is easily lost element by element: signs of 0, NaN, the smallest integer, bits beyond a float's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx.helper import np_dtype_to_tensor_dtype

from services.engine.testing import applied

NAN, INF = math.nan, math.inf
FLOATS = [np.float16, np.float32, np.float64]
SIGNED = [np.int8, np.int16, np.int32, np.int64]
UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
BF16 = ml_dtypes.bfloat16


def one(operator: str, *arrays: Any, out: Any = None, **options: Any) -> Any:
    given_ = [np.asarray(array) for array in arrays]
    type_ = np_dtype_to_tensor_dtype(np.dtype(out) if out is not None else given_[0].dtype)
    (found,) = applied(operator, given_, [type_], **options)
    return found


def same(found: Any, expected: Any) -> None:
    """Demand equal numbers of equal signs, that of 0 too."""
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    real = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[real]), np.signbit(expected[real]))


SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.5, NAN, INF, -INF, 6e-8, -6e-8, 1000.5, -1000.5]


@pytest.mark.parametrize("type_", FLOATS)
@pytest.mark.parametrize(
    ("operator", "function"),
    [("Ceil", np.ceil), ("Floor", np.floor), ("Round", np.rint), ("Sign", np.sign), ("Abs", np.abs)],
)
def test_steps_keep_signs(operator: str, function: Callable[[Any], Any], type_: Any) -> None:
    x = np.array(SPECIAL, type_)
    expected = function(x)
    if operator == "Sign":
        expected = np.where(x == 0, type_(0), expected)
    same(one(operator, x), expected)


@pytest.mark.parametrize("type_", [*FLOATS, BF16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn])
def test_nan_and_infinity_are_found(type_: Any) -> None:
    with np.errstate(all="ignore"):
        x = np.array([NAN, INF, -INF, 0.0, 1.0]).astype(type_)
        wide = x.astype(np.float64)
    assert one("IsNaN", x, out=np.bool_).tolist() == np.isnan(wide).tolist()
    assert one("IsInf", x, out=np.bool_).tolist() == np.isinf(wide).tolist()
    positive = one("IsInf", x, out=np.bool_, detect_negative=0).tolist()
    assert positive == (np.isinf(wide) & (wide > 0)).tolist()
    assert one("IsInf", x, out=np.bool_, detect_positive=0, detect_negative=0).tolist() == [False] * 5


@pytest.mark.parametrize("type_", SIGNED)
def test_the_smallest_integer(type_: Any) -> None:
    low, high = np.iinfo(type_).min, np.iinfo(type_).max
    x = np.array([low, low + 1, -1, 0, 1, high], type_)
    assert one("Sign", x).tolist() == [-1, -1, -1, 0, 1, 1]
    assert one("Abs", x).tolist() == [low, high, 1, 0, 1, high]
    assert one("Neg", x).tolist() == [low, high, 1, 0, -1, -high]
    assert one("Div", x[[0, 0, 5]], np.array([-1, 1, -1], type_)).tolist() == [low, low, -high]
    assert one("Mod", x[[0, 0, 5]], np.array([-1, 3, -3], type_)).tolist() == [0, low % 3, high % -3]
    fmod = one("Mod", x[[0, 0, 5]], np.array([-1, 3, -3], type_), fmod=1)
    assert fmod.tolist() == [0, int(math.fmod(low, 3)) if low > -(2**40) else -(2**63 % 3), high % 3]
    assert one("ArgMin", x, out=np.int64, axis=0).tolist() == [0]
    assert one("ArgMax", x, out=np.int64, axis=0).tolist() == [5]


@pytest.mark.parametrize("type_", UNSIGNED)
def test_integers_without_a_sign(type_: Any) -> None:
    high = np.iinfo(type_).max
    x = np.array([0, 1, high // 2 + 1, high], type_)
    assert one("Sign", x).tolist() == [0, 1, 1, 1]
    assert one("Mod", x, np.array([3, 3, 3, 10], type_), fmod=1).tolist() == [
        0,
        1,
        (high // 2 + 1) % 3,
        high % 10,
    ]
    assert one("ArgMin", x, out=np.int64, axis=0).tolist() == [0]
    assert one("Max", x, x[::-1].copy()).tolist() == [high, high // 2 + 1, high // 2 + 1, high]


@pytest.mark.parametrize("type_", FLOATS)
def test_remainders_have_the_sign_of_what_is_divided(type_: Any) -> None:
    x = np.array([5.5, -5.5, 0.0, -0.0, -3.0, 3.0, -0.0, 5.0, INF, NAN, 1.0, -1.0], type_)
    y = np.array([3.0, 3.0, 2.0, 2.0, 3.0, -3.0, NAN, INF, 2.0, 2.0, 0.0, INF], type_)
    with np.errstate(all="ignore"):
        same(one("Mod", x, y, fmod=1), np.fmod(x, y))


INT64 = st.integers(-(2**63), 2**63 - 1)


def wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


@settings(max_examples=60, deadline=None)
@given(INT64, INT64)
def test_int64_is_exact(a: int, b: int) -> None:
    x, y = np.array([a]), np.array([b])
    assert one("Add", x, y).tolist() == [wrapped(a + b)]
    assert one("Sub", x, y).tolist() == [wrapped(a - b)]
    assert one("Mul", x, y).tolist() == [wrapped(a * b)]
    if b:
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        assert one("Div", x, y).tolist() == [wrapped(quotient)]
        assert one("Mod", x, y).tolist() == [a % b]
        assert one("Mod", x, y, fmod=1).tolist() == [a - quotient * b]
    assert one("Less", x, y, out=np.bool_).tolist() == [a < b]
    assert one("Max", x, y).tolist() == [max(a, b)]
    assert one("BitwiseXor", x, y).tolist() == [a ^ b]


def test_int64_products_sums_and_powers_beyond_a_double() -> None:
    big = np.array([[2**53 + 1, 3], [2**40 + 1, 2**21 + 1]])
    assert one("MatMul", big, big).tolist() == [
        [wrapped(sum(int(big[i, k]) * int(big[k, j]) for k in range(2))) for j in range(2)] for i in range(2)
    ]
    row = np.array([2**62, 2**53 + 1, -1])
    (total,) = applied("ReduceSum", [row], [T.INT64], keepdims=0)
    assert int(total) == 2**62 + 2**53
    (product,) = applied("ReduceProd", [np.array([2**31 + 1, 2**31 - 1])], [T.INT64], keepdims=0)
    assert int(product) == 2**62 - 1
    assert one("CumSum", row, np.array(0)).tolist() == [2**62, 2**62 + 2**53 + 1, 2**62 + 2**53]
    assert one("Pow", np.array([3, 2**31 + 1, -7]), np.array([39, 2, 21])).tolist() == [
        3**39, (2**31 + 1) ** 2, (-7) ** 21,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [
        (np.array([2, -1, 1], np.int32), np.array([-1, -3, -2**40], np.int64), [0, -1, 1]),
        (np.array([3], np.int32), np.array([2**32], np.int64), [pow(3, 2**32, 2**32)]),
        (np.array([2**53 + 1], np.int64), np.array([1.0], np.float32), [2**53]),
        (np.array([10], np.int64), np.array([15.0], np.float32), [10**15]),
        (np.array([-1.0], np.float32), np.array([2**24 + 1], np.int64), [-1.0]),
        (np.array([2.0, 3.0], np.float16), np.array([3, 2], np.uint8), [8.0, 9.0]),
        (np.array([2.0, -2.0], BF16), np.array([0.5, 3.0], np.float32), [1.4140625, -8.0]),
        (np.array([2.0], np.float32), np.array([0.5], BF16), [float(np.float32(math.sqrt(2)))]),
    ],
)  # fmt: skip
def test_powers_of_mixed_types(base: Any, exponent: Any, expected: list[float]) -> None:
    signed = base.dtype == np.int32 and expected[0] >= 2**31
    got = one("Pow", base, exponent)
    assert got.dtype == base.dtype
    assert got.astype(np.float64 if base.dtype.kind not in "iu" else np.int64).tolist() == [
        each - 2**32 if signed else each for each in expected
    ]


@pytest.mark.parametrize("type_", [*UNSIGNED, *SIGNED])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts(type_: Any, direction: str) -> None:
    bits, limits = np.dtype(type_).itemsize * 8, np.iinfo(type_)
    values = [limits.min, limits.min + 1, limits.max, 0, 1, 5, limits.max // 3, -1 if limits.min else 1]
    steps = [0, 1, 2, bits - 1, bits, 100]
    x, y = (
        np.array(side, type_).reshape(-1)
        for side in zip(*[(v, s) for v in values for s in steps], strict=True)
    )
    exact = []
    for value, step in zip(x.tolist(), y.tolist(), strict=True):
        moved = (value << step if step < bits else 0) if direction == "LEFT" else value >> step
        moved %= 1 << bits
        exact.append(moved - (1 << bits) if limits.min and moved >> (bits - 1) else moved)
    assert one("BitShift", x, y, direction=direction).tolist() == exact


SMALL = [10.0**-power for power in range(1, 8)]
ACCURATE: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "Asinh": (np.arcsinh, [*SMALL, 1.0, 3.0, 50.0, 1e4, 1e30]),
    "Sinh": (np.sinh, [*SMALL, 0.99, 1.01, 10.0, 88.9, 89.3]),
    "Atanh": (np.arctanh, [*SMALL, 0.5, 0.9, 0.999, 1.0]),
    "Acosh": (np.arccosh, [1.0, *(1 + x for x in SMALL), 2.0, 1e4, 1e30, 0.5]),
    "Cosh": (np.cosh, [*SMALL, 1.0, 10.0, 89.3]),
    "Asin": (np.arcsin, [*SMALL, 0.5, 0.9999, 1.0, 1.5]),
    "Acos": (np.arccos, [*SMALL, 0.5, 0.9999, 1.0, 1.5]),
}


@pytest.mark.parametrize("type_", FLOATS)
@pytest.mark.parametrize("operator", ACCURATE)
def test_functions_are_accurate_to_a_few_units(operator: str, type_: Any) -> None:
    function, points = ACCURATE[operator]
    with np.errstate(all="ignore"):
        x = np.array([*points, *(-point for point in points), 0.0, -0.0, INF, -INF, NAN], type_)
        expected = function(x.astype(np.longdouble)).astype(type_)
        got = one(operator, x)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
    unit = 4 * np.finfo(type_).eps
    np.testing.assert_allclose(got, expected, rtol=unit, atol=float(np.finfo(type_).smallest_subnormal))
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]))


def test_bfloat16_is_computed_with_in_32_bits_and_rounded_once() -> None:
    rng = np.random.default_rng(8)
    x, y = (rng.normal(size=(4, 64)).astype(BF16) for _ in range(2))
    wide = [side.astype(np.float32) for side in (x, y)]
    assert one("Add", x, y).tobytes() == (wide[0] + wide[1]).astype(BF16).tobytes()
    (total,) = applied("ReduceSum", [x], [T.BFLOAT16], keepdims=0)
    assert abs(float(total) - float(wide[0].sum())) <= abs(float(wide[0].sum())) / 256
    product = one("MatMul", x, np.ascontiguousarray(y.T)).astype(np.float32)
    np.testing.assert_allclose(product, wide[0] @ wide[1].T, rtol=1 / 256)
    assert one("Greater", x, y, out=np.bool_).tolist() == (wide[0] > wide[1]).tolist()
    assert one("Where", x > y, x, y, out=BF16).tobytes() == np.where(x > y, x, y).tobytes()
    assert one("Transpose", x).tobytes() == np.ascontiguousarray(x.T).tobytes()


def test_outputs_keep_their_own_types_beside_bfloat16() -> None:
    rng = np.random.default_rng(9)
    x = rng.normal(size=(2, 3, 4)).astype(BF16)
    scale, bias = np.ones(4, BF16), np.zeros(4, BF16)
    y, average, inverse = applied("LayerNormalization", [x, scale, bias], [T.BFLOAT16, T.FLOAT, T.FLOAT])
    assert [each.dtype for each in (y, average, inverse)] == [np.dtype(BF16), np.float32, np.float32]
    np.testing.assert_allclose(average[..., 0], x.astype(np.float32).mean(-1), rtol=1e-5, atol=1e-6)
    wide = x.astype(np.float32)
    statistics = [np.ones(3, BF16), np.zeros(3, BF16), np.zeros(3, BF16), np.ones(3, BF16)]
    (found,) = applied("BatchNormalization", [wide, *statistics], [T.FLOAT])
    np.testing.assert_allclose(found, wide, rtol=1e-4)

"""Quantised operators: against ONNX Runtime, whole numbers by whole numbers, and what types make hard."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx.helper import np_dtype_to_tensor_dtype

from libs.common.errors import Invalid
from services.engine.testing import applied, model_of

F32 = np.float32
RANGES = {
    ml_dtypes.int2: (-2, 1), ml_dtypes.uint2: (0, 3), ml_dtypes.int4: (-8, 7), ml_dtypes.uint4: (0, 15),
    np.int8: (-128, 127), np.uint8: (0, 255), np.int16: (-32768, 32767), np.uint16: (0, 65535),
}  # fmt: skip


def one(operator: str, arrays: list[Any], type_: Any, **options: Any) -> Any:
    (found,) = applied(operator, arrays, [np_dtype_to_tensor_dtype(np.dtype(type_))], **options)
    return found


def runtime(operator: str, arrays: list[Any], type_: Any, **options: Any) -> Any:
    model = model_of(operator, arrays, [np_dtype_to_tensor_dtype(np.dtype(type_))], **options)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(
        None, {f"i{i}": np.asarray(array) for i, array in enumerate(arrays) if array is not None}
    )[0]


@pytest.mark.parametrize("type_", RANGES)
@pytest.mark.parametrize("places", ["all", "axis", "blocks"])
def test_there_and_back(type_: Any, places: str) -> None:
    """Halves go to the even of two, what is beyond the type becomes its end, everything by whole numbers."""
    rng, (low, high) = np.random.default_rng(1), RANGES[type_]
    x = (rng.integers(3 * low - 9, 3 * high + 9, (4, 6, 3)) / 2).astype(F32)
    shape, options = {"all": ((), {}), "axis": ((6,), {"axis": 1}), "blocks": ((4, 2, 3), {"axis": -2})}[
        places
    ]
    if places == "blocks":
        options["block_size"] = 4
    scale = rng.choice([0.5, 1.0, 2.0], shape).astype(F32)
    zero = rng.integers(low, high + 1, shape).astype(type_)
    each = [
        np.repeat(v, 4, 1)[:, :6] if places == "blocks" else v[:, None] if places == "axis" else v
        for v in (scale, zero.astype(np.int64))
    ]
    wanted = np.clip(np.rint(x / each[0]).astype(np.int64) + each[1], low, high)
    got = one("QuantizeLinear", [x, scale, zero], type_, **options)
    np.testing.assert_array_equal(got.astype(np.int64), wanted)
    back = one("DequantizeLinear", [got, scale, zero], F32, **options)
    np.testing.assert_array_equal(back, ((wanted - each[1]) * each[0]).astype(F32))


@pytest.mark.parametrize("type_", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn])
def test_to_floats_of_few_bits(type_: Any) -> None:
    x = np.array([0.0, 1.0, 3.0, -5.0, 1e6, -1e6], F32)
    largest = float(ml_dtypes.finfo(type_).max)
    got = one("QuantizeLinear", [x, F32(2), np.zeros((), type_)], type_)
    assert got.astype(F32).tolist() == [0.0, 0.5, 1.5, -2.5 if largest > 6 else -2.0, largest, -largest]


@pytest.mark.parametrize(("number", "type_"), [(T.INT4, ml_dtypes.int4), (T.UINT16, np.uint16)])
def test_the_type_may_be_an_attribute(number: int, type_: Any) -> None:
    x = np.array([-3.0, 0.5, 1.5], F32)
    got = one("QuantizeLinear", [x, F32(1)], type_, output_dtype=number)
    assert got.dtype == type_
    assert got.astype(int).tolist() == [max(-3, RANGES[type_][0]), 0, 2]


def test_an_attribute_and_a_zero_point_of_two_types_are_refused() -> None:
    with pytest.raises(Invalid, match=r"'output_dtype' says int4, but the zero point is uint8\[\]"):
        one("QuantizeLinear", [np.ones(2, F32), F32(1), np.uint8(0)], np.uint8, output_dtype=T.INT4)
    with pytest.raises(Invalid, match="would be of type int32; use an integer of 2 to 16 bits"):
        one("QuantizeLinear", [np.ones(2, F32), F32(1)], np.int32, output_dtype=T.INT32)


def test_blocks_that_dont_fit_are_refused() -> None:
    x, scale = np.ones((4, 6), F32), np.ones((4, 2), F32)
    with pytest.raises(Invalid, match=r"don't fit .* in blocks of 0"):
        one("QuantizeLinear", [x, scale, np.zeros((4, 2), np.uint8)], np.uint8)
    with pytest.raises(Invalid, match="must be equal"):
        one("QuantizeLinear", [x, scale, np.zeros((4, 2), np.uint8)], np.uint8, block_size=7)


def test_the_scale_says_how_the_quotient_is_rounded() -> None:
    """100.7 is 100.5 in bfloat16, a half, and 100.6875 in float16."""
    x = np.array([100.7], F32)
    for type_, expected in ((F32, 101), (np.float16, 101), (ml_dtypes.bfloat16, 100)):
        assert one("QuantizeLinear", [x, np.ones((), type_), np.uint8(0)], np.uint8).tolist() == [expected]
    narrow = [x, F32(1), np.uint8(0)]
    assert one("QuantizeLinear", narrow, np.uint8, precision=T.BFLOAT16).tolist() == [100]
    assert one("QuantizeLinear", narrow, np.uint8, precision=T.FLOAT).tolist() == [101]


def test_differences_of_32_bits_dont_wrap() -> None:
    x, zero = np.array([-(2**31), 2**31 - 1], np.int32), np.int32(1 << 30)
    got = one("DequantizeLinear", [x, F32(1), zero], F32)
    assert got.tolist() == [float(-(2**31) - 2**30), float(2**30)]


@pytest.mark.parametrize("number", [T.FLOAT16, T.BFLOAT16, T.FLOAT])
def test_the_type_of_real_numbers_may_be_an_attribute(number: int) -> None:
    types = {T.FLOAT16: np.float16, T.BFLOAT16: ml_dtypes.bfloat16, T.FLOAT: F32}
    got = one("DequantizeLinear", [np.array([3, -2], np.int8), F32(0.5)], types[number], output_dtype=number)
    assert got.astype(F32).tolist() == [1.5, -1.0]


VECTORS = st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20)


@settings(max_examples=40, deadline=None)
@given(VECTORS)
def test_scales_that_data_decide(values: list[float]) -> None:
    x = np.array(values, F32)
    types = [T.UINT8, T.FLOAT, T.UINT8]
    found = applied("DynamicQuantizeLinear", [x], types)
    model = model_of("DynamicQuantizeLinear", [x], types, opset=11)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    y, scale, zero = session.run(None, {"i0": x})
    if not x.any():
        scale = found[1]  # ONNX Runtime says 1, the specification 0; nothing else depends on it
    np.testing.assert_array_equal(found[1], scale)
    np.testing.assert_array_equal(found[2], zero)
    np.testing.assert_array_equal(found[0], y)


def quantised(total: int, factor: Fraction, zero: int, low: int, high: int) -> int:
    return min(max(round(total * factor) + zero, low), high)


@pytest.mark.parametrize(
    ("a", "b", "y"),
    [(np.uint8, np.uint8, np.uint8), (np.uint8, np.int8, np.int8), (np.int8, np.int8, np.uint8)],
)
def test_products_are_exact(a: Any, b: Any, y: Any) -> None:
    """Scales are powers of two, so that fractions say what comes out, halves included."""
    rng = np.random.default_rng(3)
    left = rng.integers(*RANGES[a], (2, 4, 300), endpoint=True).astype(a)
    right = rng.integers(*RANGES[b], (300, 5), endpoint=True).astype(b)
    zeros = [np.array(rng.integers(*RANGES[t]), t) for t in (a, b, y)]
    scales = [F32(2**-6), F32(2**-5), F32(2**-1)]
    arrays = [left, scales[0], zeros[0], right, scales[1], zeros[1], scales[2], zeros[2]]
    exact = (left.astype(np.int64) - int(zeros[0])) @ (right.astype(np.int64) - int(zeros[1]))
    expected = [quantised(int(t), Fraction(1, 1024), int(zeros[2]), *RANGES[y]) for t in exact.reshape(-1)]
    got = one("QLinearMatMul", arrays, y)
    assert got.reshape(-1).tolist() == expected
    np.testing.assert_array_equal(one("QLinearMatMul", arrays, y, symbolic=range(8)), got)


def test_sums_beyond_what_float32_has_are_exact() -> None:
    """2^24 + 1 is no float32."""
    left, right = np.full((1, 260), 255, np.uint8), np.full((260, 1), 255, np.uint8)
    left[0, 0] = 254
    (got,) = one("MatMulInteger", [np.tile(left, (1, 2)), np.tile(right, (2, 1))], np.int32)
    assert got.tolist() == [2 * (259 * 255 + 254) * 255]
    assert got.tolist()[0] > 1 << 24


def test_halves_are_rounded_before_the_zero_point_is_added() -> None:
    one_ = np.ones((1, 1), np.uint8)
    arrays = [one_, F32(0.5), np.uint8(0), one_, F32(1), np.uint8(0), F32(1), np.uint8(3)]
    assert one("QLinearMatMul", arrays, np.uint8).tolist() == [[3]]  # 0.5 → 0, not 3.5 → 4
    x = np.ones((1, 1, 1), np.uint8)
    arrays = [x, F32(0.5), np.uint8(0), x, F32(1), np.uint8(0), F32(1), np.uint8(3)]
    assert one("QLinearConv", arrays, np.uint8).tolist() == [[[3]]]
    np.testing.assert_array_equal(
        one("QLinearConv", arrays, np.uint8), runtime("QLinearConv", arrays, np.uint8, opset=10)
    )


def test_rows_and_columns_have_scales_of_their_own() -> None:
    rng = np.random.default_rng(4)
    left, right = (
        rng.integers(0, 256, (3, 8)).astype(np.uint8),
        rng.integers(-128, 128, (8, 4)).astype(np.int8),
    )
    rows, columns = np.array([0.5, 1, 2], F32), np.array([1, 2, 0.25, 0.5], F32)
    zeros = [np.array([1, 2, 3], np.uint8), np.array([0, -1, 4, 9], np.int8)]
    arrays = [left, rows, zeros[0], right, columns, zeros[1], F32(64), np.uint8(128)]
    exact = (left.astype(np.int64) - zeros[0][:, None]) @ (right.astype(np.int64) - zeros[1])
    real = exact * rows[:, None].astype(float) * columns / 64
    np.testing.assert_array_equal(
        one("QLinearMatMul", arrays, np.uint8), np.clip(np.rint(real) + 128, 0, 255)
    )


@pytest.mark.parametrize("type_", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_products_of_eight_bit_floats(type_: Any) -> None:
    zero, largest = np.zeros((), type_), float(ml_dtypes.finfo(type_).max)
    left, right = np.array([[1, 2, 3]]).astype(type_), np.array([[4], [0.5], [largest]]).astype(type_)
    arrays = [left, F32(1), zero, right, F32(1), zero, F32(1), zero]
    assert one("QLinearMatMul", arrays, type_).astype(F32).tolist() == [[largest]]
    arrays[6] = F32(16)
    expected = np.array((5 + 3 * largest) / 16).astype(type_)
    assert one("QLinearMatMul", arrays, type_).tolist() == [[expected]]


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("weights", [np.int8, np.uint8])
def test_convolutions_are_those_of_onnx_runtime(weights: Any, group: int) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (2, 4, 7, 6)).astype(np.uint8)
    # Without VNNI, ONNX Runtime adds two products of full range in 16 bits, and cuts them off.
    w = rng.integers(*RANGES[weights], (6, 4 // group, 3, 2), endpoint=True).astype(weights)
    if weights is np.int8:
        w //= 2
    scales = rng.choice([0.5, 0.25, 0.125], 6).astype(F32)
    zeros = np.full(6, 0 if weights is np.int8 else 128, weights)
    bias = rng.integers(-5000, 5000, 6).astype(np.int32)
    arrays = [x, F32(0.5), np.uint8(7), w, scales, zeros, F32(16), np.uint8(100), bias]
    options = {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2], "group": group}
    got = one("QLinearConv", arrays, np.uint8, **options)
    np.testing.assert_array_equal(got, runtime("QLinearConv", arrays, np.uint8, opset=10, **options))
    if weights is np.uint8:  # which is what ONNX Runtime has
        sums = [x, w, np.uint8(7), np.uint8(128)]
        got = one("ConvInteger", sums, np.int32, **options)
        np.testing.assert_array_equal(got, runtime("ConvInteger", sums, np.int32, opset=10, **options))

"""Cast, CastLike and BitCast by ONNX's tables, through all stages."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto as T

from libs.common.errors import Invalid
from services.engine.testing import applied

MAX = {"FLOAT8E4M3FN": 448.0, "FLOAT8E4M3FNUZ": 240.0, "FLOAT8E5M2": 57344.0, "FLOAT8E5M2FNUZ": 57344.0}
NAN, INF = math.nan, math.inf


def cast(x: Any, to: str, **attributes: Any) -> Any:
    (found,) = applied("Cast", [np.asarray(x)], [T.DataType.Value(to)], to=T.DataType.Value(to), **attributes)
    return found


def wide(x: Any) -> list[float]:
    with np.errstate(all="ignore"):
        values: list[float] = x.astype(np.float64).tolist()
    return values


@pytest.mark.parametrize(
    "source", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]
)
@pytest.mark.parametrize("to", MAX)
def test_eight_bits_saturate(to: str, source: Any) -> None:
    if source is ml_dtypes.float8_e5m2 and to == "FLOAT8E5M2":
        return  # nothing is converted
    with np.errstate(all="ignore"):
        values = np.array([0, -0.0, NAN, INF, -INF, 57344, -57344, 1.0, -0.5]).astype(source)
    got = wide(cast(values, to))
    expected = [0.0, -0.0, NAN, MAX[to], -MAX[to], min(57344, MAX[to]), max(-57344, -MAX[to]), 1.0, -0.5]
    np.testing.assert_array_equal(got, expected)
    assert math.copysign(1, got[1]) == (1 if to.endswith("UZ") else -1)


@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("to", MAX)
def test_eight_bits_that_dont_saturate(to: str, source: Any) -> None:
    with np.errstate(all="ignore"):
        values = np.array([0, NAN, INF, -INF, 1.0]).astype(source)
    ends = [INF, -INF] if to == "FLOAT8E5M2" else [NAN, NAN]
    np.testing.assert_array_equal(wide(cast(values, to, saturate=0)), [0.0, NAN, *ends, 1.0])


@pytest.mark.parametrize("to", MAX)
def test_integers_saturate_too(to: str) -> None:
    for type_ in (np.int32, np.int64, np.uint64):
        top = np.iinfo(type_).max
        assert wide(cast(np.array([top, 3], type_), to)) == [MAX[to], 3.0]


LOW, HIGH = 2.0**-127, 2.0**127
E8M0 = {
    ("up", 1): (
        [0.0, 1e-40, LOW, 1.0, 1.1, 1.5, 2.0, 1.2 * HIGH, INF, NAN],
        [LOW, LOW, LOW, 1, 2, 2, 2, HIGH, HIGH, NAN],
    ),
    ("down", 1): ([0.0, LOW, 1.0, 1.99, 1.2 * HIGH, INF, NAN], [LOW, LOW, 1, 1, HIGH, HIGH, NAN]),
    ("nearest", 1): ([0.0, 1.4, 1.5, 1.6, 3.0, 1.9 * HIGH, INF, NAN], [LOW, 1, 2, 2, 4, HIGH, HIGH, NAN]),
    ("nearest", 0): (
        [0.0, LOW / 2, LOW, 1.5, 1.4 * HIGH, 1.5 * HIGH, INF, NAN],
        [NAN, NAN, LOW, 2, HIGH, NAN, NAN, NAN],
    ),
    ("up", 0): ([0.0, LOW, 1.1, 1.1 * HIGH, INF], [NAN, LOW, 2, NAN, NAN]),
}


@pytest.mark.parametrize(("mode", "saturate"), E8M0)
@pytest.mark.parametrize("source", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_powers_of_two(mode: str, saturate: int, source: Any) -> None:
    given, expected = E8M0[mode, saturate]
    with np.errstate(all="ignore"):
        values = np.array(given).astype(source)
    kept = [(v, e) for v, g, e in zip(values.tolist(), given, expected, strict=True) if v == g or g != g]
    got = cast(
        np.array([v for v, _ in kept]).astype(source), "FLOAT8E8M0", round_mode=mode, saturate=saturate
    )
    np.testing.assert_array_equal(wide(got), [e for _, e in kept])


def test_a_double_a_little_above_a_power_of_two_goes_up() -> None:
    assert wide(cast(np.array([1 + 2.0**-50]), "FLOAT8E8M0")) == [2.0]


def test_integers_become_powers_of_two() -> None:
    assert wide(cast(np.array([1, 3, 4, 1000], np.int64), "FLOAT8E8M0")) == [1, 4, 4, 1024]


def test_narrow_integers_wrap_and_widen() -> None:
    values = np.array([-9, -1, 7, 8, 200], np.int32)
    assert cast(values, "INT4").astype(int).tolist() == [7, -1, 7, -8, -8]
    assert cast(values, "UINT4").astype(int).tolist() == [7, 15, 7, 8, 8]
    assert cast(values, "INT2").astype(int).tolist() == [-1, -1, -1, 0, 0]
    assert cast(values, "UINT2").astype(int).tolist() == [3, 3, 3, 0, 0]
    held = np.array([-8, -1, 7]).astype(ml_dtypes.int4)
    assert cast(held, "UINT4").astype(int).tolist() == [8, 15, 7]
    assert cast(held, "INT64").tolist() == [-8, -1, 7]
    assert cast(held, "UINT16").tolist() == [65528, 65535, 7]
    assert wide(cast(held, "FLOAT4E2M1")) == [-6.0, -1.0, 6.0]


def test_to_and_from_bool() -> None:
    with np.errstate(all="ignore"):
        odd = np.array([0, -0.0, NAN, 0.25, -INF])
        for type_ in (np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
            assert cast(odd.astype(type_), "BOOL").tolist() == [False, False, True, True, True]
    assert cast(np.array([0, 1, -1]).astype(ml_dtypes.int2), "BOOL").tolist() == [False, True, True]
    assert wide(cast(np.array([True, False]), "BFLOAT16")) == [1.0, 0.0]
    assert wide(cast(np.array([True, False]), "UINT2")) == [1.0, 0.0]


def test_large_integers_stay_exact() -> None:
    values = np.array([2**63 - 1, -(2**63), 2**53 + 1, 2**31], np.int64)
    assert cast(values, "UINT64").tolist() == [2**63 - 1, 2**63, 2**53 + 1, 2**31]
    assert cast(values, "INT32").tolist() == [-1, 0, 1, -(2**31)]
    assert cast(values, "INT64").tolist() == values.tolist()


def test_complex_numbers_arent_converted() -> None:
    with pytest.raises(Invalid, match=r"the_Cast \(Cast\): complex64\[2\] can't be converted to float32"):
        cast(np.ones(2, np.complex64), "FLOAT")


def test_like_another() -> None:
    like = np.zeros((0,), ml_dtypes.float8_e4m3fn)
    (found,) = applied("CastLike", [np.array([1000.0, 2.0], np.float32), like], [T.FLOAT8E4M3FN])
    assert found.dtype == like.dtype
    assert wide(found) == [448.0, 2.0]


def bits(x: Any, to: int) -> Any:
    (found,) = applied("BitCast", [np.asarray(x)], [to], to=to)
    return found


def test_the_same_bits() -> None:
    assert bits(np.float32([1.0, -0.0]), T.INT32).tolist() == [0x3F800000, -(1 << 31)]
    assert bits(np.array(1.0, ml_dtypes.bfloat16), T.UINT16).tolist() == 0x3F80
    assert bits(np.complex64([1 - 2j]), T.UINT64).tolist() == [0xC0000000_3F800000]
    assert bits(np.array([-1, 7]).astype(ml_dtypes.int4), T.UINT4).astype(int).tolist() == [15, 7]
    assert bits(np.array([0, 1, 2], np.uint8), T.BOOL).tobytes() == b"\0\1\1"
    assert bits(np.array([True, False]), T.INT8).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("type_", "to"), [(np.int8, T.INT4), (np.int32, T.INT64), (ml_dtypes.int4, T.INT2), (np.float64, T.FLOAT)]
)
def test_bits_of_other_widths_are_refused(type_: Any, to: int) -> None:
    with pytest.raises(Invalid, match=r"can't be seen as .*: elements are of other widths"):
        bits(np.zeros(1).astype(type_), to)

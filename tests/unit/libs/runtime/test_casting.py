"""Conversion of every type into every other, against exact arithmetic."""

import bisect
import math
import sys
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.runtime.elements import family
from libs.runtime.kernels import casting
from libs.runtime.numpy_types import DTYPES, _Types
from libs.runtime.plan import DataType

D = DataType
NUMBERS = [type_ for type_ in DataType if type_ is not D.STRING and family(type_) != "c"]
FLOATING = [
    D.FLOAT16, D.FLOAT32, D.FLOAT64, D.BFLOAT16, D.FLOAT8E4M3FN, D.FLOAT8E4M3FNUZ, D.FLOAT8E5M2,
    D.FLOAT8E5M2FNUZ, D.FLOAT8E8M0, D.FLOAT4E2M1,
]  # fmt: skip
NARROW = [type_ for type_ in FLOATING if type_ not in (D.FLOAT32, D.FLOAT64, D.FLOAT8E8M0)]
WHOLE = [type_ for type_ in NUMBERS if type_ not in FLOATING and type_ is not D.BOOL]
WIDTH = {D.INT4: 4, D.UINT4: 4, D.INT2: 2, D.UINT2: 2}


def convert(value: Any, type_: DataType) -> Any:
    """Run the kernel on a view that isn't dense, and the plain form: both must agree to the bit."""
    source = np.zeros((value.size, 3), value.dtype)
    source[:, 1] = value.reshape(-1)
    output = np.zeros(value.size, DTYPES[type_])
    with np.errstate(all="ignore"):
        casting.build(source[:, 1], output)()
        plain = casting.converted(value.reshape(-1), DTYPES[type_])
    assert output.tobytes() == plain.tobytes()
    return output


@cache
def finite(type_: DataType) -> dict[Fraction, int]:
    """Return every finite number of a type of up to 16 bits that isn't below 0, and its bits."""
    bits = 16 if DTYPES[type_].itemsize == 2 else 4 if type_ is D.FLOAT4E2M1 else 8
    patterns = np.arange(1 << (bits - 1), dtype=np.uint16 if bits == 16 else np.uint8)
    with np.errstate(all="ignore"):
        values = patterns.view(DTYPES[type_]).astype(np.float64)
    return {Fraction(float(v)): int(p) for v, p in zip(values, patterns, strict=True) if np.isfinite(v)}


@cache
def ordered_numbers(type_: DataType) -> list[Fraction]:
    return sorted(finite(type_))


def rounded(number: Fraction, type_: DataType) -> Fraction | None:
    """Return the nearest finite number of a type, of two as near the one with even bits; None beyond."""
    table, ordered = finite(type_), ordered_numbers(type_)
    size = abs(number)
    at = bisect.bisect_left(ordered, size)
    if at == len(ordered):
        step = ordered[-1] - ordered[-2]
        odd = table[ordered[-1]] % 2
        over = size - ordered[-1]
        if over > step / 2 or (over == step / 2 and odd):
            return None
        found = ordered[-1]
    else:
        near = [ordered[at], ordered[at - 1]] if at else [ordered[at]]
        found = min(near, key=lambda each: (abs(each - size), table[each] % 2))
    return found if number >= 0 else -found


def check(number: Fraction, got: float, type_: DataType) -> None:
    expected = rounded(number, type_)
    if expected is None:
        largest = ordered_numbers(type_)[-1]
        # float4 has nothing beyond its largest number; others have infinity, or NaN alone.
        assert not math.isfinite(got) or (type_ is D.FLOAT4E2M1 and abs(Fraction(got)) == largest)
    else:
        assert Fraction(got) == expected, (number, got, float(expected))


def around_halves(type_: DataType) -> list[float]:
    """Return numbers halfway between two of a type, and a little beside that."""
    ordered = ordered_numbers(type_)
    picked = [ordered[i] for i in range(0, len(ordered) - 1, max(1, len(ordered) // 60))]
    result = []
    for low in picked:
        middle = float((low + ordered[ordered.index(low) + 1]) / 2)
        beside = [middle, np.nextafter(middle, 0), np.nextafter(middle, 1e300), middle * (1 + 2**-40)]
        result += [float(each) for each in beside] + [-float(each) for each in beside]
    return result


@pytest.mark.parametrize("type_", NARROW)
def test_doubles_are_rounded_once(type_: DataType) -> None:
    values = [*around_halves(type_), 0.0, 1e-300, -1e-300, 1e300, float(ordered_numbers(type_)[-1])]
    got = convert(np.array(values), type_).astype(np.float64)
    for value, found in zip(values, got.tolist(), strict=True):
        check(Fraction(value), found, type_)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(NARROW), st.sampled_from([D.INT32, D.UINT32, D.INT64, D.UINT64]), st.data())
def test_long_integers_are_rounded_once(type_: DataType, source: DataType, data: st.DataObject) -> None:
    limits = np.iinfo(DTYPES[source])
    top = data.draw(st.integers(limits.min, limits.max))
    shift = data.draw(st.integers(0, 62))
    # Numbers close to those halfway between two of 8, 11 and 24 bits.
    near = [min(max((top >> shift << shift) + away, limits.min), limits.max) for away in (-1, 0, 1)]
    got = convert(np.array(near, DTYPES[source]), type_).astype(np.float64)
    for value, found in zip(near, got.tolist(), strict=True):
        check(Fraction(value), found, type_)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(NARROW),
    st.sampled_from(FLOATING),
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=20),
)
def test_between_floats(type_: DataType, source: DataType, values: list[float]) -> None:
    held = convert(np.array(values), source)
    got = convert(held, type_).astype(np.float64)
    for value, found in zip(held.astype(np.float64).tolist(), got.tolist(), strict=True):
        if math.isfinite(value):
            check(Fraction(value), found, type_)
        elif math.isnan(value):
            assert math.isnan(found) or type_ is D.FLOAT4E2M1


@pytest.mark.parametrize("source", WHOLE)
@pytest.mark.parametrize("type_", WHOLE)
def test_integers_lose_their_higher_bits(source: DataType, type_: DataType) -> None:
    bits = WIDTH.get(source, DTYPES[source].itemsize * 8)
    signed = source.name.startswith("INT")
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    values = sorted({low, low + 1, high - 1, high, 0, 1, min(high, 9), max(low, -9), min(high, 200)})
    held = np.array(values, np.int64 if signed else np.uint64).astype(DTYPES[source])
    width = WIDTH.get(type_, DTYPES[type_].itemsize * 8)
    expected = [value % (1 << width) for value in values]
    if type_.name.startswith("INT"):
        expected = [value - (1 << width) if value >> (width - 1) else value for value in expected]
    assert [int(each) for each in convert(held, type_)] == expected


@pytest.mark.parametrize("source", FLOATING)
@pytest.mark.parametrize("type_", WHOLE)
def test_fractions_are_cut_off(source: DataType, type_: DataType) -> None:
    values = [1.5, 0.5, 1.0] + ([-1.5, -0.5] if type_.name.startswith("INT") else [])
    if source is D.FLOAT8E8M0:
        values = [0.25, 0.5, 1.0]
    held = np.array(values).astype(DTYPES[source])
    expected = [math.trunc(float(each)) for each in held.astype(np.float64)]
    assert [int(each) for each in convert(held, type_)] == expected


def test_a_double_just_below_a_whole_number_is_cut_off() -> None:
    assert convert(np.array([7.9999999999, -7.9999999999]), D.INT4).astype(int).tolist() == [7, -7]


@pytest.mark.parametrize("source", NUMBERS)
def test_all_but_0_is_true(source: DataType) -> None:
    held = np.array([0, 1, 1]).astype(DTYPES[source])
    expected = [source is D.FLOAT8E8M0, True, True]  # which has no 0
    assert convert(held, D.BOOL).tolist() == expected
    if source in FLOATING and source not in (D.FLOAT4E2M1, D.FLOAT8E8M0):
        assert convert(np.array([-0.0, np.nan]).astype(DTYPES[source]), D.BOOL).tolist() == [False, True]
    if source is not D.FLOAT8E8M0:
        assert convert(np.array([True, False]), source).astype(np.float32).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("source", NUMBERS)
@pytest.mark.parametrize("type_", NUMBERS)
def test_every_pair_of_types_and_nothing_at_all(source: DataType, type_: DataType) -> None:
    assert convert(np.ones(1).astype(DTYPES[source]), type_).astype(np.float32).tolist() == [1.0]
    assert convert(np.ones(0).astype(DTYPES[source]), type_).size == 0


def test_long_arrays_are_converted_in_rounds() -> None:
    values = np.linspace(-300, 300, 50_001)
    got = convert(values, D.BFLOAT16)
    assert got.tobytes() == values.astype(np.float32).astype(DTYPES[D.BFLOAT16]).tobytes()


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    types = _Types()
    assert types[D.FLOAT32] == np.float32
    with pytest.raises(Invalid, match="type BFLOAT16 need the package ml_dtypes") as caught:
        types[D.BFLOAT16]
    assert caught.value.reason == "MISSING_PACKAGE"

"""Operators on strings."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Exhausted, Invalid
from libs.runtime.host import Limits, strings
from libs.runtime.kernels import DataFault
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import DataType

TEXTS = st.lists(st.text(max_size=8), max_size=12)


def array(*texts: str, shape: tuple[int, ...] | None = None) -> Any:
    made = np.empty(len(texts), np.object_)
    made[:] = texts
    return made if shape is None else made.reshape(shape)


def limits() -> Limits:
    return Limits(1 << 20)


@given(TEXTS, TEXTS)
def test_ranks_compare_as_strings_do_and_lead_back(one: list[str], other: list[str]) -> None:
    table, ranks, others = strings.rank([array(*one), array(*other)], limits())
    assert table.tolist() == sorted({*one, *other})
    assert strings.take([table, ranks], limits())[0].tolist() == one
    assert strings.take([table, others], limits())[0].tolist() == other
    assert ranks.dtype == np.int64


def test_shapes_stay() -> None:
    x = array("b", "a", "b", "c", shape=(2, 1, 2))
    table, ranks = strings.rank([x], limits())
    assert ranks.tolist() == [[[1, 0]], [[1, 2]]]
    assert strings.take([table, ranks], limits())[0].tolist() == x.tolist()
    assert strings.take([table, np.array(0)], limits())[0].shape == ()
    assert strings.case([x], limits(), integers=(1,))[0].tolist() == [[["B", "A"]], [["B", "C"]]]


@pytest.mark.parametrize("place", [-1, 2])
def test_a_place_outside_the_table_is_told(place: int) -> None:
    with pytest.raises(DataFault, match=f"strings are numbers {place} to {place} of a table of 2"):
        strings.take([array("a", "b"), np.array([place])], limits())


def test_concat_joins_pairs_of_one_shape() -> None:
    (joined,) = strings.concat([array("a", "", "ü"), array("b", "c", "")], limits())
    assert joined.tolist() == ["ab", "c", "ü"]
    with pytest.raises(DataFault, match=r"shapes \[1\] and \[2\]"):
        strings.concat([array("a"), array("b", "c")], limits())


def test_case_may_change_lengths() -> None:
    assert strings.case([array("Straße", "ŉ")], limits(), integers=(1,))[0].tolist() == ["STRASSE", "ʼN"]
    assert strings.case([array("ÀB")], limits(), integers=(0,))[0].tolist() == ["àb"]


@pytest.mark.parametrize(
    ("separator", "most", "pieces", "counts"),
    [
        ("", -1, [["a", "b", "c"], ["d", "", ""], ["", "", ""]], [3, 1, 0]),
        ("", 1, [["a", "b  c"], ["d", ""], ["", ""]], [2, 1, 0]),
        (" ", -1, [["", "a", "b", "", "c"], ["d", "", "", "", ""], ["", "", "", "", ""]], [5, 1, 0]),
        (" ", 0, [[" a b  c"], ["d"], [""]], [1, 1, 0]),
    ],
)
def test_split(separator: str, most: int, pieces: list[list[str]], counts: list[int]) -> None:
    texts = array(" a b  c", "d", "")
    found, numbers = strings.split([texts], limits(), integers=(most,), texts=(separator,))
    assert found.tolist() == pieces
    assert numbers.tolist() == counts


def test_split_of_nothing_has_no_pieces() -> None:
    found, numbers = strings.split([array(shape=(0, 2))], limits(), integers=(-1,), texts=(",",))
    assert found.shape == (0, 2, 0)
    assert numbers.shape == (0, 2)


def test_match_is_of_the_whole_text() -> None:
    found = strings.match([array("abc", "xabc", "abcx", "ac", "")], limits(), texts=("ab?c",))[0]
    assert found.tolist() == [True, False, False, True, False]


def test_match_takes_linear_time_where_others_take_exponential() -> None:
    """A backtracking engine would take 2^200 steps: this wouldn't end."""
    evil = array("a" * 200 + "b")
    assert strings.match([evil], limits(), texts=("(a|a)*(a|aa)+$",))[0].tolist() == [False]


def test_a_pattern_that_is_none_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataFault, match=r"'\(' is no regular expression"):
        strings.match([array("a")], limits(), texts=("(",))
    assert capfd.readouterr().err == ""


def test_a_package_that_isnt_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(Invalid, match="pip install google-re2") as caught:
        strings.match([array("a")], limits(), texts=("a",))
    assert caught.value.reason == "MISSING_PACKAGE"


@pytest.mark.parametrize("type_", [t for t in DataType if t <= DataType.FLOAT64])
def test_numbers_come_back_as_they_were(type_: DataType) -> None:
    dtype = DTYPES[type_]
    if dtype.kind == "b":
        values = np.array([True, False])
    elif dtype.kind in "iu":
        values = np.array([0, 1, np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    else:
        values = np.array([0.1, -2.5, np.inf, -np.inf, np.nan, np.finfo(dtype).max, 1 / 3], dtype)
    (texts,) = strings.cast([values], limits(), integers=(DataType.STRING,))
    assert all(isinstance(text, str) for text in texts)
    (back,) = strings.cast([texts], limits(), integers=(type_,))
    assert back.dtype == dtype
    assert np.array_equal(back, values, equal_nan=dtype.kind == "f")


def test_narrow_types_are_rounded_once() -> None:
    # Just above a tie of bfloat16, by less than float32 can tell.
    (found,) = strings.cast(
        [array(repr(1 + 2**-8 + 2**-30), "1.00390625", "nan")], limits(), integers=(DataType.BFLOAT16,)
    )
    assert found.dtype == ml_dtypes.bfloat16
    assert found.astype(float).tolist()[:2] == [1 + 2**-7, 1.0]
    (small,) = strings.cast([array("-8", "7")], limits(), integers=(DataType.INT4,))
    assert small.astype(int).tolist() == [-8, 7]


@pytest.mark.parametrize(
    ("text", "type_", "says"),
    [
        ("x", DataType.FLOAT32, "'x' is no number of type float32"),
        ("1.5", DataType.INT32, "'1.5' is no number of type int32"),
        ("1_000", DataType.INT32, "is no number"),
        ("١٢", DataType.INT32, "is no number"),
        ("", DataType.BOOL, "is no number"),
        ("128", DataType.INT8, "'128' is not in -128 to 127, the range of int8"),
        ("-1", DataType.UINT64, "the range of uint64"),
        ("8", DataType.INT4, "'8' is not in -8 to 7, the range of int4"),
        ("9" * 5000, DataType.INT64, "is no number"),
    ],
)
def test_what_is_no_number_is_told(text: str, type_: DataType, says: str) -> None:
    with pytest.raises(DataFault, match=says):
        strings.cast([array(text)], limits(), integers=(type_,))


@pytest.mark.parametrize(
    "apply",
    [
        lambda free: strings.cast([np.zeros(1000, np.int8)], free, integers=(DataType.STRING,)),
        lambda free: strings.cast([array(*["1"] * 1000)], free, integers=(DataType.INT8,)),
        lambda free: strings.rank([array(*["a"] * 1000)], free),
        lambda free: strings.take([array("a"), np.zeros(1000, np.int64)], free),
        lambda free: strings.concat([array(*["a"] * 100)] * 2, free),
        lambda free: strings.case([array("a" * 5000)], free, integers=(0,)),
        lambda free: strings.split([array("," * 200)], free, integers=(-1,), texts=(",",)),
        lambda free: strings.split([array("a" * 200)], free, integers=(-1,), texts=("",)),
        lambda free: strings.match([array(*["a"] * 1000)], free, texts=("a",)),
    ],
)
def test_memory_and_work_are_bounded_before_they_are_taken(apply: Any) -> None:
    with pytest.raises(Exhausted) as caught:
        apply(Limits(4_000))
    assert caught.value.reason == "TOO_MUCH_MEMORY"
    with pytest.raises(Exhausted) as caught:
        apply(Limits(1 << 30, 4_000))
    assert caught.value.reason == "TOO_MUCH_WORK"
    apply(Limits(1 << 30, 1 << 30))

"""Edges around arrays, against numpy's in every mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.compute import matrix
from libs.compute.testing import assert_same

MODES: list[tuple[Any, dict[str, Any]]] = [
    ("constant", {}),
    ("constant", {"constant_values": 3}),
    ("constant", {"constant_values": (1, 2)}),
    ("edge", {}),
    ("linear_ramp", {}),
    ("linear_ramp", {"end_values": (3, 7)}),
    ("maximum", {}),
    ("maximum", {"stat_length": 2}),
    ("mean", {}),
    ("mean", {"stat_length": (1, 2)}),
    ("median", {}),
    ("median", {"stat_length": 2}),
    ("minimum", {}),
    ("reflect", {}),
    ("reflect", {"reflect_type": "odd"}),
    ("symmetric", {}),
    ("symmetric", {"reflect_type": "odd"}),
    ("wrap", {}),
]


@pytest.mark.parametrize("dtype", ["float64", "float32", "int32", "uint8"])
@pytest.mark.parametrize(("mode", "options"), MODES)
def test_pad(mode: Any, options: dict[str, Any], dtype: str) -> None:
    for shape in ((5,), (3, 4), (1, 3), (2,), (2, 3, 2)):
        x = (np.random.default_rng(1).random(shape) * 100).astype(dtype)
        for width in (1, (2, 3), 0, (7, 9), ((1, 0),) * len(shape)):
            ours, theirs = matrix.pad(x, width, mode, **options), np.pad(x, width, mode, **options)
            # An odd reflection takes the differences of large numbers.
            assert_same(ours, theirs, 1e-5, 1e-3)


def test_pad_by_axis_and_of_nothing() -> None:
    x = np.arange(6).reshape(2, 3)
    assert_same(matrix.pad(x, {-1: (1, 2)}), np.pad(x, ((0, 0), (1, 2))))
    assert_same(matrix.pad(np.zeros((0, 2)), 1), np.pad(np.zeros((0, 2)), 1))
    assert_same(matrix.pad(5, 0), np.pad(5, 0))
    assert matrix.pad([1, 2], 1, "empty").tolist() == [0, 1, 2, 0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=7), st.sampled_from(["fb", "f", "b", "FB"]))
def test_trim_zeros(numbers: list[int], trim: Any) -> None:
    array = np.array(numbers, np.int64)
    assert_same(matrix.trim_zeros(array, trim), np.trim_zeros(array, trim))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: matrix.pad([1], 1, "reflct"), "did you mean 'reflect'"),
        (lambda: matrix.pad([1], -1), "must be 0 or more"),
        (lambda: matrix.pad([1], 1.5), "no integer"),
        (lambda: matrix.pad([1], [(1, 2), (3, 4)]), "it must be one pair, or 1"),
        (lambda: matrix.pad([1], 1, "edge", end_values=1), "takes no 'end_values'"),
        (lambda: matrix.pad([], 1, "edge"), "nothing to fill with"),
        (lambda: matrix.pad([1], 1, "maximum", stat_length=0), "is an integer of 1 or more"),
        (lambda: matrix.pad([1, 2], 1, "reflect", reflect_type="strange"), "one of 'even', 'odd'"),
        (lambda: matrix.trim_zeros([[1]]), "takes a vector"),
        (lambda: matrix.trim_zeros([1], "x"), "made of 'f' and 'b'"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()

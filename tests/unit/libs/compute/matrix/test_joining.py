"""Putting arrays together and taking them apart, against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.compute import matrix
from libs.compute.testing import assert_same

X = np.arange(12).reshape(3, 4)
Y = X.astype(np.float32) + 0.5
V = np.arange(4)


@pytest.mark.parametrize("name", ["vstack", "hstack", "dstack", "column_stack"])
def test_stacks(name: str) -> None:
    for arrays in ([X, Y], [V, V + 1], [X[:, :1], Y[:, :1]], [X]):
        assert_same(getattr(matrix, name)(arrays), getattr(np, name)(arrays))


def test_concatenate() -> None:
    for axis in (0, 1, -1, None):
        assert_same(matrix.concatenate([X, Y], axis), np.concatenate([X, Y], axis))
    assert_same(matrix.concatenate([X, X[:0], Y[:1]]), np.concatenate([X, X[:0], Y[:1]]))
    assert_same(
        matrix.concatenate([V, [True]], dtype="float16"), np.concatenate([V, [True]], dtype="float16")
    )
    for axis in (0, 1, 2, -1):
        assert_same(matrix.stack([X, Y], axis), np.stack([X, Y], axis))


def test_block() -> None:
    for blocks in ([V, V], [[X, X], [Y, Y]], [[X], [V]], X, [1, 2], [[[1]], [[2]]]):
        assert_same(matrix.block(blocks), np.block(blocks))


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 9, [2, 5], [0, 3, 3, 99], [-2], []])
def test_array_split(parts: Any) -> None:
    x = np.arange(21).reshape(7, 3)
    assert_same(matrix.array_split(x, parts), np.array_split(x, parts))
    assert_same(matrix.array_split(x, parts, axis=-1), np.array_split(x, parts, axis=-1))


def test_splits() -> None:
    x = np.arange(24).reshape(2, 6, 2)
    assert_same(matrix.split(x, 3, 1), np.split(x, 3, 1))
    for name in ("vsplit", "hsplit", "dsplit"):
        assert_same(getattr(matrix, name)(x, 2), getattr(np, name)(x, 2))
    assert_same(matrix.hsplit(np.arange(6), [1, 4]), np.hsplit(np.arange(6), [1, 4]))


@pytest.mark.parametrize("times", [0, 1, 3, (2,), (2, 1), (1, 2, 3), (2, 0)])
def test_tile(times: Any) -> None:
    for x in (X, V, np.array(5)):
        assert_same(matrix.tile(x, times), np.tile(x, times))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_repeat_by_data(times: list[int]) -> None:
    assert_same(matrix.repeat(X, times, 0), np.repeat(X, times, 0))


def test_repeat() -> None:
    for axis in (None, 0, 1, -1):
        assert_same(matrix.repeat(X, 2, axis), np.repeat(X, 2, axis))
        assert_same(matrix.repeat(X, [3], axis), np.repeat(X, [3], axis))
    assert_same(matrix.repeat(X, 0, 1), np.repeat(X, 0, 1))
    assert_same(matrix.repeat(3, 4), np.repeat(3, 4))


@pytest.mark.parametrize(
    ("x", "place", "values", "axis"),
    [
        (V, 1, 9, None),
        (V, -1, [7, 8], None),
        (V, [0, 2, 4], [7, 8, 9], None),
        (V, [2, 0], [7, 8], None),
        (V, [1, 1], 5, None),
        (V, slice(0, 3), [7, 8, 9], None),
        (V, [], [], None),
        (X, 1, 9, 0),
        (X, 1, [1, 2, 3], 1),
        (X, [1], [[1], [2], [3]], 1),
        (X, [0, 3], [[1, 2]], 1),
        (X, -1, V, 0),
        (X, 2, X[:2], 0),
    ],
)
def test_insert(x: Any, place: Any, values: Any, axis: Any) -> None:
    assert_same(matrix.insert(x, place, values, axis), np.insert(x, place, values, axis))


@pytest.mark.parametrize(
    ("place", "axis"),
    [(1, 0), (-1, 1), ([0, 2], 1), (slice(None, None, 2), 0), ([], 0), ([True, False, True], 0), (5, None)],
)
def test_delete(place: Any, axis: Any) -> None:
    assert_same(matrix.delete(X, place, axis), np.delete(X, place, axis))


def test_resize_append_unstack() -> None:
    for shape in (5, (2, 3), (4, 7), (0,)):
        assert_same(matrix.resize(X, shape), np.resize(X, shape))
    assert_same(matrix.append(X, Y, 1), np.append(X, Y, 1))
    assert_same(matrix.append(X, 5), np.append(X, 5))
    assert_same(matrix.unstack(X, axis=-1), np.unstack(X, axis=-1))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: matrix.concatenate([]), "at least one array"),
        (lambda: matrix.concatenate(5), "a list of arrays"),
        (lambda: matrix.concatenate([X, V]), "as many axes"),
        (lambda: matrix.concatenate([1, 2]), "as many axes, at least 1"),
        (lambda: matrix.concatenate([X, X.T]), "sizes 4 and 3 differ"),
        (lambda: matrix.concatenate([X, X], 2), "axis 2 is out of range"),
        (lambda: matrix.stack([X, V]), "of one shape"),
        (lambda: matrix.split(V, 3), "use array_split"),
        (lambda: matrix.array_split(V, 0), "is an integer from 1"),
        (lambda: matrix.hsplit(1, 1), "1 axis or more"),
        (lambda: matrix.vsplit(V, 1), "2 axes or more"),
        (lambda: matrix.dsplit(X, 1), "3 axes or more"),
        (lambda: matrix.tile(V, -1), "is an integer of 0 or more"),
        (lambda: matrix.repeat(V, -1), "is an integer of 0 or more"),
        (lambda: matrix.repeat(V, [1, 2]), "sizes 4 and 2 differ"),
        (lambda: matrix.repeat(V, [1, -2, 0, 0]), "must be 0 or more"),
        (lambda: matrix.block([[1], 2]), "one depth"),
        (lambda: matrix.block([]), "is empty"),
        (lambda: matrix.insert(V, 9, 1), "place 9 is out of range"),
        (lambda: matrix.delete(V, 9), "out of bounds"),
        (lambda: matrix.resize(V, -1), "is an integer of 0 or more"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()

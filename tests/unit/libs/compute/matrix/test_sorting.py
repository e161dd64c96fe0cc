"""Sorting and searching against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from libs.common.errors import Invalid
from libs.compute.matrix import logic, sorting

DTYPES = ["bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64"]
SHAPES = [(0,), (1,), (7,), (3, 4), (2, 0), (2, 3, 5)]


def numbers(shape: tuple[int, ...], dtype: str = "float64", seed: int = 0) -> np.ndarray[Any, Any]:
    found = np.random.default_rng(seed).integers(0, 6, shape).astype(dtype)
    if found.dtype.kind == "f":
        found -= 2
        found.reshape(-1)[::5] = np.nan
    return found


def same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
        return
    theirs, found = np.asarray(theirs), np.asarray(ours)
    assert found.dtype == theirs.dtype
    assert found.shape == theirs.shape
    np.testing.assert_array_equal(found, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_sort(shape: tuple[int, ...], dtype: str) -> None:
    a = numbers(shape, dtype)
    for axis in (0, -1, None):
        same(sorting.sort(a, axis), np.sort(a, axis))
        same(sorting.argsort(a, axis, stable=True), np.argsort(a, axis, stable=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 4), (2, 3, 5)])
@pytest.mark.parametrize("name", ["argmax", "argmin", "nanargmax", "nanargmin"])
def test_places_of_extremes(name: str, shape: tuple[int, ...], dtype: str) -> None:
    a = numbers(shape, dtype)
    if name.startswith("nan"):
        a = np.where(
            np.isnan(a.astype(np.float64)) & (np.arange(a.size).reshape(shape) % 7 == 0), 1, a
        ).astype(dtype)
    for axis in (None, 0, -1):
        for keepdims in (False, True):
            try:
                wanted = getattr(np, name)(a, axis, keepdims=keepdims)
            except ValueError:
                with pytest.raises(Invalid, match="nothing but NaN"):
                    getattr(sorting, name)(a, axis, keepdims=keepdims)
                continue
            same(getattr(sorting, name)(a, axis, keepdims=keepdims), wanted)


def test_infinity_is_more_than_what_is_absent() -> None:
    same(sorting.nanargmax([np.nan, -np.inf]), 1)
    same(sorting.nanargmin([np.nan, np.inf]), 1)


@pytest.mark.parametrize("dtype", ["int64", "float32"])
@pytest.mark.parametrize("kth", [0, -1, 2, [1, 3]])
def test_partition(kth: Any, dtype: str) -> None:
    a = np.random.default_rng(0).permutation(20).reshape(4, 5).astype(dtype)
    ours, theirs = np.asarray(sorting.partition(a, kth)), np.partition(a, kth)
    np.testing.assert_array_equal(ours[:, kth], theirs[:, kth])
    places = np.asarray(sorting.argpartition(a, kth, 0 if np.max(kth) < 3 else 1))
    assert places.dtype == np.int64
    same(sorting.partition(a, kth, None), np.sort(a, None))


def test_lexsort() -> None:
    first, second = numbers((3, 8), "int64"), numbers((3, 8), "int64", 1)
    same(sorting.lexsort((first, second)), np.lexsort((first, second)))
    same(sorting.lexsort((first, second), 0), np.lexsort((first, second), 0))


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(
        np.float64, st.integers(0, 8), elements=st.sampled_from([-1.0, 0.0, -0.0, 2.0, np.inf, np.nan])
    ),
    arrays.arrays(
        np.float64, st.integers(0, 8), elements=st.sampled_from([-2.0, 0.0, -0.0, 2.0, np.inf, np.nan])
    ),
    st.sampled_from(["left", "right"]),
)
def test_searchsorted(a: Any, v: Any, side: Any) -> None:
    a = np.sort(a)
    same(sorting.searchsorted(a, v, side), np.searchsorted(a, v, side))


def test_searchsorted_of_other_shapes_and_types() -> None:
    a = np.array([5, 1, 3])
    same(sorting.searchsorted([1, 3, 5], [[0, 3.5], [5, 9]]), np.searchsorted([1, 3, 5], [[0, 3.5], [5, 9]]))
    same(sorting.searchsorted(a, 3, sorter=[1, 2, 0]), np.searchsorted(a, 3, sorter=[1, 2, 0]))
    same(sorting.searchsorted([1, 3, 5], 4), np.searchsorted([1, 3, 5], 4))


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("bins", [[0.0, 1.0, 2.5], [2.5, 1.0, 0.0], [1.0, 1.0], [3.0]])
def test_digitize(bins: list[float], right: bool) -> None:
    x = [-1, 0, 0.5, 1, 2.5, 3]
    same(sorting.digitize(x, bins, right), np.digitize(x, bins, right))


@pytest.mark.parametrize("shape", SHAPES)
def test_nonzero(shape: tuple[int, ...]) -> None:
    for dtype in ("bool", "int8", "float32"):
        a = numbers(shape, dtype)
        same(sorting.nonzero(a), np.nonzero(a))
        same(logic.where(a), np.where(a))
        same(sorting.flatnonzero(a), np.flatnonzero(a))
        same(sorting.argwhere(a), np.argwhere(a))


def test_where() -> None:
    condition = np.array([[True], [False]])
    x = np.arange(3, dtype=np.float32)
    for chosen, other in ((x, 1.5), (1, x), (x, np.float64(2)), (1, 2), (x, [1, 2, 3])):
        same(logic.where(condition, chosen, other), np.where(condition, chosen, other))
    same(logic.where([1, 0, 2], [1, 2, 3], 0), np.where([1, 0, 2], [1, 2, 3], 0))


def test_select_and_choose() -> None:
    x = np.arange(6)
    given = ([x < 2, x < 4], [x, x * 0.5], 9)
    same(sorting.select(*given), np.select(*given))
    choices = [[0, 1, 2], [10, 11, 12]]
    same(sorting.choose([1, 0, 1], choices), np.choose([1, 0, 1], choices))
    same(sorting.choose([[1], [0]], choices), np.choose([[1], [0]], choices))
    same(sorting.choose([4, -3, 1], choices, "wrap"), np.choose([4, -3, 1], choices, mode="wrap"))
    same(sorting.choose([4, -3, 1], choices, "clip"), np.choose([4, -3, 1], choices, mode="clip"))


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_take(axis: int | None) -> None:
    a = numbers((3, 4), "int32")
    for indices in (1, [0, -1], [[2, 1]], [True, False][:0]):
        same(sorting.take(a, indices, axis), np.take(a, np.array(indices, np.int64), axis))
    same(sorting.take(a, [7, -9], axis, mode="wrap"), np.take(a, [7, -9], axis, mode="wrap"))
    same(sorting.take(a, [7, -9], axis, mode="clip"), np.take(a, [7, -9], axis, mode="clip"))


def test_take_along_axis() -> None:
    a = numbers((3, 4), "int32")
    for axis in (0, 1, -1):
        order = np.argsort(a, axis)
        same(sorting.take_along_axis(a, order, axis), np.take_along_axis(a, order, axis))
    same(
        sorting.take_along_axis(a[:, :2], np.array([[0, -1]]), 0),
        np.take_along_axis(a[:, :2], np.array([[0, -1]]), 0),
    )
    same(
        sorting.take_along_axis(a, np.array([[2], [0], [1]]), 1),
        np.take_along_axis(a, np.array([[2], [0], [1]]), 1),
    )
    same(sorting.take_along_axis(a, np.array([5, 1]), None), np.take_along_axis(a, np.array([5, 1]), None))


def test_compress_and_extract() -> None:
    a = numbers((3, 4), "int32")
    same(sorting.compress([True, False, True], a, 0), np.compress([True, False, True], a, 0))
    same(sorting.compress([False, True], a, 1), np.compress([False, True], a, 1))
    same(sorting.compress([0, 1, 1], a), np.compress([0, 1, 1], a))
    same(sorting.extract(a > 2, a), np.extract(a > 2, a))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: sorting.sort([1], 1), "axis 1 is out of range"),
        (lambda: sorting.sort([1], kind="bogo"), "sort: kind is 'bogo'"),
        (lambda: sorting.argmax([]), "without elements"),
        (lambda: sorting.argmin(np.zeros((0, 2)), 0), "without elements"),
        (lambda: sorting.nanargmax([np.nan]), "nothing but NaN"),
        (lambda: sorting.partition([1, 2], 2), "kth 2 is out of range"),
        (lambda: sorting.partition([1, 2], 0.5), "kth is an integer"),
        (lambda: sorting.searchsorted([[1]], 1), "a vector, not in 2 axes"),
        (lambda: sorting.searchsorted([1], 1, "middle"), "'middle'"),
        (lambda: sorting.digitize([1], [1, 3, 2]), "neither ascend nor descend"),
        (lambda: sorting.take([1, 2], 2), "index 2 is out of range"),
        (lambda: sorting.take([1, 2], 0.5), "indices are integers, not float64"),
        (lambda: sorting.take([1, 2], 0, mode="no"), "'no'"),
        (lambda: sorting.take_along_axis([1, 2], [2], 0), "index 2 is out of range"),
        (lambda: sorting.take_along_axis([[1, 2]], [0], 0), "must have as many"),
        (lambda: logic.where([True], 1), "both x and y"),
        (lambda: sorting.nonzero(1), "1 axis or more"),
        (lambda: sorting.select([[True]], []), "as many choices"),
        (lambda: sorting.select([[1]], [[1]]), "conditions are booleans"),
        (lambda: sorting.choose([2], [[1], [2]]), "a holds 2; there are 2 choices"),
        (lambda: sorting.compress([[True]], [1]), "a vector, not of 2"),
        (lambda: sorting.lexsort(()), "needs a key"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()

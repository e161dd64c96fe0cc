"""Sets and counts against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from libs.common.errors import Invalid
from libs.compute.matrix import running, sets

SOME = [-2.0, -1.0, 0.0, -0.0, 1.5, np.inf, np.nan]
VECTORS = arrays.arrays(np.float64, st.integers(0, 9), elements=st.sampled_from(SOME))


def same(ours: Any, theirs: Any, tolerance: float = 0) -> None:
    if isinstance(theirs, tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other, tolerance)
        return
    theirs, found = np.asarray(theirs), np.asarray(ours)
    assert found.dtype == theirs.dtype
    assert found.shape == theirs.shape
    np.testing.assert_allclose(found, theirs, rtol=tolerance, atol=tolerance)


@settings(max_examples=60, deadline=None)
@given(VECTORS, st.booleans())
def test_unique(a: Any, equal_nan: bool) -> None:
    same(sets.unique(a, equal_nan=equal_nan), np.unique(a, equal_nan=equal_nan))
    wanted = np.unique(a, True, True, True, equal_nan=equal_nan)
    same(sets.unique(a, True, True, True, equal_nan=equal_nan), wanted)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32"])
def test_unique_of_types_and_shapes(dtype: str) -> None:
    a = (np.arange(12).reshape(3, 4) % 5).astype(dtype)
    same(sets.unique(a), np.unique(a))
    same(sets.unique(a, return_counts=True), np.unique(a, return_counts=True))
    same(tuple(sets.unique_all(a)), tuple(np.unique_all(a)))
    same(tuple(sets.unique_counts(a)), tuple(np.unique_counts(a)))
    same(tuple(sets.unique_inverse(a)), tuple(np.unique_inverse(a)))
    same(sets.unique_values(a), np.sort(np.unique_values(a)))


@settings(max_examples=60, deadline=None)
@given(VECTORS, VECTORS)
def test_operations_of_two_sets(x: Any, y: Any) -> None:
    same(sets.isin(x, y), np.isin(x, y))
    same(sets.isin(x, y, invert=True), np.isin(x, y, invert=True))
    same(sets.union1d(x, y), np.union1d(x, y))
    x, y = x[~np.isnan(x)], y[~np.isnan(y)]
    for name in ("intersect1d", "setdiff1d", "setxor1d"):
        same(getattr(sets, name)(x, y), getattr(np, name)(x, y))


def test_isin_of_another_shape_and_type() -> None:
    same(sets.isin([[1, 2], [3, 4]], [2.0, 4.0]), np.isin([[1, 2], [3, 4]], [2.0, 4.0]))


@settings(max_examples=40, deadline=None)
@given(arrays.arrays(np.int64, st.integers(0, 9), elements=st.integers(0, 12)), st.integers(0, 15))
def test_bincount(x: Any, least: int) -> None:
    same(sets.bincount(x, minlength=least), np.bincount(x, minlength=least))
    weights = np.linspace(0, 1, len(x))
    # Of nothing numpy gives whole numbers.
    wanted = np.bincount(x, weights, least).astype(np.float64)
    same(sets.bincount(x, weights, least), wanted, 1e-15)


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(np.float64, st.integers(0, 20), elements=st.floats(-4, 4)),
    st.sampled_from([1, 3, 10, [0.0, 1.0, 1.5], [-5.0, 5.0], [0.0, 0.0, 1.0]]),
    st.booleans(),
)
def test_histogram_of_given_edges(a: Any, bins: Any, density: bool) -> None:
    edges = np.linspace(-4, 4, bins + 1) if isinstance(bins, int) else bins
    if density and not np.histogram(a, edges)[0].sum():
        return
    if density and (np.diff(edges) == 0).any():
        return
    same(
        sets.histogram(a, edges, density=density), np.histogram(a, np.asarray(edges), density=density), 1e-12
    )


@pytest.mark.parametrize("bins", [1, 4, 10])
@pytest.mark.parametrize("range_", [None, (0.0, 2.0), (1.0, 1.0)])
def test_histogram_of_one_width(bins: int, range_: Any) -> None:
    for a in (np.random.default_rng(0).normal(size=50), np.array([3.0, 3.0]), np.array([]), np.arange(7)):
        same(sets.histogram(a, bins, range_), np.histogram(a, bins, range_), 1e-12)
        edges = np.histogram_bin_edges(a, bins, range_)
        same(sets.histogram_bin_edges(a, bins, range_), edges, 1e-12)


def test_histogram_of_weights() -> None:
    a, weights = [0.5, 1.5, 1.6, 9.0], [1.0, 2.0, 0.25, 7.0]
    same(
        sets.histogram(a, [0.0, 1.0, 2.0], weights=weights), np.histogram(a, [0.0, 1.0, 2.0], weights=weights)
    )


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(np.float64, st.integers(0, 9), elements=st.sampled_from([*SOME, -np.inf, 0.25])),
    st.integers(2, 6),
    st.sampled_from([{}, {"left": -9.0}, {"right": 7.5}]),
)
def test_interp(x: Any, count: int, ends: Any) -> None:
    xp = np.cumsum(np.arange(count) % 3 + 0.5) - 1.5
    fp = np.arange(count) ** 2 - 1.0
    same(running.interp(x, xp, fp, **ends), np.interp(x, xp, fp, **ends), 1e-12)


def test_interp_of_other_shapes_and_types() -> None:
    same(running.interp([[1, 2], [3, 9]], [0, 4], [0, 8]), np.interp([[1, 2], [3, 9]], [0, 4], [0, 8]))
    same(running.interp([0, 1, 2, np.inf], [1], [3]), np.interp([0, 1, 2, np.inf], [1], [3]))
    same(running.interp(1.5, [1, 2], [3, 4]), np.interp(1.5, [1, 2], [3, 4]))


def test_ediff1d() -> None:
    a = np.array([[1, 4], [9, 16]])
    same(running.ediff1d(a), np.ediff1d(a))
    same(running.ediff1d(a, 5, [1, 2]), np.ediff1d(a, 5, [1, 2]))
    same(running.ediff1d([1.0]), np.ediff1d([1.0]))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: sets.bincount([-1, 2]), "-1 is below"),
        (lambda: sets.bincount([1 << 40]), "counts up to"),
        (lambda: sets.bincount([0.5]), "a vector of integers, not float64"),
        (lambda: sets.bincount([[1]]), "2 axes"),
        (lambda: sets.bincount([1], minlength=-1), "not -1"),
        (lambda: sets.bincount([1, 2], [1.0]), "must be equal"),
        (lambda: sets.histogram([1.0], "auto"), "rule 'auto'"),
        (lambda: sets.histogram([1.0], 0), "bins is 0"),
        (lambda: sets.histogram([1.0], [2.0, 1.0]), "ascending"),
        (lambda: sets.histogram([np.inf], 3), "need a range"),
        (lambda: sets.histogram([1.0], 3, (2, 1)), "not 2.0 to 1.0"),
        (lambda: running.interp([1.0], [], []), "no points"),
        (lambda: running.interp([1.0], [1.0], [1.0, 2.0]), "must be equal"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()

"""Sums, extremes, means, running sums: against numpy's over types, shapes and axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from libs.common.errors import Invalid
from libs.compute import matrix
from libs.compute.testing import Array, assert_same

DTYPES = ["bool", "int8", "uint8", "int32", "uint64", "float16", "float32", "float64"]
SHAPES: list[tuple[tuple[int, ...], Any]] = [
    ((), None),
    ((5,), -1),
    ((3, 4), None),
    ((3, 4), 0),
    ((2, 3, 4), (0, -1)),
    ((2, 3, 4), ()),
    ((0, 3), 1),
]
ALONG: list[tuple[tuple[int, ...], int]] = [((9,), 0), ((3, 4), 0), ((3, 4), -1), ((0,), 0), ((1, 17), 1)]
ODD = [0.0, 1.5, -2.0, np.inf, np.nan]
WITHOUT = ["nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanmedian", "max", "min"]
REDUCTIONS = ["sum", "prod", "max", "min", "mean", "var", "std", "all", "any", "count_nonzero", "ptp"]


def numbers(shape: tuple[int, ...], dtype: str) -> Array:
    return np.random.default_rng(3).integers(0, 5, shape).astype(dtype)


def check(name: str, x: Array, rtol: float = 1e-12, **options: Any) -> None:
    try:
        with np.errstate(all="ignore"):
            expected = getattr(np, name)(x, **options)
    except (TypeError, ValueError):
        with pytest.raises(Invalid):
            getattr(matrix, name)(x, **options)
    else:
        assert_same(getattr(matrix, name)(x, **options), expected, rtol=rtol, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, dtype: str) -> None:
    for shape, axis in SHAPES:
        for keepdims in (False, True):
            x = numbers(shape, dtype)
            if axis == () and name in ("mean", "var", "std", "ptp", "max", "min"):
                continue  # numpy reduces nothing there, too, but in ways of its own
            check(name, x, 5e-3 if dtype == "float16" else 1e-6, axis=axis, keepdims=keepdims)


@pytest.mark.parametrize("name", ["sum", "prod", "cumsum", "cumprod", "mean", "var"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_types_asked_for(name: str, dtype: str) -> None:
    if dtype == "int16" and name in ("mean", "var"):
        with pytest.raises(Invalid, match="floating"):
            getattr(matrix, name)(numbers((3, 4), "int32"), dtype=dtype)
        return
    check(name, numbers((3, 4), "int32"), axis=1, dtype=dtype, rtol=1e-6)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "nancumsum", "nancumprod", "diff", "trapezoid"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_running(name: str, dtype: str) -> None:
    shapes: list[tuple[tuple[int, ...], int]] = [
        ((9,), 0),
        ((3, 4), 0),
        ((3, 4), -1),
        ((0,), 0),
        ((1, 17), 1),
    ]
    for shape, axis in shapes:
        if name == "trapezoid" and dtype in ("bool", "float16", "float32"):
            continue
        check(name, numbers(shape, dtype), 5e-3 if dtype == "float16" else 1e-6, axis=axis)


@settings(max_examples=60, deadline=None)
@given(
    arrays(
        np.float64,
        array_shapes(max_dims=3, max_side=4),
        elements=st.sampled_from(ODD),
    ),
    st.sampled_from(
        ["nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanmedian", "max", "min"]
    ),
    st.data(),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_without_nan(x: Array, name: str, data: st.DataObject) -> None:
    axis = data.draw(st.none() | st.integers(-x.ndim, x.ndim - 1))
    check(name, x, axis=axis)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "all", "any"])
def test_chosen_elements(name: str) -> None:
    x = numbers((3, 4), "float64") - 2
    where = np.array([[True, False, True, False]] * 3)
    initial = {"initial": 0.5} if name in ("max", "min") else {}
    check(name, x, axis=0, where=where | [[True], [False], [False]], **initial)
    check(name, x, axis=1, where=where, **initial)


def test_weighted_means() -> None:
    x = numbers((3, 4), "int32")
    for axis, weights in (
        (None, None),
        (0, [1, 2, 3]),
        (1, [0.5, 1, 1, 2]),
        (None, numbers((3, 4), "float64") + 1),
    ):
        expected = np.average(x, axis, weights, returned=True)
        assert_same(matrix.average(x, axis, weights, returned=True), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_covariances(dtype: str) -> None:
    x, y = numbers((3, 6), dtype), numbers((1, 6), dtype)
    for options in (
        {},
        {"y": y},
        {"rowvar": False},
        {"bias": True},
        {"ddof": 0},
        {"fweights": [1, 2, 1, 1, 3, 1]},
        {"aweights": [0.5, 1, 1, 2, 1, 1]},
        {"fweights": [1, 2, 1, 1, 3, 1], "aweights": [0.5, 1, 1, 2, 1, 1]},
    ):
        assert_same(matrix.cov(x, **options), np.cov(x, **options), rtol=1e-5, atol=1e-6)
    with np.errstate(all="ignore"):
        assert_same(matrix.corrcoef(x), np.corrcoef(x), rtol=1e-5)


def test_gradients() -> None:
    x = numbers((4, 5), "float64") ** 2
    for args, options in (((), {}), ((2.0,), {}), ((0.5, 2.0), {"edge_order": 2}), ((), {"axis": 1})):
        assert_same(matrix.gradient(x, *args, **options), np.gradient(x, *args, **options))
    places = np.array([0.0, 0.5, 2.0, 2.25])
    assert_same(matrix.gradient(x, places, axis=0), np.gradient(x, places, axis=0))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: matrix.max([]), "is empty"),
        (lambda: matrix.max(np.ones((2, 0)), 1), "axis 1 .* is empty"),
        (lambda: matrix.min([1.0], where=[True]), "initial says"),
        (lambda: matrix.sum([1], 1), "axis 1 is out of range"),
        (lambda: matrix.sum([[1]], (0, 0)), "name one twice"),
        (lambda: matrix.sum([1.0], where=[1]), "must be booleans"),
        (lambda: matrix.sum([True], dtype="bool"), "use any"),
        (lambda: matrix.var([1.0], ddof=1, correction=1), "give one of them"),
        (lambda: matrix.average([1.0], weights=[0.0]), "add up to 0"),
        (lambda: matrix.average([[1.0]], weights=[1.0]), "weights of 1 axes"),
        (lambda: matrix.diff([1], -1), "n is -1"),
        (lambda: matrix.gradient([1.0]), "2 are needed"),
        (lambda: matrix.gradient([1.0, 2.0], edge_order=3), "from 1 to 2"),
        (lambda: matrix.cumulative_sum([[1]]), "needs the axis named"),
        (lambda: matrix.quantile([1.0], 2), "between 0 and 1"),
        (lambda: matrix.quantile([1.0], 0.5, method="linaer"), "did you mean 'linear'"),
        (lambda: matrix.cov(np.ones((1, 1, 1))), "at most 2 axes"),
        (lambda: matrix.cov([1.0, 2.0], fweights=[0.5, 1]), "integers"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()

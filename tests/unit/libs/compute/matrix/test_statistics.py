"""Quantiles, and what leaves NaN out of account, against numpy's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from libs.common.errors import Invalid
from libs.compute.matrix import missing, statistics

METHODS = [
    "linear",
    "lower",
    "higher",
    "midpoint",
    "nearest",
    "hazen",
    "weibull",
    "median_unbiased",
    "normal_unbiased",
    "interpolated_inverted_cdf",
]


def numbers(*shape: int, dtype: str = "float64", nan: bool = False) -> np.ndarray[Any, Any]:
    found = np.random.default_rng(0).integers(-9, 9, shape).astype(dtype)
    if nan:
        found.reshape(-1)[::4] = np.nan
        found.reshape(-1)[: shape[-1]] = np.nan
    return found


def close(ours: Any, theirs: Any, tolerance: float = 1e-12) -> None:
    theirs, found = np.asarray(theirs), np.asarray(ours)
    assert found.dtype == theirs.dtype
    assert found.shape == theirs.shape
    np.testing.assert_allclose(found, theirs, rtol=tolerance, atol=tolerance)


def numpys(name: str, *arguments: Any, **named: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(np, name)(*arguments, **named)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_methods(size: int, method: Any) -> None:
    a = numbers(3, size)
    for q in (0.0, 0.25, 0.5, 0.9, 1.0, [0.1, 0.5, 0.75]):
        close(statistics.quantile(a, q, 1, method=method), np.quantile(a, q, 1, method=method))


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_axes(axis: Any, keepdims: bool, dtype: str) -> None:
    a = numbers(3, 4, 5, dtype=dtype)
    for q in (30, [10.0, 90.0]):
        theirs = np.percentile(a, q, axis, keepdims=keepdims)
        close(statistics.percentile(a, q, axis, keepdims=keepdims), theirs, 1e-6)
    close(statistics.median(a, axis, keepdims=keepdims), np.median(a, axis, keepdims=keepdims))


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_without_nan(axis: Any, keepdims: bool, nan: bool) -> None:
    a = numbers(5, 3, 4, nan=nan)
    for name in ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin", "nanmedian"):
        close(getattr(missing, name)(a, axis, keepdims=keepdims), numpys(name, a, axis, keepdims=keepdims))
    for name in ("nanquantile", "quantile"):
        wanted = numpys(name, a, [0.2, 0.7], axis, keepdims=keepdims)
        close(
            getattr(missing if name.startswith("nan") else statistics, name)(
                a, [0.2, 0.7], axis, keepdims=keepdims
            ),
            wanted,
        )
    close(missing.nanpercentile(a, 40, axis), numpys("nanpercentile", a, 40, axis))
    close(statistics.median(a, axis), numpys("median", a, axis))


def test_running_without_nan() -> None:
    a = numbers(2, 5, nan=True)
    for axis in (None, 0, 1):
        close(missing.nancumsum(a, axis), np.nancumsum(a, axis))
        close(missing.nancumprod(a, axis), np.nancumprod(a, axis))


@pytest.mark.parametrize("dtype", ["bool", "int8", "float32"])
def test_types_without_nan(dtype: str) -> None:
    a = numbers(4, 3, dtype=dtype)
    for name in ("nansum", "nanprod", "nanmean", "nanvar", "nanmax", "nanmin", "nanmedian"):
        close(getattr(missing, name)(a, 0), numpys(name, a, 0), 1e-6)


def test_the_variance_of_too_few_is_none() -> None:
    a = [[1.0, np.nan], [2.0, 3.0]]
    close(missing.nanvar(a, 1, ddof=1), numpys("nanvar", a, 1, ddof=1))


def test_large_numbers_in_the_middle() -> None:
    a = np.array([1e308, np.inf, -np.inf])
    close(statistics.median(a), np.median(a))
    close(statistics.median([np.inf, np.inf]), np.median([np.inf, np.inf]))


@pytest.mark.parametrize("rowvar", [True, False])
def test_covariance(rowvar: bool) -> None:
    a, b = numbers(3, 6), numbers(3, 6)[::-1]
    close(statistics.cov(a, rowvar=rowvar), np.cov(a, rowvar=rowvar))
    close(statistics.cov(a, b, rowvar), np.cov(a, b, rowvar))
    close(statistics.cov(a, rowvar=rowvar, bias=True), np.cov(a, rowvar=rowvar, bias=True))
    close(statistics.cov(a, ddof=2), np.cov(a, ddof=2))
    close(statistics.corrcoef(a, rowvar=rowvar), np.corrcoef(a, rowvar=rowvar))
    close(statistics.corrcoef(a, b), np.corrcoef(a, b))
    close(statistics.cov(a[0]), np.cov(a[0]))
    close(statistics.corrcoef(a[0]), np.corrcoef(a[0]))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: statistics.quantile([1.0], 1.5), "between 0 and 1"),
        (lambda: statistics.percentile([1.0], -1), "between 0 and 100"),
        (lambda: statistics.quantile([1.0], 0.5, method="inverted_cdf"), "method .inverted_cdf. is none"),
        (lambda: statistics.median([]), "is empty"),
        (lambda: missing.nanmax([]), "empty"),
        (lambda: statistics.cov(np.ones((2, 2, 2))), "at most 2 axes, not 3"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()

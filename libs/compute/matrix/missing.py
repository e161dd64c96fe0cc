"""Reductions that leave NaN out, under numpy's names for them."""

from __future__ import annotations

from typing import Any

from libs.compute.arithmetic import highest, lowest
from libs.compute.axes import axes_of, flag_of
from libs.compute.matrix import reduction
from libs.compute.matrix.exponential import sqrt
from libs.compute.matrix.logic import all as all_of
from libs.compute.matrix.logic import isnan
from libs.compute.matrix.running import cumprod, cumsum
from libs.compute.matrix.statistics import (
    as_measured,
    flat_last,
    hundredth,
    middles,
    parts_of,
    quantiles,
    shaped,
)
from libs.compute.promotion import FLOATS
from libs.compute.tensor import Tensor, asarray
from libs.runtime.plan import DataType

__all__ = [
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmedian",
    "nanmin",
    "nanpercentile",
    "nanprod",
    "nanquantile",
    "nanstd",
    "nansum",
    "nanvar",
]


def _without(a: Any, otherwise: float) -> Tensor:
    """Return an array with NaN replaced."""
    tensor = asarray(a)
    if tensor.type not in FLOATS:
        return tensor
    b = tensor.backend
    return Tensor(b, b.where(isnan(tensor).value, b.scalar(otherwise, tensor.type), tensor.value))


def nansum(a: Any, axis: Any = None, dtype: object = None, keepdims: bool = False) -> Tensor:
    """Return sums along axes, NaN as 0."""
    return reduction.sum(_without(a, 0), axis, dtype, keepdims)


def nanprod(a: Any, axis: Any = None, dtype: object = None, keepdims: bool = False) -> Tensor:
    """Return products along axes, NaN as 1."""
    return reduction.prod(_without(a, 1), axis, dtype, keepdims)


def nancumsum(a: Any, axis: Any = None, dtype: object = None) -> Tensor:
    """Return running sums, NaN as 0."""
    return cumsum(_without(a, 0), axis, dtype)


def nancumprod(a: Any, axis: Any = None, dtype: object = None) -> Tensor:
    """Return running products, NaN as 1."""
    return cumprod(_without(a, 1), axis, dtype)


def nanmax(a: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return maxima along axes of what are numbers; NaN where none is."""
    return _extreme("max", a, axis, keepdims)


def nanmin(a: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return minima along axes of what are numbers; NaN where none is."""
    return _extreme("min", a, axis, keepdims)


def _extreme(name: str, a: Any, axis: Any, keepdims: bool) -> Tensor:
    tensor = asarray(a)
    function = reduction.max if name == "max" else reduction.min
    if tensor.type not in FLOATS:
        return function(tensor, axis, keepdims)
    worst = lowest(tensor.type) if name == "max" else highest(tensor.type)
    found = function(_without(tensor, worst), axis, keepdims)
    nothing = all_of(isnan(tensor), axis, keepdims)
    b = tensor.backend
    return Tensor(b, b.where(nothing.value, b.scalar(float("nan"), tensor.type), found.value))


def _numbers(a: Any) -> tuple[Tensor, Any]:
    """Return an array, and where it has numbers."""
    tensor = asarray(a)
    return tensor, ~isnan(tensor) if tensor.type in FLOATS else True


def nanmean(
    a: Any, axis: Any = None, dtype: object = None, keepdims: bool = False, *, where: Any = True
) -> Tensor:
    """Return means along axes of what are numbers; NaN where none is."""
    tensor, numbers = _numbers(a)
    return reduction.mean(tensor, axis, dtype, keepdims, where=_both(numbers, where))


def _both(numbers: Any, where: Any) -> Any:
    return numbers if where is True else asarray(where) if numbers is True else numbers & where


def nanvar(
    a: Any,
    axis: Any = None,
    dtype: object = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = True,
    mean: Any = None,
    correction: float | None = None,
) -> Tensor:
    """Return variances along axes of what are numbers; NaN where there are not enough."""
    tensor, numbers = _numbers(a)
    chosen = _both(numbers, where)
    found = reduction.var(tensor, axis, dtype, ddof, keepdims, where=chosen, mean=mean, correction=correction)
    left = reduction.counted(tensor, axis, keepdims, chosen) - (ddof if correction is None else correction)
    b = found.backend
    return Tensor(b, b.where((left > 0).value, found.value, b.scalar(float("nan"), found.type)))


def nanstd(
    a: Any,
    axis: Any = None,
    dtype: object = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = True,
    mean: Any = None,
    correction: float | None = None,
) -> Tensor:
    """Return standard deviations along axes of what are numbers."""
    return sqrt(nanvar(a, axis, dtype, ddof, keepdims, where=where, mean=mean, correction=correction))


def nanquantile(
    a: Any, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Return quantiles along axes of what are numbers; NaN where none is."""
    keepdims = flag_of(keepdims, "nanquantile", "keepdims")
    tensor = as_measured(a)
    axes = axes_of(axis, tensor.ndim, "nanquantile")
    reduction.not_empty("nanquantile", tensor, axis)
    rows, shape = flat_last(tensor, axes)
    count = reduction.counted(rows, 1, False, ~isnan(rows))
    found, lead = quantiles(rows, parts_of(q, tensor, "nanquantile"), count, method)
    return shaped(found, lead, shape, axes, tensor.ndim, keepdims)


def nanpercentile(
    a: Any, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Return percentiles along axes of what are numbers; NaN where none is."""
    keepdims = flag_of(keepdims, "nanpercentile", "keepdims")
    parts = hundredth(q, a, "nanpercentile")
    return nanquantile(a, parts, axis, method=method, keepdims=keepdims)


def nanmedian(a: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return medians along axes of what are numbers; NaN where none is."""
    keepdims = flag_of(keepdims, "nanmedian", "keepdims")
    tensor = as_measured(a)
    axes = axes_of(axis, tensor.ndim, "nanmedian")
    reduction.not_empty("nanmedian", tensor, axis)
    rows, shape = flat_last(tensor, axes)
    count = reduction.counted(rows, 1, False, ~isnan(rows)).astype(DataType.INT64)
    return shaped(middles(rows, count), (), shape, axes, tensor.ndim, keepdims)

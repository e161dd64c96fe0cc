"""Medians, quantiles, and how variables hang together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from libs.compute.axes import axes_of, flag_of
from libs.compute.backend import Shape, product
from libs.compute.matrix.elementwise import clip
from libs.compute.matrix.exponential import sqrt
from libs.compute.matrix.joining import concatenate
from libs.compute.matrix.logic import isnan
from libs.compute.matrix.logic import where as choose
from libs.compute.matrix.reduction import average, not_empty
from libs.compute.matrix.reduction import sum as total_of
from libs.compute.matrix.rounding import ceil, floor, rint
from libs.compute.matrix.shaping import diagonal
from libs.compute.ordering import in_order
from libs.compute.promotion import FLOATS, INTEGERS, common_type
from libs.compute.tensor import Tensor, asarray, matmul, tensors_of
from libs.runtime.plan import DataType

__all__ = ["corrcoef", "cov", "median", "percentile", "quantile"]

_PLACES: dict[str, tuple[float, float]] = {
    # Hyndman and Fan, "Sample quantiles in statistical packages", The American Statistician 50 (1996).
    "interpolated_inverted_cdf": (0.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "linear": (1.0, 1.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}
_NEAR: dict[str, Callable[[Tensor], Tensor]] = {
    "lower": floor,
    "higher": ceil,
    "midpoint": lambda place: (floor(place) + ceil(place)) / 2.0,
    "nearest": rint,
}
METHODS = (*_PLACES, *_NEAR)


def flat_last(tensor: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Shape]:
    """Return an array as [whatever is kept, what is along the axes], and the shape of what is kept."""
    kept = [axis for axis in range(tensor.ndim) if axis not in axes]
    moved = tensor.transpose(tuple([*kept, *sorted(axes)]))
    shape = tuple(tensor.shape[axis] for axis in kept)
    return moved.reshape(product(shape), product([tensor.shape[axis] for axis in sorted(axes)])), shape


def as_measured(a: Any) -> Tensor:
    """Return a thing as floats: integers and booleans as float64."""
    tensor = asarray(a)
    if tensor.type not in FLOATS | INTEGERS | {DataType.BOOL}:
        raise Invalid(f"elements of type {tensor.dtype} have no order to measure: convert them with astype")
    return tensor if tensor.type in FLOATS else tensor.astype(DataType.FLOAT64)


def with_axes(result: Tensor, shape: Shape, axes: tuple[int, ...], rank: int, lead: Shape = ()) -> Tensor:
    """Return a result [lead, what is kept] with the axes that went as axes of size 1."""
    kept = iter(shape)
    return result.reshape(*lead, *(1 if axis in axes else next(kept) for axis in range(rank)))


def median(a: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return what lies in the middle along axes: the mean of two where there are so many; NaN wins."""
    keepdims = flag_of(keepdims, "median", "keepdims")
    tensor = as_measured(a)
    not_empty("median", tensor, axis)
    axes = axes_of(axis, tensor.ndim, "median")
    if not tensor.ndim:
        return tensor
    rows, shape = flat_last(tensor, axes)
    b = rows.backend
    count = Tensor(b, b.extent(rows.shape[1], DataType.INT64))
    middle = middles(rows, count)
    most = Tensor(b, b.reduce("reduce_max", rows.value, (1,), keep=False))
    middle = choose(isnan(most), most, middle)
    return with_axes(middle, shape, axes, tensor.ndim) if keepdims else middle.reshape(*shape)


def middles(rows: Tensor, count: Tensor) -> Tensor:
    """Return the middles [rows] of rows, of which the first `count` in ascending order matter.

    `count`: int64, one number or [rows].
    """
    b = rows.backend
    size, length = rows.shape
    flat = Tensor(b, in_order(b, rows.value, 1)).reshape(-1)
    start = Tensor(b, b.arange(size)) * Tensor(b, b.extent(length, DataType.INT64))
    first, second = (flat[clip(place, 0, None) + start] for place in ((count - 1) // 2, count // 2))
    wide = DataType.FLOAT32 if rows.type is DataType.FLOAT16 else rows.type
    mean = ((first.astype(wide) + second.astype(wide)) / 2).astype(rows.type)
    # Two infinities have no middle between them but themselves.
    return asarray(choose(first == second, first, mean))


def quantile(a: Any, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False) -> Tensor:
    """Return what a part `q` (0 to 1) of the elements along axes is at or below; NaN wins."""
    keepdims = flag_of(keepdims, "quantile", "keepdims")
    tensor = as_measured(a)
    not_empty("quantile", tensor, axis)
    rows, shape = flat_last(tensor, axes_of(axis, tensor.ndim, "quantile"))
    count = Tensor(rows.backend, rows.backend.extent(rows.shape[1], DataType.FLOAT64))
    found, lead = quantiles(rows, parts_of(q, tensor, "quantile"), count, method)
    b = rows.backend
    ordered = Tensor(b, b.reduce("reduce_max", rows.value, (1,), keep=False))
    found = choose(isnan(ordered), ordered.astype(found.type), found)
    return shaped(found, lead, shape, axes_of(axis, tensor.ndim, "quantile"), tensor.ndim, keepdims)


def shaped(
    found: Tensor, lead: Shape, shape: Shape, axes: tuple[int, ...], rank: int, keepdims: bool
) -> Tensor:
    return with_axes(found, shape, axes, rank, lead) if keepdims else found.reshape(*lead, *shape)


def percentile(a: Any, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False) -> Tensor:
    """Return what `q` (0 to 100) of a hundred elements along axes are at or below; NaN wins."""
    keepdims = flag_of(keepdims, "percentile", "keepdims")
    return quantile(a, hundredth(q, a, "percentile"), axis, method=method, keepdims=keepdims)


def hundredth(q: Any, a: Any, name: str) -> Tensor:
    """Return per cent as parts of 1."""
    parts = asarray(q)
    known = parts.backend.known(parts.value)
    if known is not None and known.size and not (known.min() >= 0 and known.max() <= 100):
        raise Invalid(f"{name}: q must lie between 0 and 100")
    tensor = asarray(a)
    if isinstance(q, int | float) and tensor.type in FLOATS:
        return (parts.astype(DataType.FLOAT64) / 100).astype(tensor.type)
    return parts / 100


def parts_of(q: Any, tensor: Tensor, name: str) -> Tensor:
    """Return the parts that quantiles are asked for: a number of the array's type, or what q is."""
    parts = asarray(q)
    known = parts.backend.known(parts.value)
    if known is not None and known.size and not (known.min() >= 0 and known.max() <= 1):
        raise Invalid(f"{name}: q must lie between 0 and 1")
    if isinstance(q, int | float):
        return parts.astype(tensor.type)
    return parts if parts.type in FLOATS else parts.astype(DataType.FLOAT64)


def quantiles(rows: Tensor, parts: Tensor, count: Tensor, method: str) -> tuple[Tensor, Shape]:
    """Return quantiles [parts, rows] of rows, of which the first `count` in ascending order matter.

    Then the shape of the parts. `count`: float64, one number or [rows].
    """
    if not isinstance(method, str) or method not in METHODS:
        raise Invalid(
            f"method {str(method)[:40]!r} is none; {', '.join(METHODS)} are"
            f"{did_you_mean(str(method), METHODS)}"
        )
    rows, parts, count = tensors_of(rows, parts, count)
    b, lead = rows.backend, parts.shape
    size, length = rows.shape
    wide = parts.astype(DataType.FLOAT64).reshape(-1, 1)
    if method in _NEAR:
        place = _NEAR[method](wide * (count - 1.0))
    else:
        alpha, beta = _PLACES[method]
        place = (
            wide * count + (alpha + wide * (1.0 - alpha - beta)) - 1.0
            if method != "linear"
            else wide * (count - 1.0)
        )
    place = clip(place, 0.0, clip(count - 1.0, 0.0, None)) + Tensor(
        b, b.broadcast(b.scalar(0, DataType.FLOAT64), (size,))
    )
    low = floor(place)
    weight = place - low
    flat = Tensor(b, in_order(b, rows.value, 1)).reshape(-1)
    start = Tensor(b, b.arange(size)) * Tensor(b, b.extent(length, DataType.INT64))
    most = clip(count - 1.0, 0.0, None)
    first = flat[(low.astype(DataType.INT64) + start)]
    second = flat[(clip(low + 1.0, None, most).astype(DataType.INT64) + start)]
    # As numpy has it: gaps in the array's type, what is between in that of the array and the parts.
    type_ = common_type(rows.type, parts.type)
    gap, weight = second - first, weight.astype(type_)
    found = choose(weight >= 0.5, second - gap * (1 - weight), first + gap * weight)
    found = choose(first == second, first, found)
    return choose(weight == 0, first, found), lead


def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: object = None,
) -> Tensor:
    """Return the covariance of variables: of rows, or of columns unless `rowvar`.

    `fweights` say how often each observation was made, `aweights` how much it counts.
    """
    rowvar, bias = flag_of(rowvar, "cov", "rowvar"), flag_of(bias, "cov", "bias")
    x = _variables(m, rowvar)
    if y is not None:
        other = _variables(y, rowvar)
        x = concatenate([x, other])
    x = x.astype(DataType.FLOAT64 if dtype is None else dtype)
    if x.type not in FLOATS:
        raise Invalid(f"a covariance of type {x.dtype} is none; use a floating type")
    if ddof is None:
        ddof = 0 if bias else 1
    weights = _weights(fweights, aweights, x)
    b = x.backend
    if weights is None:
        count = Tensor(b, b.extent(x.shape[1], x.type))
        middle = total_of(x, 1, keepdims=True) / count
        factor = count - ddof
    else:
        middle, sums = average(x, 1, weights, True, keepdims=True)
        total = sums[0, 0]
        if ddof == 0:
            factor = total
        elif aweights is None:
            factor = total - ddof
        else:
            factor = total - ddof * total_of(weights * asarray(aweights).astype(x.type)) / total
    centred = x - middle
    right = centred if weights is None else centred * weights
    found = matmul(centred, right.T) / clip(factor, 0, None)
    return found.reshape(()) if found.shape == (1, 1) else found


def _variables(m: Any, rowvar: bool) -> Tensor:
    tensor = asarray(m)
    if tensor.ndim > 2:
        raise Invalid(f"cov takes at most 2 axes, not {tensor.ndim}")
    if tensor.ndim < 2:
        return tensor.reshape(1, -1)
    return tensor if rowvar else tensor.T


def _weights(fweights: Any, aweights: Any, x: Tensor) -> Tensor | None:
    weights: Tensor | None = None
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is None:
            continue
        each = asarray(given)
        if each.ndim != 1:
            raise Invalid(f"cov: {name} has {each.ndim} axes; it must be a vector")
        if name == "fweights" and each.type not in INTEGERS:
            raise Invalid(f"cov: fweights holds {each.dtype}; it must be integers")
        each = each.astype(x.type)
        weights = each if weights is None else weights * each
    return weights


def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: object = None) -> Tensor:
    """Return how variables correlate, from -1 to 1."""
    found = cov(x, y, flag_of(rowvar, "corrcoef", "rowvar"), dtype=dtype)
    if not found.ndim:
        return found / found
    deviation = sqrt(diagonal(found))
    return clip(found / deviation.reshape(-1, 1) / deviation.reshape(1, -1), -1, 1)

"""Sums, products, extremes and what is made of them, along axes."""

from __future__ import annotations

from typing import Any

from libs.common.errors import Invalid
from libs.compute.arithmetic import highest, lowest
from libs.compute.axes import axes_of, flag_of
from libs.compute.backend import Size, int_or_none
from libs.compute.matrix.elementwise import maximum, minimum
from libs.compute.matrix.exponential import sqrt
from libs.compute.promotion import FLOATS, INTEGERS, SIGNED, UNSIGNED, name_of, type_named
from libs.compute.tensor import Tensor, asarray, tensors_of
from libs.runtime.plan import DataType

__all__ = [
    "amax",
    "amin",
    "average",
    "count_nonzero",
    "max",
    "mean",
    "min",
    "prod",
    "ptp",
    "std",
    "sum",
    "var",
]


def summing(type_: DataType, dtype: object) -> DataType:
    """Return the type that sums and products are kept in: at least 64 bits for integers, as numpy does."""
    if dtype is not None:
        return type_named(dtype)
    if type_ in UNSIGNED:
        return DataType.UINT64
    return DataType.INT64 if type_ in SIGNED or type_ is DataType.BOOL else type_


def chosen(tensor: Tensor, where: Any, otherwise: float) -> Tensor:
    """Return an array with what isn't chosen replaced, at the shape that both broadcast to."""
    if where is True:
        return tensor
    tensor, mask = tensors_of(tensor, where)
    if mask.type is not DataType.BOOL:
        raise Invalid(f"where holds {mask.dtype}; it must be booleans")
    b = tensor.backend
    return Tensor(b, b.where(mask.value, tensor.value, b.scalar(otherwise, tensor.type)))


def reduced(operator: str, tensor: Tensor, axis: Any, keepdims: bool, call: str = "") -> Tensor:
    """Apply an atomic reduction along axes; None: all axes. It refuses in the name of `call`."""
    b = tensor.backend
    axes = axes_of(axis, tensor.ndim, call)
    return Tensor(
        b,
        b.reduce(
            operator,
            tensor.value,
            axes,
            keep=keepdims is True or flag_of(keepdims, call or operator, "keepdims"),
        ),
    )


def sum(
    a: Any,
    axis: Any = None,
    dtype: object = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Tensor:
    """Return sums along axes; integers are added up in 64 bits, float16 in 32."""
    tensor = asarray(a)
    tensor = tensor.astype(summing(tensor.type, dtype))
    if tensor.type is DataType.BOOL:
        raise Invalid("sum: a sum of type bool is none; use any()")
    found = reduced("reduce_sum", chosen(tensor, where, 0), axis, keepdims, "sum")
    return found if initial is None else (found + initial).astype(tensor.type)


def prod(
    a: Any,
    axis: Any = None,
    dtype: object = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Tensor:
    """Return products along axes; integers are multiplied in 64 bits."""
    tensor = asarray(a)
    tensor = tensor.astype(summing(tensor.type, dtype))
    if tensor.type is DataType.BOOL:
        raise Invalid("prod: a product of type bool is none; use all()")
    found = reduced("reduce_prod", chosen(tensor, where, 1), axis, keepdims, "prod")
    return found if initial is None else (found * initial).astype(tensor.type)


def max(a: Any, axis: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True) -> Tensor:
    """Return maxima along axes; NaN wins. `initial`: the least they are, needed where there is nothing."""
    return _extreme("max", a, axis, keepdims, initial, where)


def min(a: Any, axis: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True) -> Tensor:
    """Return minima along axes; NaN wins. `initial`: the most they are, needed where there is nothing."""
    return _extreme("min", a, axis, keepdims, initial, where)


amax, amin = max, min


def _extreme(name: str, a: Any, axis: Any, keepdims: bool, initial: Any, where: Any) -> Tensor:
    tensor = asarray(a)
    if where is not True and initial is None:
        raise Invalid(f"{name}: with where, initial says what the {name}imum of nothing is")
    if tensor.type is DataType.BOOL:
        found = _extreme(name, tensor.astype(DataType.UINT8), axis, keepdims, initial, where)
        return found.astype(DataType.BOOL)
    if tensor.type not in FLOATS | INTEGERS:
        raise Invalid(f"{name} doesn't take elements of type {tensor.dtype}: convert them with astype")
    if initial is None:
        not_empty(name, tensor, axis)
    worst = lowest(tensor.type) if name == "max" else highest(tensor.type)
    found = reduced(f"reduce_{name}", chosen(tensor, where, worst), axis, keepdims, name)
    if initial is None:
        return found
    return (maximum if name == "max" else minimum)(found, initial)


def not_empty(name: str, tensor: Tensor, axis: Any) -> None:
    """Raise Invalid where an axis is known to be empty."""
    for place in axes_of(axis, tensor.ndim, name):
        if int_or_none(tensor.shape[place]) == 0:
            raise Invalid(f"{name}: axis {place} of an array of shape {list(tensor.shape)} is empty")


def ptp(a: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return how far the maximum is from the minimum along axes."""
    return max(a, axis, keepdims) - min(a, axis, keepdims)


def count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    """Return how many elements along axes are neither 0 nor false."""
    mask = asarray(a).astype(DataType.BOOL)
    return reduced("reduce_sum", mask.astype(DataType.INT64), axis, keepdims, "count_nonzero")


def counted(tensor: Tensor, axis: Any, keepdims: bool, where: Any) -> Tensor:
    """Return how many elements are chosen along axes, as float64."""
    if where is not True:
        mask, _ = tensors_of(where, tensor)
        b = mask.backend
        shape = b.common_shape(mask.shape, tensor.shape)
        wide = Tensor(b, b.cast(b.broadcast(mask.value, shape), DataType.FLOAT64))
        return reduced("reduce_sum", wide, axis, keepdims)
    total: Size = 1
    for place in axes_of(axis, tensor.ndim):
        total = total * tensor.shape[place]
    return Tensor(tensor.backend, tensor.backend.extent(total, DataType.FLOAT64))


def averaging(tensor: Tensor, dtype: object) -> tuple[DataType, DataType]:
    """Return the types that means are computed in, and given in."""
    if dtype is not None:
        given = type_named(dtype)
    else:
        given = tensor.type if tensor.type in FLOATS else DataType.FLOAT64
    if given not in FLOATS:
        raise Invalid(f"a mean of type {name_of(given)} is none; use a floating type")
    return (DataType.FLOAT32 if given is DataType.FLOAT16 else given), given


def mean(
    a: Any, axis: Any = None, dtype: object = None, keepdims: bool = False, *, where: Any = True
) -> Tensor:
    """Return means along axes; of integers as float64. NaN where there is nothing."""
    tensor = asarray(a)
    type_, given = averaging(tensor, dtype)
    total = reduced("reduce_sum", chosen(tensor.astype(type_), where, 0), axis, keepdims, "mean")
    return (total / counted(tensor, axis, keepdims, where).astype(type_)).astype(given)


def var(
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
    """Return the mean squared distance from the mean along axes, of one divided by n - ddof.

    `mean`: where it is known already, with its axes kept.
    """
    tensor = asarray(a)
    type_, given = averaging(tensor, dtype)
    if correction is not None:
        if ddof != 0:
            raise Invalid("var: ddof and correction say the same; give one of them")
        ddof = correction
    wide = tensor.astype(type_)
    number = counted(tensor, axis, True, where).astype(type_)
    middle = mean if mean is not None else sum(wide, axis, type_, True, where=where) / number
    gaps = wide - middle
    total = sum(gaps * gaps, axis, type_, keepdims, where=where)
    left = maximum(counted(tensor, axis, keepdims, where).astype(type_) - ddof, 0)
    return (total / left).astype(given)


def std(
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
    """Return standard deviations: the roots of what `var` gives."""
    return sqrt(var(a, axis, dtype, ddof, keepdims, where=where, mean=mean, correction=correction))


def average(
    a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False
) -> Any:
    """Return means along axes by the elements' weights; `returned`: and the sum of the weights."""
    tensor, keepdims = asarray(a), flag_of(keepdims, "average", "keepdims")
    returned = flag_of(returned, "average", "returned")
    if weights is None:
        found = mean(tensor, axis, keepdims=keepdims)
        total = (found * 0 + counted(tensor, axis, keepdims, True)).astype(found.type)
    else:
        found, total = _weighted(tensor, asarray(weights), axis, keepdims)
    return (found, total) if returned else found


def _weighted(tensor: Tensor, weight: Tensor, axis: Any, keepdims: bool) -> tuple[Tensor, Tensor]:
    if weight.ndim != tensor.ndim:
        axes = axes_of(axis, tensor.ndim)
        if axis is None or weight.ndim != len(axes):
            raise Invalid(
                f"average: weights of {weight.ndim} axes for an array of {tensor.ndim}; "
                "they have its shape, or that of the axes"
            )
        places = [axes.index(place) for place in sorted(axes)]
        sizes = [weight.shape[axes.index(place)] if place in axes else 1 for place in range(tensor.ndim)]
        weight = weight.transpose(places).reshape(*sizes)
    if tensor.type in INTEGERS | {DataType.BOOL}:
        tensor = tensor.astype(DataType.FLOAT64)
    products = tensor * weight
    total = sum((tensor * 0 + weight).astype(products.type), axis, keepdims=keepdims)
    known = total.backend.known(total.value)
    if known is not None and not known.all():
        raise Invalid("average: the weights add up to 0")
    return sum(products, axis, keepdims=keepdims) / total, total

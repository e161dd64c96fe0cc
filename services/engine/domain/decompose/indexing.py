"""Elements taken by index."""

from __future__ import annotations

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, contiguous_strides, product
from services.engine.domain.values import Shape, Value

ONE = Extent.of(1)


def _gather(call: Call) -> Value:
    x = call.input(0)
    return call.builder.gather(x, call.input(1), call.axis(call.integer("axis", 0), x.rank))


def _scaled(b: Builder, value: Value, stride: Extent) -> Value:
    if stride.constant == 1:
        return value
    return b.binary("mul", value, b.extent(stride, DataType.INT64))


def checked(b: Builder, indices: Value, size: Extent) -> Value:
    """Return indices counted from 0: taken out of 0, 1, …, which refuses those out of range."""
    return b.gather(arange(b, size), indices, 0)


def flat_along(b: Builder, shape: Shape, indices: Value, axis: int) -> Value:
    """Return where elements are in flat data, Σ position·stride; the indices are positions along `axis`."""
    strides = contiguous_strides(shape)
    flat = _scaled(b, checked(b, indices, shape[axis]), strides[axis])
    for other, size in enumerate(indices.shape):
        if other != axis and size.constant != 1:
            along = _scaled(b, arange(b, size), strides[other])
            lifted = (size, *[ONE] * (len(shape) - 1 - other))
            flat = b.binary("add", flat, b.reshape(along, lifted))
    return flat


def taken_along(b: Builder, x: Value, indices: Value, axis: int) -> Value:
    """Return the element at each index along an axis; the indices have as many axes as the data."""
    return b.gather(b.reshape(x, (product(x.shape),)), flat_along(b, x.shape, indices, axis), 0)


def _gather_elements(call: Call) -> Value:
    x, indices = call.input(0), call.input(1)
    axis = call.axis(call.integer("axis", 0), x.rank)
    if indices.rank != x.rank:
        call.fail(f"indices {indices} and data {x} have different numbers of axes")
    return taken_along(call.builder, x, indices, axis)


def flat_of_tuples(b: Builder, shape: Shape, indices: Value, depth: int) -> Value:
    """Return where the first `depth` axes of data are in flat data, of indices [..., depth]."""
    strides = contiguous_strides(shape)
    flat = b.broadcast(b.integer(0), indices.shape[:-1], fold=False)
    for position in range(depth):
        column = b.gather(indices, b.integer(position), indices.rank - 1)
        flat = b.binary("add", flat, _scaled(b, checked(b, column, shape[position]), strides[position]))
    return flat


def _gather_nd(call: Call) -> Value:
    x, indices, b = call.input(0), call.input(1), call.builder
    batch = call.integer("batch_dims", 0)
    depth = indices.shape[-1].constant if indices.rank else None
    if depth is None or not 0 <= batch < min(x.rank, indices.rank) or not 1 <= depth <= x.rank - batch:
        call.fail(f"indices {indices} and {batch} batch axes don't fit data {x}")
    if x.shape[:batch] != indices.shape[:batch]:
        call.fail(f"the batch axes of data {x} and indices {indices} differ")
    taken = x.shape[: batch + depth]
    strides = contiguous_strides(taken)
    places = indices.shape[:-1]
    flat = b.scalar(0, DataType.INT64)
    for position in range(depth):
        column = b.gather(indices, b.scalar(position, DataType.INT64), indices.rank - 1)
        own = checked(b, column, taken[batch + position])
        flat = b.binary("add", flat, _scaled(b, own, strides[batch + position]))
    for axis in range(batch):
        along = _scaled(b, arange(b, taken[axis]), strides[axis])
        flat = b.binary("add", flat, b.reshape(along, (taken[axis], *[ONE] * (len(places) - 1 - axis))))
    rest = x.shape[batch + depth :]
    return b.gather(b.reshape(x, (product(taken), *rest)), flat, 0)


def _one_hot(call: Call) -> Value:
    indices, pair, b = call.input(0), call.input(2), call.builder
    depth = call.size(1)
    if pair.rank != 1:
        call.fail(f"its values are {pair}, not a pair: off, on")
    b.equal(pair.shape[0], Extent.of(2))
    axis = call.axis(call.integer("axis", -1), indices.rank + 1)
    places = b.cast(indices, DataType.INT64)
    size = b.extent(depth, DataType.INT64)
    negative = b.binary("lt", places, b.scalar(0, DataType.INT64))
    places = b.where(negative, b.binary("add", places, size), places)
    lifted = b.reshape(places, (*indices.shape[:axis], ONE, *indices.shape[axis:]))
    classes = b.reshape(arange(b, depth), (depth, *[ONE] * (indices.rank - axis)))
    off, on = (b.gather(pair, b.scalar(position, DataType.INT64), 0) for position in (0, 1))
    return b.where(b.binary("eq", lifted, classes), on, off)


OPERATORS = (
    Operator("Gather", "atomic", _gather, keeps=True),
    Operator("GatherElements", "composite", _gather_elements, 11, keeps=True),
    Operator("GatherND", "composite", _gather_nd, 11, keeps=True),
    Operator("OneHot", "composite", _one_hot, 9, keeps=True),
)

"""Axes that data decide: an array is seen as what is before the axis, the axis, and what is after it."""

from __future__ import annotations

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.control import single
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.values import Shape, Value


def axis_of(call: Call, index: int, rank: int) -> Value:
    """Return an input that names an axis, as an int64 scalar that counts from 0."""
    b = call.builder
    axis = b.cast(single(call, call.input(index)), DataType.INT64)
    from_end = b.binary("add", axis, b.integer(rank))
    return b.where(b.binary("lt", axis, b.integer(0)), from_end, axis)


def around(b: Builder, shape: Shape, axis: Value) -> tuple[Extent, Extent, Extent]:
    """Return how many elements are before an axis, on it, and after it."""
    places, sizes = arange(b, Extent.of(len(shape))), b.integers(shape)
    one = b.integer(1)
    parts = [
        b.reduce("reduce_prod", b.where(chosen, sizes, one), (0,), keep=False)
        for chosen in (
            b.binary("lt", places, axis),
            b.binary("eq", places, axis),
            b.binary("lt", axis, places),
        )
    ]
    before, own, after = b.sizes(b.stack(parts))
    return before, own, after


def with_size(b: Builder, shape: Shape, axis: Value, size: Extent) -> Shape:
    """Return a shape with the size of an axis replaced."""
    chosen = b.binary("eq", arange(b, Extent.of(len(shape))), axis)
    return b.sizes(b.where(chosen, b.extent(size, DataType.INT64), b.integers(shape)))


def flags_of(b: Builder, axes: Value, rank: int) -> Value:
    """Return which of so many axes a vector names, as int64 [rank] of 0 and 1.

    A call refuses axes that there aren't, and one that is named twice.
    """
    none = b.broadcast(b.integer(0), (Extent.of(rank),), fold=False)
    ones = b.broadcast(b.integer(1), axes.shape, fold=False)
    flags = b.scatter("scatter", none, b.cast(axes, DataType.INT64), ones)
    b.equal(b.size(b.reduce("reduce_sum", flags, (0,), keep=False)), axes.shape[0])
    return flags


def kept_sizes(b: Builder, shape: Shape, flags: Value, removed: int) -> Shape:
    """Return the sizes of the axes that flags don't name, where they name `removed`."""
    order = b.arg_sort(flags, 0)
    kept = Extent.of(len(shape) - removed)
    return b.sizes(b.gather(b.integers(shape), b.move(order, (kept,), (Extent.of(1),)), 0))


def gathered_last(b: Builder, x: Value, flags: Value) -> Value:
    """Return `x` as [elements of the axes that flags don't name, elements of those that they do]."""
    order = b.arg_sort(flags, 0)
    sizes = b.sizes(b.gather(b.integers(x.shape), order, 0))
    strides = b.sizes(b.gather(b.integers(contiguous_strides(x.shape)), order, 0))
    turned = b.move(x, sizes, strides)
    one, named = b.integer(1), b.cast(flags, DataType.BOOL)
    inner = b.reduce("reduce_prod", b.where(named, b.integers(x.shape), one), (0,), keep=False)
    outer = b.reduce("reduce_prod", b.where(named, one, b.integers(x.shape)), (0,), keep=False)
    return b.reshape(turned, b.sizes(b.stack([outer, inner])))


def is_open(call: Call, index: int) -> bool:
    """Tell whether an input is there whose elements aren't known when the plan is made."""
    value = call.optional(index)
    return value is not None and call.builder.elements(value) is None

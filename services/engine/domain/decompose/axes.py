"""Axes that data decide: an array is seen as what is before the axis, the axis, and what is after it."""

from __future__ import annotations

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.control import single
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call
from services.engine.domain.extents import Extent
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

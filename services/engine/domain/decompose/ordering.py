"""What depends on order, and on how many there are of something: TopK, Unique, NonZero, Compress."""

from __future__ import annotations

import numpy as np

from libs.runtime.plan import DataType
from services.engine.domain import symbolic
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.indexing import taken_along
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, contiguous_strides, product
from services.engine.domain.values import FLOATS, Value

ONE, ZERO = Extent.of(1), Extent.of(0)


def chosen(b: Builder, flags: Value, *, rest: int = 0) -> tuple[Value, Extent]:
    """Return the places of a vector of booleans that are true, and how many there are.

    The places come with `rest` more at the end, each of which is the vector's length.
    """
    size = flags.shape[0]
    ones = b.cast(flags, DataType.INT64)
    count = b.size(b.reduce("reduce_sum", ones, (0,), keep=False))
    after = b.cumulative_sum(ones, 0)
    # What isn't chosen is written to one place more, which is cut off.
    target = b.where(flags, b.binary("sub", after, b.integer(1)), b.extent(count, DataType.INT64))
    room = b.broadcast(b.extent(size, DataType.INT64), (count + 1,), fold=False)
    filled = b.scatter("scatter", room, target, arange(b, size))
    if not rest:
        return b.move(filled, (count,), (ONE,)), count
    again = b.broadcast(b.extent(size, DataType.INT64), (count + rest,), fold=False)
    return b.scatter("scatter", again, arange(b, count), b.move(filled, (count,), (ONE,))), count


def _turned(b: Builder, x: Value) -> Value:
    """Return what ascends where `x` descends."""
    return b.unary("neg" if x.type in FLOATS else "not", x)


def _top_k(call: Call) -> tuple[Value, ...]:
    x, b = call.input(0), call.builder
    axis = call.axis(call.integer("axis", -1), x.rank)
    number = Extent.of(call.integer("k")) if call.opset < 10 else call.size(1)
    size = x.shape[axis]
    if number.constant is not None and size.constant is not None and number.constant > size.constant:
        call.fail(f"the {number} largest are asked for of an axis of {size}")
    call.flag("sorted", True)  # either is right where the order doesn't matter
    key = _turned(b, x) if call.flag("largest", True) else x
    order = b.arg_sort(key, axis)
    shape = (*x.shape[:axis], number, *x.shape[axis + 1 :])
    first = b.move(order, shape, contiguous_strides(order.shape))
    return taken_along(b, x, first, axis), first


def _differs(b: Builder, rows: Value) -> Value:
    """Tell for each row of [n, m] whether it differs from the one before it; the first one does."""
    size, width = rows.shape
    others = symbolic.maximum(size - 1, ZERO, b.bounds)
    strides = (width, ONE)
    before = b.move(rows, (others, width), strides)
    after = b.move(rows, (others, width), strides, symbolic.minimum(width, size * width, b.bounds))
    same = b.binary("eq", before, after)
    changed = b.reduce("reduce_max", b.cast(b.unary("not", same), DataType.INT64), (1,), keep=False)
    first = b.broadcast(b.integer(1), (size - others,), fold=False)
    return b.cast(b.joined([first, changed], 0), DataType.BOOL)


def _sorted_rows(b: Builder, rows: Value) -> Value:
    """Return the order that sorts the rows of [n, m]: by each column, from the last to the first."""
    size, width = rows.shape

    def body(number: Value, state: list[object]) -> tuple[list[Value], list[Value]]:
        (order,) = state
        assert isinstance(order, Value)
        column = b.binary("sub", b.extent(width - 1, DataType.INT64), number)
        values = b.gather(b.gather(rows, column, 1), order, 0)
        return [b.gather(order, b.arg_sort(values, 0), 0)], []

    (order,), _ = b.repeat(width, [arange(b, size)], body)  # type: ignore[arg-type]
    assert isinstance(order, Value)
    return order


def _unique(call: Call) -> tuple[Value, ...]:
    x, b = call.input(0), call.builder
    by_axis = call.node.attributes.get("axis") is not None
    axis = call.axis(call.integer("axis", 0), x.rank) if by_axis else 0
    if not by_axis:
        x = b.reshape(x, (product(x.shape),))
    size = x.shape[axis]
    order_axes = (axis, *(other for other in range(x.rank) if other != axis))
    key = b.places(x)[0] if x.type is DataType.STRING else x
    key = b.transpose(key, order_axes)
    rows = b.reshape(key, (size, product(key.shape[1:])))
    order = _sorted_rows(b, rows)
    new = _differs(b, b.gather(rows, order, 0))
    starts, count = chosen(b, new)
    group = b.binary("sub", b.cumulative_sum(b.cast(new, DataType.INT64), 0), b.integer(1))
    # The order is stable: the first of a group is the first that there is.
    first = b.gather(order, starts, 0)
    none = b.broadcast(b.integer(0), (count,), fold=False)
    counts = b.scatter("scatter_add", none, group, b.broadcast(b.integer(1), (size,), fold=False))
    inverse = b.scatter("scatter", b.broadcast(b.integer(0), (size,), fold=False), order, group)
    if not call.flag("sorted", True):
        places = b.arg_sort(first, 0)
        first, counts = b.gather(first, places, 0), b.gather(counts, places, 0)
        inverse = b.gather(b.scatter("scatter", none, places, arange(b, count)), inverse, 0)
    return b.gather(x, first, axis), first, inverse, counts


def _non_zero(call: Call) -> Value:
    x, b = call.input(0), call.builder
    shape = x.shape or (ONE,)
    flags = x if x.type is DataType.BOOL else b.cast(x, DataType.BOOL)
    places, count = chosen(b, b.reshape(flags, (product(shape),)))
    rows = []
    for size, stride in zip(shape, contiguous_strides(shape), strict=True):
        along = b.binary("div", places, b.extent(stride, DataType.INT64)) if stride != ONE else places
        rows.append(b.binary("mod", along, b.extent(size, DataType.INT64)))
    return b.reshape(b.stack(rows), (Extent.of(len(shape)), count))


def _compress(call: Call) -> Value:
    x, flags, b = call.input(0), call.input(1), call.builder
    if flags.rank != 1:
        call.fail(f"input 1 is {flags}, not a vector of booleans")
    axis = call.axis(call.integer("axis", 0), x.rank) if "axis" in call.node.attributes else None
    if axis is None:
        x, axis = b.reshape(x, (product(x.shape),)), 0
    places, _ = chosen(b, flags)
    return b.gather(x, places, axis)


def _array_features(call: Call) -> Value:
    x, b = call.input(0), call.builder
    places = b.reshape(b.cast(call.input(1), DataType.INT64), (product(call.input(1).shape),))
    found = b.gather(x, places, x.rank - 1)
    return found if x.rank > 1 else b.reshape(found, (ONE, *found.shape))


def _binarizer(call: Call) -> Value:
    x, b = call.input(0), call.builder
    limit = b.constant(np.array(call.number("threshold", 0.0)))
    above = b.binary("lt", b.cast(limit, x.type), x)
    return b.cast(above, x.type)


OPERATORS = (
    Operator("Compress", "composite", _compress, 9, keeps=True),
    Operator("NonZero", "composite", _non_zero, 9, keeps=True),
    Operator("TopK", "composite", _top_k),
    Operator("Unique", "composite", _unique, 11),
    Operator("ai.onnx.ml:ArrayFeatureExtractor", "composite", _array_features, 1),
    Operator("ai.onnx.ml:Binarizer", "composite", _binarizer, 1),
)

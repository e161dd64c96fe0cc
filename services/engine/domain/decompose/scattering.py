"""Elements written by index: ScatterElements, ScatterND, TensorScatter, Col2Im, MaxUnpool."""

from __future__ import annotations

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.indexing import checked, flat_along, flat_of_tuples
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, contiguous_strides, product
from services.engine.domain.values import Move, Shape, Value

ONE, ZERO = Extent.of(1), Extent.of(0)
_REDUCTIONS = {
    "none": "scatter",
    "add": "scatter_add",
    "mul": "scatter_mul",
    "max": "scatter_max",
    "min": "scatter_min",
}


_OF_BOOLEANS = {"scatter_add": "scatter_max", "scatter_mul": "scatter_min"}


def _written(call: Call, data: Value, indices: Value, updates: Value) -> Value:
    """Return data with updates at indices, put there or combined as the node says; true and true is true."""
    b, operator = call.builder, _REDUCTIONS[call.text("reduction", "none", tuple(_REDUCTIONS))]
    if data.type is not DataType.BOOL or operator == "scatter":
        return b.scatter(operator, data, indices, updates)
    numbers = [b.cast(side, DataType.UINT8) for side in (data, updates)]
    combined = b.scatter(_OF_BOOLEANS.get(operator, operator), numbers[0], indices, numbers[1])
    return b.cast(combined, DataType.BOOL)


def _elements(call: Call) -> Value:
    x, indices, updates, b = call.input(0), call.input(1), call.input(2), call.builder
    axis = call.axis(call.integer("axis", 0), x.rank)
    if indices.rank != x.rank or updates.rank != x.rank:
        call.fail(f"indices {indices} and updates {updates} must have the {x.rank} axes of {x}")
    flat = flat_along(b, x.shape, indices, axis)
    count = (product(indices.shape),)
    for size, other in zip(indices.shape, updates.shape, strict=True):
        b.equal(size, other)
    written = _written(
        call,
        b.reshape(x, (product(x.shape),)),
        b.reshape(flat, count),
        b.reshape(updates, count),
    )
    return b.reshape(written, x.shape)


def _nd(call: Call) -> Value:
    x, indices, updates, b = call.input(0), call.input(1), call.input(2), call.builder
    depth = indices.shape[-1].constant if indices.rank else None
    if depth is None or not 0 <= depth <= x.rank:
        call.fail(f"indices {indices} don't fit data {x}")
    taken, rest = x.shape[:depth], x.shape[depth:]
    flat = flat_of_tuples(b, taken, indices, depth)
    count = product(indices.shape[:-1])
    written = _written(
        call,
        b.reshape(x, (product(taken), *rest)),
        b.reshape(flat, (count,)),
        b.reshape(updates, (count, *rest)),
    )
    return b.reshape(written, x.shape)


def _into_cache(call: Call) -> Value:
    cache, update, b = call.input(0), call.input(1), call.builder
    axis = call.axis(call.integer("axis", -2), cache.rank)
    if axis == 0 or update.rank != cache.rank:
        call.fail(f"axis {axis} of cache {cache} and update {update}: the first axis is the batch")
    circular = call.text("mode", "linear", ("linear", "circular")) == "circular"
    size, length = cache.shape[axis], update.shape[axis]
    before, batch = product(cache.shape[:axis]), cache.shape[0]
    rest = cache.shape[axis + 1 :]
    steps = b.reshape(arange(b, length), (ONE, length))
    start = call.optional(2)
    if start is not None:
        own = b.reshape(b.cast(start, DataType.INT64), (batch, ONE, ONE))
        own = b.broadcast(own, (batch, product(cache.shape[1:axis]), ONE), fold=False)
        steps = b.binary("add", b.reshape(own, (before, ONE)), steps)
    if circular:
        steps = b.binary("mod", steps, b.extent(size, DataType.INT64))
    steps = checked(b, steps, size)
    rows = b.binary("mul", b.reshape(arange(b, before), (before, ONE)), b.extent(size, DataType.INT64))
    flat = b.reshape(b.binary("add", rows, steps), (before * length,))
    written = b.scatter(
        "scatter",
        b.reshape(cache, (before * size, *rest)),
        flat,
        b.reshape(update, (before * length, *rest)),
    )
    return b.reshape(written, cache.shape)


def _unpool(call: Call) -> Value:
    x, indices, b = call.input(0), call.input(1), call.builder
    kernel = call.integers("kernel_shape") or ()
    axes = len(kernel)
    strides = call.integers("strides") or (1,) * axes
    pads = call.integers("pads") or (0,) * (2 * axes)
    if axes != x.rank - 2 or len(strides) != axes or len(pads) != 2 * axes:
        call.fail(f"attribute 'kernel_shape' is {list(kernel)} for {x}")
    spatial = tuple(
        (size - 1) * stride - pads[axis] - pads[axes + axis] + extent
        for axis, (size, stride, extent) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    )
    shape = (*x.shape[:2], *spatial)
    none = b.broadcast(b.scalar(0, x.type), (product(shape),), fold=False)
    count = (product(x.shape),)
    places = b.cast(b.reshape(indices, count), DataType.INT64)
    result = b.reshape(b.scatter("scatter", none, places, b.reshape(x, count)), shape)
    if call.optional(2) is None:
        return result
    wanted = call.sizes(2)
    if len(wanted) != x.rank:
        call.fail(f"the output's shape has {len(wanted)} sizes, not {x.rank}")
    return _cornered(b, result, wanted)


def _cornered(b: Builder, x: Value, shape: Shape) -> Value:
    """Return `x` in the first corner of a value of zeros."""
    move = Move(x, x.shape, contiguous_strides(x.shape), ZERO, contiguous_strides(shape), ZERO)
    return b.raster(x.type, shape, [move], fill=0)


def _columns_to_image(call: Call) -> Value:
    """Add up what blocks say of each element of an image; what lies in the padding is dropped."""
    x, b = call.input(0), call.builder
    image, block = call.sizes(1), call.sizes(2)
    axes = len(image)
    dilations = call.integers("dilations") or (1,) * axes
    strides = call.integers("strides") or (1,) * axes
    pads = call.integers("pads") or (0,) * (2 * axes)
    if x.rank != 3 or len(block) != axes or not len(dilations) == len(strides) == axes == len(pads) // 2:
        call.fail(f"{x}, an image of {axes} axes and a block of {len(block)} don't go together")
    windows = tuple(
        (size + pads[axis] + pads[axes + axis] - (own - 1) * dilations[axis] - 1) // strides[axis] + 1
        for axis, (size, own) in enumerate(zip(image, block, strict=True))
    )
    taps, places = product(block), product(windows)
    batch = x.shape[0]
    channels = x.shape[1] // taps
    b.equal(channels * taps, x.shape[1])
    b.equal(places, x.shape[2])
    total = b.extent(product(image), DataType.INT64)
    index: Value = b.integer(0)
    inside: Value | None = None
    for axis, size in enumerate(image):
        tap = b.binary("mul", arange(b, block[axis]), b.integer(dilations[axis]))
        window = b.binary("mul", arange(b, windows[axis]), b.integer(strides[axis]))
        tap = b.reshape(tap, (block[axis], *[ONE] * (2 * axes - 1 - axis)))
        window = b.reshape(window, (windows[axis], *[ONE] * (axes - 1 - axis)))
        at = b.binary("sub", b.binary("add", tap, window), b.integer(pads[axis]))
        own = b.extent(size, DataType.INT64)
        valid = b.binary("and", b.binary("le", b.integer(0), at), b.binary("lt", at, own))
        inside = valid if inside is None else b.binary("and", inside, valid)
        index = b.binary("add", b.binary("mul", index, own), at)
    assert inside is not None
    flat = b.reshape(
        b.broadcast(b.where(inside, index, total), (*block, *windows), fold=False), (taps * places,)
    )
    columns = b.reshape(x, (batch, channels, taps, places))
    rows = b.reshape(b.transpose(columns, (2, 3, 0, 1)), (taps * places, batch * channels))
    none = b.broadcast(b.scalar(0, x.type), (product(image) + 1, batch * channels), fold=False)
    summed = b.scatter("scatter_add", none, flat, rows)
    kept = b.move(summed, (product(image), batch * channels), contiguous_strides(summed.shape))
    return b.reshape(b.transpose(kept, (1, 0)), (batch, channels, *image))


OPERATORS = (
    Operator("Col2Im", "composite", _columns_to_image, 18),
    Operator("MaxUnpool", "composite", _unpool, 9),
    Operator("Scatter", "composite", _elements, 9),
    Operator("ScatterElements", "composite", _elements, 11),
    Operator("ScatterND", "composite", _nd, 11),
    Operator("TensorScatter", "composite", _into_cache, 24),
)

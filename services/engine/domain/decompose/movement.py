"""Operators that only move elements, or say how they lie: nothing but rasters comes of them."""

from __future__ import annotations

from libs.runtime.plan import DataType
from services.engine.domain import symbolic
from services.engine.domain.decompose.axes import flags_of, is_open, kept_sizes
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, contiguous_strides, product
from services.engine.domain.held_types import Thing
from services.engine.domain.values import MOST_AXES, Move, Shape, Value, shape_text

ONE, ZERO = Extent.of(1), Extent.of(0)


def _reshape(call: Call) -> Value:
    x, wanted = call.input(0), call.input(1)
    allow_zero = call.flag("allowzero")
    if call.builder.elements(wanted) is None:
        return _reshape_by_data(call, x, wanted, allow_zero)
    given = call.extents(1)
    shape: list[Extent] = []
    for axis, size in enumerate(given):
        if size.constant == 0 and not allow_zero:
            if axis >= x.rank:
                call.fail(f"size {axis} of the new shape is 0, to copy, but the input is {x}")
            size = x.shape[axis]
        shape.append(size)
    unknown = [axis for axis, size in enumerate(shape) if size.constant == -1]
    if len(unknown) > 1:
        call.fail(f"the new shape {shape_text(tuple(shape))} leaves more than one size open")
    if unknown:
        rest = product(size for axis, size in enumerate(shape) if axis != unknown[0])
        if rest.constant == 0:
            call.fail(f"the new shape {shape_text(tuple(shape))} doesn't say what -1 is")
        shape[unknown[0]] = product(x.shape) // rest
    return call.builder.reshape(x, tuple(shape))


def _reshape_by_data(call: Call, x: Value, wanted: Value, allow_zero: bool) -> Value:
    """Reshape to sizes that data decide: zeros and -1 are put right before they are read as sizes."""
    b = call.builder
    wanted = b.cast(wanted, DataType.INT64)
    rank = wanted.shape[0] if wanted.rank == 1 else None
    if rank is None or rank.constant is None:
        call.fail(f"the new shape is {wanted}, not a vector of known length")
    zero, one = b.integer(0), b.integer(1)
    if not allow_zero:
        # What lies beyond the input's axes may not be copied: -2 is no size, and no -1 either.
        own = b.integers([*x.shape[: rank.constant], *[-2] * (rank.constant - x.rank)])
        wanted = b.where(b.binary("eq", wanted, zero), own, wanted)
    is_open = b.binary("eq", wanted, b.integer(-1))
    rest = b.reduce("reduce_prod", b.where(is_open, one, wanted), (0,), keep=False)
    total = b.extent(product(x.shape), DataType.INT64)
    # Beside a size of 0 any would do: -1 stays, which is no size.
    nothing = b.binary("eq", rest, zero)
    left = b.where(nothing, b.integer(-1), b.binary("div", total, b.where(nothing, one, rest)))
    sizes = b.sizes(b.where(is_open, left, wanted))
    return b.reshape(x, sizes)


def _flatten(call: Call) -> Value:
    x = call.input(0)
    axis = call.integer("axis", 1)
    axis = axis if axis == x.rank else call.axis(axis, x.rank)
    return call.builder.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


def _squeeze(call: Call) -> Value:
    x, b = call.input(0), call.builder
    given: tuple[int, ...] | None = ()
    if is_open(call, 1) and not _is_empty(call.input(1)):
        named = call.input(1)
        if named.rank != 1 or named.shape[0].constant is None:
            call.fail(f"its axes are {named}, not a vector of known length")
        flags = flags_of(b, named, x.rank)
        return b.reshape(x, kept_sizes(b, x.shape, flags, named.shape[0].constant))
    if not is_open(call, 1):
        given = call.axes_of(1)
    if not given:  # of none, ONNX Runtime makes what it makes of those left out
        axes = tuple(axis for axis, size in enumerate(x.shape) if size.constant == 1)
        for axis, size in enumerate(x.shape):
            low, high = b.bounds.range(size)
            if size.constant is not None or not low <= 1 <= high:
                continue
            if size.dimensions & b.bounds.data:
                b.equal(b.not_one(size), ONE)
            else:
                call.fail(
                    f"it names no axes, and axis {axis} of size {size} goes where that is 1: fix the "
                    "dimension, or bound it from 2, or name the axes in the model"
                )
    else:
        axes = call.axes(given, x.rank)
        for axis in axes:
            if x.shape[axis].constant not in (None, 1):
                call.fail(f"axis {axis} has size {x.shape[axis]}, not 1")
            b.equal(x.shape[axis], ONE)
    return b.reshape(x, tuple(size for axis, size in enumerate(x.shape) if axis not in axes))


def _is_empty(value: Value) -> bool:
    return value.rank == 1 and value.shape[0].constant == 0


def _unsqueeze(call: Call) -> Value:
    x, b = call.input(0), call.builder
    if is_open(call, 1):
        named = call.input(1)
        if named.rank != 1 or named.shape[0].constant is None:
            call.fail(f"its axes are {named}, not a vector of known length")
        rank = x.rank + named.shape[0].constant
        others = b.arg_sort(flags_of(b, named, rank), 0)
        ones = b.broadcast(b.integer(1), (Extent.of(rank),), fold=False)
        places = b.move(others, (Extent.of(x.rank),), (ONE,))
        return b.reshape(x, b.sizes(b.scatter("scatter", ones, places, b.integers(x.shape))))
    given = call.axes_of(1)
    if given is None:
        call.fail("its axes are missing")
    axes = call.axes(given, x.rank + len(given))
    sizes = iter(x.shape)
    rank = x.rank + len(given)
    return call.builder.reshape(x, tuple(ONE if axis in axes else next(sizes) for axis in range(rank)))


def _transpose(call: Call) -> Value:
    x = call.input(0)
    order = call.integers("perm") or tuple(reversed(range(x.rank)))
    if sorted(order) != list(range(x.rank)):
        call.fail(f"attribute 'perm' is {list(order)}; it must name each of the {x.rank} axes once")
    return call.builder.transpose(x, order)


def _expand(call: Call) -> Value:
    x = call.input(0)
    b = call.builder
    return b.broadcast(x, b.common_shape(x.shape, call.sizes(1)))


def _tile(call: Call) -> Value:
    x, repeats = call.input(0), call.sizes(1)
    if len(repeats) != x.rank:
        call.fail(f"{len(repeats)} repeats are given for {x}")
    # Each repeated axis takes two of a view's axes: a few at a time, so that they suffice.
    step = max(1, MOST_AXES - x.rank)
    for first in range(0, x.rank, step):
        x = _repeat(call, x, tuple(range(first, min(first + step, x.rank))), repeats)
    return x


def _repeat(call: Call, x: Value, axes: tuple[int, ...], repeats: Shape) -> Value:
    """Repeat along some axes."""
    axes = tuple(axis for axis in axes if repeats[axis].constant != 1)
    if not axes:
        return x
    sizes: list[Extent] = []
    strides: list[Extent] = []
    for axis, (size, stride) in enumerate(zip(x.shape, contiguous_strides(x.shape), strict=True)):
        if axis in axes:
            sizes.append(repeats[axis])
            strides.append(ZERO)
        sizes.append(size)
        strides.append(stride)
    shape = tuple(size * repeats[axis] if axis in axes else size for axis, size in enumerate(x.shape))
    move = Move(x, tuple(sizes), tuple(strides), ZERO, contiguous_strides(tuple(sizes)), ZERO)
    return call.builder.raster(x.type, shape, [move])


def _concat(call: Call) -> Value:
    values = [call.input(index) for index in range(call.count)]
    if not values:
        call.fail("it has no input")
    return call.builder.joined(values, call.axis(call.integer("axis"), values[0].rank))


def _split(call: Call) -> tuple[Value, ...]:
    x, b = call.input(0), call.builder
    axis = call.axis(call.integer("axis", 0), x.rank)
    number = len(call.node.outputs)
    given = call.integers("split")
    sizes: Shape = tuple(map(Extent.of, given)) if given is not None else ()
    if given is None and call.optional(1) is not None:
        sizes = call.sizes(1)
    if not sizes:
        sizes = _even(call, x.shape[axis], number)
    total = sum(sizes, ZERO)
    if len(sizes) != number or (
        None not in (total.constant, x.shape[axis].constant) and total != x.shape[axis]
    ):
        call.fail(f"sizes {shape_text(sizes)} don't divide axis {axis} of {x} among {number} outputs")
    b.equal(total, x.shape[axis])
    strides = contiguous_strides(x.shape)
    parts, start = [], ZERO
    for size in sizes:
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        parts.append(x if shape == x.shape else b.move(x, shape, strides, start * strides[axis]))
        start = start + size
    return tuple(parts)


def _even(call: Call, size: Extent, number: int) -> Shape:
    if (declared := call.integer("num_outputs", number)) != number:
        call.fail(f"attribute 'num_outputs' is {declared}, but the node has {number} outputs")
    if (exact := size.exact_quotient(number)) is not None:
        return (exact,) * number
    if call.opset < 18:
        return (_quotient(call, size, Extent.of(number), "an axis"),) * number
    bounds, chunk = call.builder.bounds, symbolic.ceil_divide(size, number)
    rests = [symbolic.maximum(size - chunk * place, ZERO, bounds) for place in range(number)]
    return tuple(symbolic.minimum(chunk, rest, bounds) for rest in rests)


def _blocks(call: Call) -> tuple[Value, Extent]:
    x = call.input(0)
    size = call.integer("blocksize")
    if x.rank != 4 or not 1 <= size <= 1 << 16:
        call.fail(f"its input is {x}, attribute 'blocksize' {size}; it needs 4 axes and a size from 1")
    return x, Extent.of(size)


def _quotient(call: Call, size: Extent, divisor: Extent, axis: str) -> Extent:
    """Return the size of a part of an axis that is divided evenly: a call refuses other sizes."""
    if (exact := size.exact_quotient(divisor)) is not None:
        return exact
    if size.constant is not None:
        call.fail(f"{axis} of size {size} can't be divided by {divisor}")
    call.builder.equal(size // divisor * divisor, size)
    return size // divisor


def _depth_to_space(call: Call) -> Value:
    x, block = _blocks(call)
    batch, channels, height, width = x.shape
    mode = call.text("mode", "DCR", ("DCR", "CRD"))
    depth = _quotient(call, channels, block * block, "axis 1 (channels)")
    if mode == "DCR":
        split: Shape = (batch, block, block, depth, height, width)
        order = (0, 3, 4, 1, 5, 2)
    else:
        split, order = (batch, depth, block, block, height, width), (0, 1, 4, 2, 5, 3)
    turned = call.builder.transpose(call.builder.reshape(x, split), order)
    return call.builder.reshape(turned, (batch, depth, height * block, width * block))


def _space_to_depth(call: Call) -> Value:
    x, block = _blocks(call)
    batch, channels, height, width = x.shape
    rows = _quotient(call, height, block, "axis 2 (height)")
    columns = _quotient(call, width, block, "axis 3 (width)")
    split = call.builder.reshape(x, (batch, channels, rows, block, columns, block))
    mode = call.text("mode", "DCR", ("DCR", "CRD"))
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    turned = call.builder.transpose(split, order)
    return call.builder.reshape(turned, (batch, channels * block * block, rows, columns))


def _identity(call: Call) -> Thing:
    return call.thing(0)


OPERATORS = (
    Operator("Concat", "transform", _concat),
    Operator("DepthToSpace", "transform", _depth_to_space),
    Operator("Expand", "transform", _expand, 8),
    Operator("Flatten", "transform", _flatten),
    Operator("Identity", "static", _identity),
    Operator("Reshape", "transform", _reshape),
    Operator("SpaceToDepth", "transform", _space_to_depth),
    Operator("Split", "transform", _split),
    Operator("Squeeze", "transform", _squeeze),
    Operator("Tile", "transform", _tile),
    Operator("Transpose", "transform", _transpose),
    Operator("Unsqueeze", "transform", _unsqueeze),
)

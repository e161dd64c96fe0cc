"""Slices, and padding in its modes."""

from __future__ import annotations

from collections.abc import Sequence

from libs.runtime.plan import DataType
from services.engine.domain import symbolic
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.axes import is_open
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Bounds, Extent, contiguous_strides
from services.engine.domain.values import Move, Value

ZERO = Extent.of(0)


def _slice(call: Call) -> Value:
    x = call.input(0)
    if call.opset < 10:
        starts, ends = call.integers("starts"), call.integers("ends")
        if starts is None or ends is None:
            call.fail("attribute 'starts' or 'ends' is missing")
        first, last = tuple(map(Extent.of, starts)), tuple(map(Extent.of, ends))
        axes, steps = call.integers("axes"), None
    else:
        if any(is_open(call, index) for index in range(1, 5)):
            return _slice_by_data(call, x)
        first, last = call.extents(1), call.extents(2)
        axes = None if call.optional(3) is None else call.static_integers(3)
        steps = None if call.optional(4) is None else call.static_integers(4)
    axes = call.axes(tuple(range(len(first))) if axes is None else axes, x.rank)
    steps = (1,) * len(axes) if steps is None else steps
    if not len(first) == len(last) == len(axes) == len(steps):
        call.fail(f"it has {len(first)} starts, {len(last)} ends, {len(axes)} axes and {len(steps)} steps")
    sizes, strides, offset = list(x.shape), list(contiguous_strides(x.shape)), ZERO
    for axis, start, end, step in zip(axes, first, last, steps, strict=True):
        if step == 0:
            call.fail("a step is 0")
        begin, sizes[axis] = _range(call, start, end, step, x.shape[axis])
        offset = offset + begin * strides[axis]
        strides[axis] = strides[axis] * step
    if tuple(sizes) == x.shape and all(step == 1 for step in steps):
        return x
    return call.builder.move(x, tuple(sizes), tuple(strides), offset)


def _slice_by_data(call: Call, x: Value) -> Value:
    """Slice by numbers that data decide: which places are taken is computed, as Python does it."""
    b, rank = call.builder, x.rank
    count = call.input(1).shape[0].constant if call.input(1).rank == 1 else None
    if count is None:
        call.fail(f"its starts are {call.input(1)}, not a vector of known length")
    starts, ends = (b.cast(call.input(index), DataType.INT64) for index in (1, 2))
    steps = b.broadcast(b.integer(1), (Extent.of(count),), fold=False)
    if call.optional(4) is not None:
        steps = b.cast(call.input(4), DataType.INT64)
    if is_open(call, 3):
        named = b.cast(call.input(3), DataType.INT64)
        wide = (Extent.of(rank),)
        starts = b.scatter("scatter", b.broadcast(b.integer(0), wide, fold=False), named, starts)
        far = b.broadcast(b.integer(1 << 62), wide, fold=False)
        ends = b.scatter("scatter", far, named, ends)
        steps = b.scatter("scatter", b.broadcast(b.integer(1), wide, fold=False), named, steps)
        axes = tuple(range(rank))
    else:
        axes = tuple(range(count)) if call.optional(3) is None else call.static_integers(3)
        axes = call.axes(axes, rank)
    for place, axis in enumerate(axes):
        start, end, step = (b.gather(each, b.integer(place), 0) for each in (starts, ends, steps))
        x = _taken(b, x, axis, start, end, step)
    return x


def _taken(b: Builder, x: Value, axis: int, start: Value, end: Value, step: Value) -> Value:
    none, one = b.integer(0), b.integer(1)
    size = b.extent(x.shape[axis], DataType.INT64)
    forward = b.binary("lt", none, step)
    low = b.where(forward, none, b.integer(-1))
    high = b.where(forward, size, b.binary("sub", size, one))

    def bound(value: Value) -> Value:
        counted = b.where(b.binary("lt", value, none), b.binary("add", value, size), value)
        return b.binary("min", b.binary("max", counted, low), high)

    first, last = bound(start), bound(end)
    gap = b.where(forward, b.binary("sub", last, first), b.binary("sub", first, last))
    width = b.unary("abs", step)
    rounded = b.binary("sub", b.binary("add", gap, width), one)
    number = b.binary("div", b.binary("max", rounded, none), width)
    count = b.size(number)
    if step.known is not None and int(step.known) == 1:
        strides = contiguous_strides(x.shape)
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        return b.move(x, shape, strides, b.size(b.binary("max", first, none)) * strides[axis])
    places = b.binary("add", b.binary("mul", arange(b, count), step), first)
    return b.gather(x, places, axis)


def _range(call: Call, start: Extent, end: Extent, step: int, size: Extent) -> tuple[Extent, Extent]:
    """Return the first index and the number of a slice along an axis of `size`, as Python's slices do."""
    bounds = call.builder.bounds
    first, last = _from_start(call, start, size), _from_start(call, end, size)
    if step > 0:
        first = symbolic.clamp(first, ZERO, size, bounds)
        last = symbolic.clamp(last, ZERO, size, bounds)
        number = symbolic.ceil_divide(last - first, step)
    else:
        first = _capped(first, ZERO, size - 1, bounds)
        last = _capped(last, Extent.of(-1), size - 1, bounds)
        number = symbolic.ceil_divide(first - last, -step)
    return first, symbolic.maximum(number, ZERO, bounds)


def _capped(value: Extent, low: Extent, high: Extent, bounds: Bounds) -> Extent:
    """Clamp; the upper end wins where an axis of size 0 leaves no room."""
    return symbolic.minimum(symbolic.maximum(value, low, bounds), high, bounds)


def _from_start(call: Call, index: Extent, size: Extent) -> Extent:
    low, high = call.builder.bounds.range(index)
    if low >= 0:
        return index
    if high < 0:
        return index + size
    call.fail(f"it can't be told whether {index} counts from the start or from the end")


def _pad(call: Call) -> Value:
    x, b = call.input(0), call.builder
    modes = ("constant", "reflect", "edge", "wrap")
    mode = call.text("mode", "constant", modes)
    if call.opset < 11:
        pads = tuple(map(Extent.of, call.integers("pads") or ()))
        fill: float | None = call.number("value", 0.0)
    else:
        if any(is_open(call, index) for index in (1, 3)) or not _fill_is_known(call):
            return _pad_by_data(call, x, mode)
        pads, fill = call.extents(1), _fill(call)
    axes = tuple(range(x.rank))
    if call.opset >= 18 and call.optional(3) is not None:
        axes = call.axes(call.static_integers(3), x.rank)
    if len(pads) != 2 * len(axes):
        call.fail(f"{len(pads)} paddings are given for {len(axes)} axes")
    before, after = [ZERO] * x.rank, [ZERO] * x.rank
    for position, axis in enumerate(axes):
        before[axis], after[axis] = pads[position], pads[len(axes) + position]
    x = _cropped(call, x, before, after)
    if mode == "constant":
        return _filled(b, x, before, after, fill)
    for axis in range(x.rank):
        x = _repeated(call, x, axis, before[axis], after[axis], mode)
    return x


def _fill_is_known(call: Call) -> bool:
    value = call.optional(2)
    return value is None or value.known is not None


def _pad_by_data(call: Call, x: Value, mode: str) -> Value:
    """Pad by widths that data decide: along each axis, which element comes where is computed."""
    b, rank = call.builder, x.rank
    pads = b.cast(call.input(1), DataType.INT64)
    axes = call.optional(3) if call.opset >= 18 else None
    count = rank if axes is None else axes.shape[0].constant if axes.rank == 1 else None
    if pads.rank != 1 or count is None or pads.shape[0].constant != 2 * count:
        call.fail(f"paddings {pads} are given for {x}, axes {axes}; there must be two for each axis")
    half = (Extent.of(count),)
    ends = [b.move(pads, half, (Extent.of(1),), start) for start in (0, count)]
    if axes is not None:
        none = b.broadcast(b.integer(0), (Extent.of(rank),), fold=False)
        ends = [b.scatter("scatter", none, b.cast(axes, DataType.INT64), end) for end in ends]
    value = call.optional(2)
    fill = b.scalar(0, x.type) if value is None else b.reshape(value, ())
    outside: Value | None = None
    for axis in range(rank):
        before, after = (b.gather(end, b.integer(axis), 0) for end in ends)
        size = b.extent(x.shape[axis], DataType.INT64)
        total = b.binary("add", b.binary("add", before, size), after)
        target = b.size(b.binary("max", total, b.integer(0)))
        places = b.binary("sub", arange(b, target), before)
        x = b.gather(x, _folded(b, places, size, mode), axis)
        if mode == "constant":
            there = b.binary("and", b.binary("le", b.integer(0), places), b.binary("lt", places, size))
            lifted = b.reshape(b.unary("not", there), (target, *[Extent.of(1)] * (rank - 1 - axis)))
            outside = lifted if outside is None else b.binary("or", outside, lifted)
    return x if outside is None else b.where(outside, fill, x)


def _folded(b: Builder, places: Value, size: Value, mode: str) -> Value:
    """Return places within an axis for those that may be outside of it."""
    none, one = b.integer(0), b.integer(1)
    last = b.binary("sub", size, one)
    if mode == "wrap":
        return b.binary("mod", places, b.binary("max", size, one))
    if mode == "reflect":
        period = b.binary("max", b.binary("mul", last, b.integer(2)), one)
        rest = b.binary("mod", places, period)
        return b.binary("min", rest, b.binary("max", b.binary("sub", period, rest), none))
    return b.binary("max", b.binary("min", places, last), none)


def _fill(call: Call) -> float:
    value = call.optional(2)
    if value is None:
        return 0
    if value.known is None or value.known.size != 1:
        call.fail("input 2, what is filled in, must be one constant")
    filling: float = value.known.reshape(-1)[0].item()
    return filling


def _cropped(call: Call, x: Value, before: list[Extent], after: list[Extent]) -> Value:
    """Carry out negative paddings, and set them to 0."""
    bounds = call.builder.bounds
    sizes, strides, offset = list(x.shape), contiguous_strides(x.shape), ZERO
    for pads, front in ((before, True), (after, False)):
        for axis, pad in enumerate(pads):
            low, high = bounds.range(pad)
            if low >= 0:
                continue
            if high > 0:
                call.fail(f"it can't be told whether padding {pad} adds or takes away")
            sizes[axis] = sizes[axis] + pad
            offset = offset - pad * strides[axis] if front else offset
            pads[axis] = ZERO
    return x if tuple(sizes) == x.shape else call.builder.move(x, tuple(sizes), strides, offset)


def _filled(
    b: Builder, x: Value, before: Sequence[Extent], after: Sequence[Extent], fill: float | None
) -> Value:
    shape = tuple(a + size + c for a, size, c in zip(before, x.shape, after, strict=True))
    if shape == x.shape:
        return x
    strides = contiguous_strides(shape)
    start = sum((a * stride for a, stride in zip(before, strides, strict=True)), ZERO)
    move = Move(x, x.shape, contiguous_strides(x.shape), ZERO, strides, start)
    return b.raster(x.type, shape, [move], fill=fill)


def _repeated(call: Call, x: Value, axis: int, before: Extent, after: Extent, mode: str) -> Value:
    """Pad along one axis with elements of the axis itself."""
    if before.constant == 0 and after.constant == 0:
        return x
    size, own = x.shape[axis], contiguous_strides(x.shape)
    room = {"edge": Extent.of(1 << 62), "reflect": size - 1, "wrap": size}[mode]
    for pad in (before, after):
        if call.builder.bounds.range(room - pad)[1] < 0:
            call.fail(f"padding {pad} in mode {mode!r} exceeds what axis {axis} of {x} has")
    shape = (*x.shape[:axis], before + size + after, *x.shape[axis + 1 :])
    strides = contiguous_strides(shape)
    step = own[axis]
    sources = {  # first element and step of what is written in front, and behind
        "edge": ((ZERO, ZERO), ((size - 1) * step, ZERO)),
        "reflect": ((before * step, -step), ((size - 2) * step, -step)),
        "wrap": (((size - before) * step, step), (ZERO, step)),
    }[mode]

    def moved(length: Extent, source: Extent, source_step: Extent, start: Extent) -> Move:
        sizes = (*x.shape[:axis], length, *x.shape[axis + 1 :])
        steps = (*own[:axis], source_step, *own[axis + 1 :])
        return Move(x, sizes, steps, source, strides, start * strides[axis])

    front, behind = sources
    return call.builder.raster(
        x.type,
        shape,
        [
            moved(before, *front, ZERO),
            moved(size, ZERO, step, before),
            moved(after, *behind, before + size),
        ],
    )


OPERATORS = (
    Operator("Pad", "transform", _pad),
    Operator("Slice", "transform", _slice),
)

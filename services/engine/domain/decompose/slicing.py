"""Slices, and padding in its modes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from libs.runtime.plan import DataType
from services.engine.domain import symbolic
from services.engine.domain.bounds import Bounds
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.axes import flags_of, is_open
from services.engine.domain.decompose.control import single
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.values import Move, Value, static

ZERO = Extent.of(0)
_LONGEST_STEP = 1 << 61


def _slice(call: Call) -> Value:
    x = call.input(0)
    if call.opset < 10:
        starts, ends = call.integers("starts"), call.integers("ends")
        if starts is None or ends is None:
            call.fail("attribute 'starts' or 'ends' is missing")
        first, last = tuple(map(Extent.of, starts)), tuple(map(Extent.of, ends))
        axes, steps = call.integers("axes"), (1,) * len(first)
    else:
        if any(is_open(call, index) for index in range(1, 5)):
            return _slice_by_data(call, x)
        first, last = call.extents(1), call.extents(2)
        known_steps = (1,) * len(first) if call.optional(4) is None else static(call.extents(4))
        if known_steps is None or any(_is_either(call, index) for index in (*first, *last)):
            return _slice_by_data(call, x)
        steps = known_steps
        axes = None if call.optional(3) is None else call.static_integers(3)
    axes = call.axes(tuple(range(len(first))) if axes is None else axes, x.rank)
    if not len(first) == len(last) == len(axes) == len(steps):
        call.fail(f"it has {len(first)} starts, {len(last)} ends, {len(axes)} axes and {len(steps)} steps")
    sizes, strides, offset = list(x.shape), list(contiguous_strides(x.shape)), ZERO
    for axis, start, end, step in zip(axes, first, last, steps, strict=True):
        if step == 0:
            call.fail("a step is 0")
        # A step longer than the axis leaves it at once.
        longest = max(call.builder.bounds.range(x.shape[axis])[1], 1)
        step = max(min(step, longest), -longest)
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
    for value in [starts, ends, *(call.input(index) for index in (3, 4) if call.optional(index) is not None)]:
        if value.rank != 1:
            call.fail(f"its starts, ends, axes or steps are {value}, not a vector")
        b.equal(value.shape[0], starts.shape[0])
    steps = b.broadcast(b.integer(1), (Extent.of(count),), fold=False)
    if call.optional(4) is not None:
        steps = b.cast(call.input(4), DataType.INT64)
    if is_open(call, 3):
        named = b.cast(call.input(3), DataType.INT64)
        flags_of(b, named, rank)
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
    # Longer steps leave the axis at once; as they are, their absolute value may exceed 64 bits.
    step = b.binary("max", b.binary("min", step, b.integer(_LONGEST_STEP)), b.integer(-_LONGEST_STEP))
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


def _is_either(call: Call, index: Extent) -> bool:
    """Tell whether an index may count from the start or from the end."""
    low, high = call.builder.bounds.range(index)
    return low < 0 <= high


def _from_start(call: Call, index: Extent, size: Extent) -> Extent:
    return index if call.builder.bounds.range(index)[0] >= 0 else index + size


def _pad(call: Call) -> Value:
    x, b = call.input(0), call.builder
    mode = call.text("mode", "constant", ("constant", "reflect", "edge", "wrap"))
    if call.opset < 11:
        widths = b.integers(call.integers("pads") or ())
        fill = b.scalar(call.number("value", 0.0), x.type)
        named = None
    else:
        widths, value = call.input(1), call.optional(2)
        fill = _nothing(b, x.type) if value is None else single(call, value)
        named = call.optional(3) if call.opset >= 18 else None
    count = x.rank if named is None else named.shape[0].constant if named.rank == 1 else None
    if widths.rank != 1 or count is None or widths.shape[0].constant != 2 * count:
        call.fail(f"paddings {widths} are given for {x}, axes {named}; there must be two for each axis")
    pads = b.elements(widths)
    axes = tuple(range(x.rank)) if named is None else _constants(b, named)
    if pads is None or axes is None:
        return _pad_by_data(b, x, widths, named, fill, mode)
    axes = call.axes(axes, x.rank)
    before, after = [ZERO] * x.rank, [ZERO] * x.rank
    for position, axis in enumerate(axes):
        before[axis], after[axis] = pads[position], pads[count + position]
    if fill.known is None or x.type is DataType.STRING or not _is_plain(b, x, before, after, mode):
        return _pad_by_data(b, x, b.integers([*before, *after]), None, fill, mode)
    x = _cropped(b, x, before, after)
    if mode == "constant":
        return _filled(b, x, before, after, fill.known.item())
    for axis in range(x.rank):
        x = _repeated(b, x, axis, before[axis], after[axis], mode)
    return x


def _nothing(b: Builder, type_: DataType) -> Value:
    return b.constant(np.array("", np.object_)) if type_ is DataType.STRING else b.scalar(0, type_)


def _constants(b: Builder, value: Value) -> tuple[int, ...] | None:
    found = b.elements(value)
    return None if found is None else static(tuple(found))


def _is_plain(b: Builder, x: Value, before: Sequence[Extent], after: Sequence[Extent], mode: str) -> bool:
    """Tell whether it surely is one copy for each side, and one for the middle."""
    bounds = b.bounds
    for size, *pads in zip(x.shape, before, after, strict=True):
        inner = size
        for pad in pads:
            low, high = bounds.range(pad)
            if low < 0 < high:
                return False
            inner = inner + (pad if low < 0 else ZERO)
        room = {"reflect": inner - 1, "wrap": inner}.get(mode)
        widest = [pad for pad in pads if bounds.range(pad)[1] > 0]
        if mode == "edge" and widest and not bounds.positive(inner):
            return False
        if room is not None and not all(bounds.at_least(room, pad) for pad in widest):
            return False
    return True


def _pad_by_data(b: Builder, x: Value, pads: Value, axes: Value | None, fill: Value, mode: str) -> Value:
    """Pad by widths that data decide: along each axis, which element comes where is computed."""
    rank, count = x.rank, pads.shape[0] // 2
    pads = b.cast(pads, DataType.INT64)
    ends = [b.move(pads, (count,), (Extent.of(1),), start) for start in (ZERO, count)]
    if axes is not None:
        flags_of(b, axes, rank)
        none = b.broadcast(b.integer(0), (Extent.of(rank),), fold=False)
        ends = [b.scatter("scatter", none, b.cast(axes, DataType.INT64), end) for end in ends]
    before, after, cuts, sizes = list[Extent](), list[Extent](), list[Extent](), list[Extent]()
    for axis, size in enumerate(x.shape):
        front, back = (b.gather(end, b.integer(axis), 0) for end in ends)
        before.append(b.size(_above(b, front)))
        after.append(b.size(_above(b, back)))
        cuts.append(b.size(_above(b, b.unary("neg", front))))
        sizes.append(size - cuts[-1] - b.size(_above(b, b.unary("neg", back))))
    # What is taken away goes first: only what is left is repeated.
    if tuple(sizes) != x.shape:
        strides = contiguous_strides(x.shape)
        start = sum((cut * stride for cut, stride in zip(cuts, strides, strict=True)), ZERO)
        x = b.move(x, tuple(sizes), strides, start)
    if mode == "constant":
        return _filled_by_data(b, x, before, after, fill)
    for axis, size in enumerate(x.shape):
        target = before[axis] + size + after[axis]
        if target != size:
            places = b.binary("sub", arange(b, target), b.extent(before[axis], DataType.INT64))
            x = b.gather(x, _folded(b, places, b.extent(size, DataType.INT64), mode), axis)
    return x


def _above(b: Builder, value: Value) -> Value:
    return b.binary("max", value, b.integer(0))


def _filled_by_data(
    b: Builder, x: Value, before: Sequence[Extent], after: Sequence[Extent], fill: Value
) -> Value:
    if fill.known is not None and x.type is not DataType.STRING:
        return _filled(b, x, before, after, fill.known.item())
    there = b.broadcast(b.constant(np.array(False)), x.shape, fold=False)
    return b.where(_filled(b, there, before, after, True), fill, _filled(b, x, before, after, 0))


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


def _cropped(b: Builder, x: Value, before: list[Extent], after: list[Extent]) -> Value:
    """Carry out negative paddings, and set them to 0."""
    sizes, strides, offset = list(x.shape), contiguous_strides(x.shape), ZERO
    for pads, front in ((before, True), (after, False)):
        for axis, pad in enumerate(pads):
            if b.bounds.range(pad)[0] >= 0:
                continue
            sizes[axis] = sizes[axis] + pad
            offset = offset - pad * strides[axis] if front else offset
            pads[axis] = ZERO
    return x if tuple(sizes) == x.shape else b.move(x, tuple(sizes), strides, offset)


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


def _repeated(b: Builder, x: Value, axis: int, before: Extent, after: Extent, mode: str) -> Value:
    """Pad along one axis with elements of the axis itself."""
    if before.constant == 0 and after.constant == 0:
        return x
    size, own = x.shape[axis], contiguous_strides(x.shape)
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
    return b.raster(
        x.type,
        shape,
        [
            moved(before, *front, ZERO),
            moved(size, ZERO, step, before),
            moved(after, *behind, before + size),
        ],
    )


def _center(call: Call) -> Value:
    """Cut or pad both ends of axes to sizes; of what is odd, the first end loses or gets less."""
    x, b = call.input(0), call.builder
    wanted = call.sizes(1)
    axes = call.axes(call.integers("axes") or tuple(range(x.rank)), x.rank)
    if len(wanted) != len(axes):
        call.fail(f"input 1, the shape, has {len(wanted)} sizes for {len(axes)} axes")
    shape, box = list(x.shape), list(x.shape)
    own = contiguous_strides(x.shape)
    cut, padded = [ZERO] * x.rank, [ZERO] * x.rank
    for axis, size in zip(axes, wanted, strict=True):
        kept = symbolic.minimum(x.shape[axis], size, b.bounds)
        cut[axis], padded[axis] = (x.shape[axis] - kept) // 2, (size - kept) // 2
        shape[axis], box[axis] = size, kept
    strides = contiguous_strides(tuple(shape))
    offset = sum((a * c for a, c in zip(cut, own, strict=True)), ZERO)
    start = sum((a * c for a, c in zip(padded, strides, strict=True)), ZERO)
    move = Move(x, tuple(box), own, offset, strides, start)
    return b.raster(x.type, tuple(shape), [move], fill=0)


OPERATORS = (
    Operator("CenterCropPad", "transform", _center, 18),
    Operator("Pad", "transform", _pad),
    Operator("Slice", "transform", _slice),
)

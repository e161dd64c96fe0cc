"""Regions of interest: RoiAlign and MaxRoiPool."""

from __future__ import annotations

import math

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.values import Value

ONE = Extent.of(1)


def _columns(b: Builder, rois: Value, count: int) -> list[Value]:
    shape, strides = rois.shape[:1], contiguous_strides(rois.shape)[:1]
    return [b.move(rois, shape, strides, place) for place in range(count)]


def _rows(b: Builder, x: Value) -> Value:
    """Return [batch·height·width, channels]."""
    turned = b.transpose(x, (0, 2, 3, 1))
    return b.reshape(turned, (x.shape[0] * x.shape[2] * x.shape[3], x.shape[1]))


def _axis_points(call: Call, start: Value, end: Value, bins: int, half: bool) -> tuple[Value, Value, Value]:
    """Return sampling points [rois, bins, points] of an axis, which of them count, and how many do."""
    b, type_ = call.builder, start.type
    rois = start.shape[0]
    length = b.binary("sub", end, start)
    if not half:
        length = b.binary("max", length, b.scalar(1, type_))
    size = b.binary("div", length, b.scalar(bins, type_))
    ratio = call.integer("sampling_ratio", 0)
    if ratio > 0:
        most = Extent.of(ratio)
        number = b.broadcast(b.scalar(ratio, type_), (rois,), fold=False)
    else:
        number = b.ceil(size)
        whole = b.cast(b.binary("max", number, b.scalar(0, type_)), DataType.INT64)
        padded = b.joined([whole, b.reshape(b.integer(0), (ONE,))], 0)
        most = b.size(b.reduce("reduce_max", padded, (0,), keep=False))
    step = b.reshape(arange(b, most), (ONE, ONE, most))
    point = b.binary("add", b.cast(step, type_), b.scalar(0.5, type_))
    lifted = (rois, ONE, ONE)
    within = b.binary("div", b.binary("mul", point, b.reshape(size, lifted)), b.reshape(number, lifted))
    place = b.cast(b.reshape(arange(b, Extent.of(bins)), (ONE, Extent.of(bins), ONE)), type_)
    offset = b.binary("mul", place, b.reshape(size, lifted))
    points = b.binary("add", b.binary("add", b.reshape(start, lifted), offset), within)
    counts = b.binary("lt", b.cast(step, type_), b.reshape(number, lifted))
    return points, counts, number


def _ends(b: Builder, points: Value, size: Extent) -> tuple[Value, Value, Value, Value, Value]:
    """Return the elements on both sides, their weights, and which points are near the image."""
    type_ = points.type
    whole, last = b.extent(size, type_), b.extent(size - 1, type_)
    near = b.binary("and", b.binary("le", b.scalar(-1, type_), points), b.binary("le", points, whole))
    inside = b.binary("max", points, b.scalar(0, type_))
    low = b.binary("min", b.unary("floor", inside), last)
    at_end = b.binary("le", last, low)
    high = b.where(at_end, last, b.binary("add", low, b.scalar(1, type_)))
    share = b.where(at_end, b.scalar(0, type_), b.binary("sub", inside, low))
    rest = b.binary("sub", b.scalar(1, type_), share)
    safe = [b.cast(b.binary("max", end, b.scalar(0, type_)), DataType.INT64) for end in (low, high)]
    return safe[0], safe[1], rest, share, near


def _align(call: Call) -> Value:
    x, rois, b = call.input(0), call.input(1), call.builder
    if x.rank != 4 or rois.rank != 2:
        call.fail(f"it takes an image of 4 axes and boxes of 2, not {x} and {rois}")
    mode = call.text("mode", "avg", ("avg", "max"))
    ways = ("half_pixel", "output_half_pixel")
    default = "output_half_pixel" if call.opset < 16 else "half_pixel"
    half = call.text("coordinate_transformation_mode", default, ways) == "half_pixel"
    height, width = call.integer("output_height", 1), call.integer("output_width", 1)
    scale = b.scalar(call.number("spatial_scale", 1.0), rois.type)
    shift = b.scalar(0.5 if half else 0, rois.type)
    x1, y1, x2, y2 = (b.binary("sub", b.binary("mul", end, scale), shift) for end in _columns(b, rois, 4))
    down, down_counts, down_number = _axis_points(call, y1, y2, height, half)
    across, across_counts, across_number = _axis_points(call, x1, x2, width, half)
    count, taps = rois.shape[0], (down.shape[2], across.shape[2])
    tall = (count, Extent.of(height), taps[0], ONE, ONE)
    wide = (count, ONE, ONE, Extent.of(width), taps[1])
    top, bottom, upper, lower, near_y = _ends(b, down, x.shape[2])
    left, right, before, after, near_x = _ends(b, across, x.shape[3])
    near = b.binary("and", b.reshape(near_y, tall), b.reshape(near_x, wide))
    counts = b.binary(
        "and",
        b.reshape(b.broadcast(down_counts, down.shape, fold=False), tall),
        b.reshape(b.broadcast(across_counts, across.shape, fold=False), wide),
    )
    member = b.reshape(b.cast(call.input(2), DataType.INT64), (count, *[ONE] * 4))
    rows, total = _rows(b, x), None
    for row, row_weight in ((top, upper), (bottom, lower)):
        for column, column_weight in ((left, before), (right, after)):
            place = b.binary("mul", member, b.extent(x.shape[2], DataType.INT64))
            place = b.binary("add", place, b.reshape(row, tall))
            place = b.binary("mul", place, b.extent(x.shape[3], DataType.INT64))
            place = b.binary("add", place, b.reshape(column, wide))
            weight = b.binary("mul", b.reshape(row_weight, tall), b.reshape(column_weight, wide))
            weight = b.where(near, weight, b.scalar(0, weight.type))
            taken = b.gather(rows, place, 0)
            part = b.binary("mul", taken, b.reshape(b.cast(weight, x.type), (*weight.shape, ONE)))
            total = part if total is None else b.binary("add" if mode == "avg" else "max", total, part)
    assert total is not None
    lifted = b.reshape(counts, (*counts.shape, ONE))
    none = b.scalar(0.0 if mode == "avg" else -math.inf, x.type)
    kept = b.where(lifted, total, none)
    # [rois, height, taps, width, taps, channels]
    if mode == "avg":
        result = b.reduce("reduce_sum", kept, (2, 4), keep=False)
        number = b.binary("max", b.binary("mul", down_number, across_number), b.scalar(1, rois.type))
        result = b.binary("div", result, b.cast(b.reshape(number, (count, ONE, ONE, ONE)), x.type))
    else:
        result = b.extreme_or("reduce_max", kept, (2, 4), 0.0)
    return b.transpose(result, (0, 3, 1, 2))


def _bin_ends(b: Builder, start: Value, end: Value, bins: int, size: Extent) -> tuple[Value, Value]:
    """Return where the bins of each region begin, and where they end, [rois, bins], within the image."""
    type_ = start.type
    rois, number = start.shape[0], Extent.of(bins)
    length = b.binary(
        "max", b.binary("add", b.binary("sub", end, start), b.scalar(1, type_)), b.scalar(1, type_)
    )
    each = b.reshape(b.binary("div", length, b.scalar(bins, type_)), (rois, ONE))
    place = b.cast(arange(b, number), type_)
    base = b.reshape(start, (rois, ONE))
    low = b.binary("add", b.unary("floor", b.binary("mul", place, each)), base)
    next_ = b.binary("add", place, b.scalar(1, type_))
    high = b.binary("add", b.ceil(b.binary("mul", next_, each)), base)
    limit = b.extent(size, type_)

    def clipped(value: Value) -> Value:
        return b.binary("max", b.binary("min", value, limit), b.scalar(0, type_))

    return clipped(low), clipped(high)


def _pool(call: Call) -> Value:
    x, rois, b = call.input(0), call.input(1), call.builder
    pooled = call.integers("pooled_shape") or ()
    if x.rank != 4 or rois.rank != 2 or len(pooled) != 2:
        call.fail(f"it takes an image of 4 axes, boxes of 2 and 2 sizes, not {x}, {rois} and {list(pooled)}")
    number, *ends = _columns(b, rois, 5)
    scale = b.scalar(call.number("spatial_scale", 1.0), rois.type)
    half = b.scalar(0.5, rois.type)
    x1, y1, x2, y2 = (b.unary("floor", b.binary("add", b.binary("mul", end, scale), half)) for end in ends)
    places, counted = [], []
    for start, end, bins, size in ((y1, y2, pooled[0], x.shape[2]), (x1, x2, pooled[1], x.shape[3])):
        low, high = _bin_ends(b, start, end, bins, size)
        length = b.cast(b.binary("sub", high, low), DataType.INT64)
        flat = b.reshape(length, (length.shape[0] * length.shape[1],))
        padded = b.joined([flat, b.reshape(b.integer(1), (ONE,))], 0)
        most = b.size(b.reduce("reduce_max", padded, (0,), keep=False))
        step = arange(b, most)
        at = b.binary("add", b.reshape(b.cast(low, DataType.INT64), (*low.shape, ONE)), step)
        last = b.extent(size - 1, DataType.INT64)
        places.append(b.binary("min", at, last))
        counted.append(b.binary("lt", step, b.reshape(length, (*length.shape, ONE))))
    count = rois.shape[0]
    tall = (count, Extent.of(pooled[0]), places[0].shape[2], ONE, ONE)
    wide = (count, ONE, ONE, Extent.of(pooled[1]), places[1].shape[2])
    member = b.reshape(b.cast(number, DataType.INT64), (count, *[ONE] * 4))
    place = b.binary("mul", member, b.extent(x.shape[2], DataType.INT64))
    place = b.binary(
        "mul", b.binary("add", place, b.reshape(places[0], tall)), b.extent(x.shape[3], DataType.INT64)
    )
    place = b.binary("add", place, b.reshape(places[1], wide))
    inside = b.binary("and", b.reshape(counted[0], tall), b.reshape(counted[1], wide))
    taken = b.gather(_rows(b, x), place, 0)
    kept = b.where(b.reshape(inside, (*inside.shape, ONE)), taken, b.scalar(-math.inf, x.type))
    result = b.extreme_or("reduce_max", kept, (2, 4), 0.0)
    return b.transpose(result, (0, 3, 1, 2))


OPERATORS = (
    Operator("MaxRoiPool", "composite", _pool),
    Operator("RoiAlign", "composite", _align, 10),
)

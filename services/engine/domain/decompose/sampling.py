"""Sampling at places that data decide: grids, regions of interest, deformed convolutions.

A place is a coordinate for each axis of space, as a float. What lies around it is gathered from rows of
channels, one for each element of the image, and weighted.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, contiguous_strides, product
from services.engine.domain.values import Shape, Value

ONE = Extent.of(1)
_CUBIC = -0.75
"""As in Keys, "Cubic convolution interpolation" (1981), with the coefficient that image libraries use."""


@dataclass(frozen=True, slots=True)
class _Image:
    """Rows of channels, [batch·space, channels], and where they come from."""

    b: Builder
    rows: Value
    batch: Extent
    space: Shape
    padding: str
    """What lies outside: "zeros", "border" or "reflection"."""
    align: bool
    """Whether reflection is at the outer elements' centres, rather than at their edges."""
    wide: DataType

    def reflected(self, place: Value, size: Extent) -> Value:
        """Return coordinates reflected into the image, from wherever they are."""
        b = self.b
        low = b.scalar(0 if self.align else -0.5, self.wide)
        span = b.extent(size - 1 if self.align else size, self.wide)
        high = b.binary("add", low, span)
        safe = b.binary("max", span, b.scalar(1, self.wide))
        away = b.unary("abs", b.binary("sub", place, low))
        turns = b.unary("floor", b.binary("div", away, safe))
        rest = b.binary("sub", away, b.binary("mul", turns, safe))
        odd = b.binary("eq", b.binary("mod", turns, b.scalar(2, self.wide)), b.scalar(1, self.wide))
        return b.where(odd, b.binary("sub", high, rest), b.binary("add", low, rest))

    def brought_in(self, place: Value, size: Extent) -> Value:
        """Return coordinates with those outside the image moved to what stands for them."""
        b = self.b
        if self.padding != "reflection":
            # Each element around is what the border is, or 0: where the place itself is doesn't matter.
            return place
        low = b.scalar(0 if self.align else -0.5, self.wide)
        high = b.binary("add", low, b.extent(size - 1 if self.align else size, self.wide))
        outside = b.binary("or", b.binary("lt", place, low), b.binary("lt", high, place))
        return b.where(outside, self.reflected(place, size), place)

    def _clipped(self, place: Value, size: Extent) -> Value:
        b = self.b
        last = b.extent(size - 1, self.wide)
        return b.binary("max", b.binary("min", place, last), b.scalar(0, self.wide))

    def taken(self, members: Value, tap: Sequence[Value]) -> Value:
        """Return the rows at whole coordinates, [..., channels]; `members` says of which image each is."""
        b = self.b
        index, valid = members, None
        for place, size in zip(tap, self.space, strict=True):
            if self.padding == "reflection":
                place = self.reflected(place, size)
            elif self.padding == "zeros":
                last = b.extent(size - 1, self.wide)
                inside = b.binary(
                    "and", b.binary("le", b.scalar(0, self.wide), place), b.binary("le", place, last)
                )
                valid = inside if valid is None else b.binary("and", valid, inside)
            whole = b.cast(self._clipped(place, size), DataType.INT64)
            index = b.binary("add", b.binary("mul", index, b.extent(size, DataType.INT64)), whole)
        found = b.gather(self.rows, index, 0)
        if valid is None:
            return found
        return b.where(b.reshape(valid, (*valid.shape, ONE)), found, b.scalar(0, found.type))

    def sampled(self, members: Value, places: Sequence[Value], mode: str) -> Value:
        """Return what is at coordinates, [..., channels]; `places` has those of each axis, of one shape."""
        b = self.b
        taps = [self._taps(place, mode) for place in places]
        total: Value | None = None
        for choice in itertools.product(*taps):
            part = self.taken(members, [tap for tap, _ in choice])
            weight: Value | None = None
            for _, own in choice:
                weight = own if weight is None or own is None else b.binary("mul", weight, own)
            if weight is not None:
                part = b.binary("mul", part, b.reshape(weight, (*weight.shape, ONE)))
            total = part if total is None else b.binary("add", total, part)
        assert total is not None
        return total

    def _taps(self, place: Value, mode: str) -> list[tuple[Value, Value | None]]:
        """Return whole coordinates and their weights."""
        b = self.b
        if mode == "nearest":
            return [(b.unary("round", place), None)]
        first = b.unary("floor", place)
        rest = b.binary("sub", place, first)
        one = b.scalar(1, self.wide)
        if mode == "linear":
            return [(first, b.binary("sub", one, rest)), (b.binary("add", first, one), rest)]
        return [
            (b.binary("add", first, b.scalar(shift, self.wide)), weight)
            for shift, weight in zip((-1, 0, 1, 2), self._cubic(rest), strict=True)
        ]

    def _cubic(self, x: Value) -> list[Value]:
        b = self.b

        def polynomial(t: Value, *coefficients: float) -> Value:
            value = b.scalar(coefficients[0], self.wide)
            for coefficient in coefficients[1:]:
                value = b.binary("add", b.binary("mul", value, t), b.scalar(coefficient, self.wide))
            return value

        a, one = _CUBIC, b.scalar(1, self.wide)
        left = b.binary("sub", one, x)
        outer = (a, -5 * a, 8 * a, -4 * a)
        inner = (a + 2, -(a + 3), 0.0, 1.0)
        return [
            polynomial(b.binary("add", x, one), *outer),
            polynomial(x, *inner),
            polynomial(left, *inner),
            polynomial(b.binary("add", left, one), *outer),
        ]


def _wide(x: Value) -> DataType:
    return DataType.FLOAT64 if x.type is DataType.FLOAT64 else DataType.FLOAT32


def _image(call: Call, x: Value, padding: str, align: bool) -> _Image:
    """Return [batch, channels, space…] as rows of channels."""
    b, wide = call.builder, _wide(x)
    space = x.shape[2:]
    rows = b.transpose(b.cast(x, wide), (0, *range(2, x.rank), 1))
    rows = b.reshape(rows, (x.shape[0] * product(space), x.shape[1]))
    return _Image(b, rows, x.shape[0], space, padding, align, wide)


def _members(b: Builder, batch: Extent, rank: int) -> Value:
    """Return the number of each member of the batch, [batch, 1, …]."""
    return b.reshape(arange(b, batch), (batch, *[ONE] * (rank - 1)))


_MODES = {
    "bilinear": "linear",
    "bicubic": "cubic",
    "linear": "linear",
    "cubic": "cubic",
    "nearest": "nearest",
}


def _grid_sample(call: Call) -> Value:
    x, grid, b = call.input(0), call.input(1), call.builder
    dimensions = x.rank - 2
    if dimensions < 1 or grid.rank != x.rank or grid.shape[-1].constant != dimensions:
        call.fail(f"the grid is {grid} for {x}; it must have {dimensions} coordinates for each place")
    b.equal(grid.shape[0], x.shape[0])
    mode = _MODES[call.text("mode", "linear" if call.opset >= 20 else "bilinear", tuple(_MODES))]
    padding = call.text("padding_mode", "zeros", ("zeros", "border", "reflection"))
    align = call.flag("align_corners")
    image = _image(call, x, padding, align)
    grid = b.cast(grid, image.wide)
    places = []
    for axis, size in enumerate(image.space):
        # Coordinates are in the opposite order of axes, from -1 to 1.
        inner = grid.shape[:-1]
        strides = contiguous_strides(grid.shape)[:-1]
        own = b.move(grid, inner, strides, dimensions - 1 - axis)
        half = b.scalar(0.5, image.wide)
        up = b.binary("add", own, b.scalar(1, image.wide))
        if align:
            place = b.binary("mul", b.binary("mul", up, half), b.extent(size - 1, image.wide))
        else:
            whole = b.binary("mul", up, b.extent(size, image.wide))
            place = b.binary("mul", b.binary("sub", whole, b.scalar(1, image.wide)), half)
        if mode == "nearest":
            place = b.unary("round", place)
        places.append(image.brought_in(place, size))
    found = image.sampled(_members(b, x.shape[0], grid.rank - 1), places, mode)
    return b.cast(b.transpose(found, (0, found.rank - 1, *range(1, found.rank - 1))), x.type)


def _deform_conv(call: Call) -> Value:
    x, w, offset, b = call.input(0), call.input(1), call.input(2), call.builder
    bias, mask = call.optional(3), call.optional(4)
    dimensions = x.rank - 2
    group, sets = call.integer("group", 1), call.integer("offset_group", 1)
    kernel = call.integers("kernel_shape")
    shape = w.shape[2:] if kernel is None else tuple(map(Extent.of, kernel))
    strides = call.integers("strides") or (1,) * dimensions
    dilations = call.integers("dilations") or (1,) * dimensions
    pads = call.integers("pads") or (0,) * (2 * dimensions)
    if w.rank != x.rank or offset.rank != x.rank or len(pads) != 2 * dimensions:
        call.fail(f"{x}, {w}, {offset} and {len(pads)} paddings don't go together")
    taps, out = product(shape), offset.shape[2:]
    batch, channels = x.shape[0], x.shape[1]
    each = channels // sets
    b.equal(offset.shape[1], taps * (sets * dimensions))
    b.equal(each * sets, channels)
    image = _image(call, b.reshape(x, (batch * sets, each, *x.shape[2:])), "zeros", True)
    # [batch·sets, taps…, axis, out…]: a member of `image` for each set of offsets.
    moved = b.reshape(b.cast(offset, image.wide), (batch * sets, *shape, Extent.of(dimensions), *out))
    places = []
    for axis in range(dimensions):
        inner = (batch * sets, *shape, *out)
        own = contiguous_strides(moved.shape)
        steps = (*own[: 1 + dimensions], *own[2 + dimensions :])
        shift = b.move(moved, inner, steps, own[1 + dimensions] * axis)
        tap = _along(b, shape[axis], 1 + axis, len(inner), dilations[axis], 0)
        window = _along(b, out[axis], 1 + dimensions + axis, len(inner), strides[axis], -pads[axis])
        base = b.cast(b.binary("add", tap, window), image.wide)
        places.append(b.binary("add", base, shift))
    found = image.sampled(_members(b, batch * sets, 1 + 2 * dimensions), places, "linear")
    if mask is not None:
        weights = b.reshape(b.cast(mask, image.wide), (batch * sets, *shape, *out, ONE))
        found = b.binary("mul", found, weights)
    area = product(out)
    columns = b.reshape(found, (batch * sets, taps, area, each))
    columns = b.transpose(columns, (0, 3, 1, 2))
    inner_channels = channels // group
    columns = b.reshape(columns, (batch, Extent.of(group), inner_channels * taps, area))
    weights = b.reshape(b.cast(w, image.wide), (Extent.of(group), w.shape[0] // group, inner_channels * taps))
    weights = b.broadcast(weights, (batch, *weights.shape), fold=False)
    result = b.reshape(b.matmul(weights, columns), (batch, w.shape[0], *out))
    if bias is not None:
        lifted = b.reshape(b.cast(bias, image.wide), (bias.shape[0], *[ONE] * dimensions))
        result = b.binary("add", result, lifted)
    return b.cast(result, x.type)


def _along(b: Builder, size: Extent, axis: int, rank: int, step: int, start: int) -> Value:
    """Return start, start + step, … along an axis of a value of so many axes."""
    counted = b.binary("mul", arange(b, size), b.integer(step))
    shifted = b.binary("add", counted, b.integer(start))
    return b.reshape(shifted, tuple(size if place == axis else ONE for place in range(rank)))


def _affine_grid(call: Call) -> Value:
    """Return theta times each place of a grid from -1 to 1, coordinates in the opposite order of axes."""
    theta, b = call.floats(call.input(0)), call.builder
    sizes = call.sizes(1)
    dimensions = len(sizes) - 2
    if theta.rank != 3 or dimensions not in (2, 3) or theta.shape[1].constant != dimensions:
        call.fail(
            f"theta is {theta} for a grid of {dimensions} dimensions; it must be [n, 2, 3] or [n, 3, 4]"
        )
    align, space = call.flag("align_corners"), sizes[2:]
    total: Value | None = None
    for axis in reversed(range(dimensions)):
        place = _grid_line(b, space[axis], theta.type, align)
        lifted = b.reshape(place, tuple(space[axis] if other == axis else ONE for other in range(dimensions)))
        column = b.gather(theta, b.integer(dimensions - 1 - axis), 2)
        column = b.reshape(column, (theta.shape[0], *[ONE] * dimensions, Extent.of(dimensions)))
        part = b.binary("mul", b.reshape(lifted, (*lifted.shape, ONE)), column)
        total = part if total is None else b.binary("add", total, part)
    shift = b.gather(theta, b.integer(dimensions), 2)
    shift = b.reshape(shift, (theta.shape[0], *[ONE] * dimensions, Extent.of(dimensions)))
    assert total is not None
    b.equal(sizes[0], theta.shape[0])
    return b.binary("add", total, shift)


def _grid_line(b: Builder, size: Extent, type_: DataType, align: bool) -> Value:
    """Return where elements of an axis lie between -1 and 1: their centres, or, aligned, end to end."""
    index, one = b.cast(arange(b, size), type_), b.scalar(1, type_)
    twice = b.binary("mul", index, b.scalar(2, type_))
    if not align:
        whole = b.extent(size, type_)
        return b.binary("sub", b.binary("div", b.binary("add", twice, one), whole), one)
    last = b.binary("max", b.extent(size - 1, type_), one)
    # A single element is at -1, the first end.
    return b.binary("sub", b.binary("div", twice, last), one)


OPERATORS = (
    Operator("AffineGrid", "composite", _affine_grid, 20),
    Operator("DeformConv", "composite", _deform_conv, 19),
    Operator("GridSample", "composite", _grid_sample, 16),
)

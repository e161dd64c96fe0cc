"""Lines, boxes, circles and polygons, put over an image.

OpenCV writes into an image; these return another one. Points may be tensors: what a model has found can be
drawn by the plan that found it. Only colours, radii and thicknesses must be known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image.pixels import (
    PIXELS,
    absolute,
    channels_of,
    chosen,
    clip,
    colour,
    constant,
    describe,
    flag,
    height_width,
    image,
    maximum,
    minimum,
    planes,
    read,
    restored,
    saturate,
    static,
    take,
    where,
    whole,
)
from libs.compute.tensor import Tensor, tensors_of

__all__ = ["circle", "fillPoly", "line", "polylines", "rectangle"]

_FARTHEST = 1 << 20
"""Of a point from an image's corner, in pixels."""
_MOST_THICKNESS = 32767
_MOST_POINTS = 4096
_FIXED = 1 << 16


class _Canvas:
    """An image, and the places of its pixels."""

    def __init__(self, call: str, img: Any, color: Any, points: Sequence[Tensor]) -> None:
        self.call = call
        tensor = image(call, "img", img, PIXELS)
        lifted = tensors_of(tensor, *points)
        self.image, self.points = lifted[0], lifted[1:]
        height, width = height_width(self.image)
        self.x = constant(self.image, np.arange(width).reshape(1, -1), "int64")
        self.y = constant(self.image, np.arange(height).reshape(-1, 1), "int64")
        self._colour = colour(call, "color", color, channels_of(self.image))

    def painted(self, mask: Tensor) -> Tensor:
        """Return the image with the colour where a mask holds."""
        ink = saturate(constant(self.image, np.array(self._colour), "float64"), self.image.dtype)
        over = where(mask.reshape((*mask.shape, 1)), ink, planes(self.image))
        return restored(over, self.image)


def _points(call: str, name: str, thing: Any, count: int | None = None) -> Tensor:
    """Return points, int64 [n, 2], put within reach."""
    found = read(call, name, thing)
    sizes = static(call, name, found)
    if not sizes or sizes[-1] != 2 or found.dtype not in ("int32", "int64"):
        raise Invalid(f"{call}: {name} is {describe(found)}; points are integers (x, y)")
    points = found.reshape((-1, 2)).astype("int64")
    number = int(points.shape[0])
    if number > _MOST_POINTS or (count is not None and number != count):
        raise Invalid(f"{call}: {name} has {number} points; it has {count or f'at most {_MOST_POINTS}'}")
    return clip(points, -_FARTHEST, _FARTHEST)


def _thickness(call: str, value: Any, *, filled: bool) -> int:
    thickness = whole(call, "thickness", value, -1 if filled else 1, _MOST_THICKNESS)
    if thickness == 0:
        raise Invalid(f"{call}: thickness is 0; it is 1 or more{', or FILLED' if filled else ''}")
    return thickness


def line(
    img: Any,
    pt1: Any,
    pt2: Any,
    color: Any,
    thickness: int = 1,
    lineType: int = c.LINE_8,
) -> Tensor:
    """Return img with a line from pt1 to pt2, both (x, y).

    OpenCV: exact for a thickness of 1, else but for pixels along its edges.
    """
    call = "line"
    width = _thickness(call, thickness, filled=False)
    chosen(call, "lineType", lineType, (c.LINE_8,))
    ends = [_points(call, name, point, 1) for name, point in (("pt1", pt1), ("pt2", pt2))]
    canvas = _Canvas(call, img, color, ends)
    return canvas.painted(_stroke(canvas, canvas.points[0][0], canvas.points[1][0], width))


def _stroke(canvas: _Canvas, start: Tensor, stop: Tensor, width: int) -> Tensor:
    return _thin(canvas, start, stop) if width == 1 else _thick(canvas, start, stop, width)


def _thin(canvas: _Canvas, start: Tensor, stop: Tensor) -> Tensor:
    """Return a line by Bresenham as a mask: left to right, one pixel for each step along the longer side."""
    x0, y0, x1, y1, there = _clipped(canvas, start, stop)
    swap = x1 < x0
    x, y = where(swap, x1, x0), where(swap, y1, y0)
    dx, dy = where(swap, x0, x1) - x, where(swap, y0, y1) - y
    down = where(dy < 0, constant(dy, -1), constant(dy, 1))
    dy = absolute(dy)
    flat = _steps(canvas.x - x, dx, dy)
    on_flat = (canvas.x >= x) & (canvas.x <= x + dx) & (canvas.y == y + down * flat)
    along = (canvas.y - y) * down
    steep = _steps(along, dy, dx)
    on_steep = (along >= 0) & (along <= dy) & (canvas.x == x + steep)
    return there & where(dy > dx, on_steep, on_flat)


def _clipped(canvas: _Canvas, start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the ends of what of a line lies in the image, and whether anything does.

    As OpenCV clips: each end moves to the row, then to the column of the edge that it lies beyond.
    """
    height, width = height_width(canvas.image)
    x0, y0, x1, y1 = start[0], start[1], stop[0], stop[1]
    aside = [_beyond(x0, width), _beyond(x1, width)]
    over = [_beyond(y0, height), _beyond(y1, height)]
    there = _not_both(aside) & _not_both(over)
    x0, y0 = _moved(x0, y0, x1, y1, over[0], height)
    aside[0] = _beyond(x0, width)
    x1, y1 = _moved(x1, y1, x0, y0, over[1], height)
    aside[1] = _beyond(x1, width)
    there = there & _not_both(aside)
    y0, x0 = _moved(y0, x0, y1, x1, aside[0], width)
    y1, x1 = _moved(y1, x1, y0, x0, aside[1], width)
    return x0, y0, x1, y1, there


def _beyond(at: Tensor, size: int) -> Tensor:
    """Return -1 before the first place, 1 after the last, 0 between."""
    return (at >= size).astype("int64") - (at < 0).astype("int64")


def _not_both(sides: Sequence[Tensor]) -> Tensor:
    found: Tensor = sides[0] * sides[1] != 1
    return found


def _moved(x0: Tensor, y0: Tensor, x1: Tensor, y1: Tensor, side: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return an end that lies beyond an edge in y, at that edge."""
    edge = where(side > 0, constant(y0, size - 1), constant(y0, 0))
    high = (y1 - y0).astype("float64")
    by = ((edge - y0) * (x1 - x0)).astype("float64") / where(high == 0, constant(high, 1), high)
    # A cast cuts the fraction off, as C's.
    inside: Tensor = side == 0
    return where(inside, x0, x0 + by.astype("int64")), where(inside, y0, edge)


def _steps(at: Tensor, long: Tensor, short: Tensor) -> Tensor:
    """Return how many steps aside so many ahead take; halves stay."""
    some = maximum(long, constant(long, 1))
    return (short * at * 2 + some - 1) // (some * 2)


def _thick(canvas: _Canvas, start: Tensor, stop: Tensor, width: int) -> Tensor:
    """Return what lies within reach of a line, its round ends included."""
    x, y = start[0].astype("float64"), start[1].astype("float64")
    dx, dy = stop[0].astype("float64") - x, stop[1].astype("float64") - y
    across, down = canvas.x.astype("float64") - x, canvas.y.astype("float64") - y
    length = dx * dx + dy * dy
    share = (across * dx + down * dy) / maximum(length, constant(length, 1))
    share = minimum(maximum(share, constant(share, 0)), constant(share, 1))
    aside, beyond = across - share * dx, down - share * dy
    return aside * aside + beyond * beyond <= _reach(width) ** 2


def _reach(width: int) -> float:
    """Return how far from its middle a line of a thickness goes: odd ones as the next even one."""
    return (width + width % 2) / 2 + 0.4


def rectangle(
    img: Any,
    pt1: Any,
    pt2: Any,
    color: Any,
    thickness: int = 1,
    lineType: int = c.LINE_8,
) -> Tensor:
    """Return img with a box between two corners (x, y), which belong to it; FILLED: with what is inside.

    OpenCV: exact for a thickness of 1 and FILLED, else but for pixels along its edges.
    """
    call = "rectangle"
    width = _thickness(call, thickness, filled=True)
    chosen(call, "lineType", lineType, (c.LINE_8,))
    corners = [_points(call, name, point, 1) for name, point in (("pt1", pt1), ("pt2", pt2))]
    canvas = _Canvas(call, img, color, corners)
    first, second = canvas.points[0][0], canvas.points[1][0]
    low, high = minimum(first, second), maximum(first, second)
    reach = 0 if width < 2 else int(_reach(width))
    x, y = canvas.x, canvas.y
    inside = (x >= low[0] - reach) & (x <= high[0] + reach) & (y >= low[1] - reach) & (y <= high[1] + reach)
    if width < 0:
        return canvas.painted(inside)
    left, right, top, bottom = low[0] + reach, high[0] - reach, low[1] + reach, high[1] - reach
    within = (x > left) & (x < right) & (y > top) & (y < bottom)
    return canvas.painted(inside & ~within)


def circle(
    img: Any, center: Any, radius: int, color: Any, thickness: int = 1, lineType: int = c.LINE_8
) -> Tensor:
    """Return img with a circle about (x, y); FILLED: with what is inside.

    OpenCV: exact for a thickness of 1 and FILLED, else but for pixels along its edges.
    """
    call = "circle"
    width = _thickness(call, thickness, filled=True)
    chosen(call, "lineType", lineType, (c.LINE_8,))
    size = whole(call, "radius", radius, 0, _MOST_THICKNESS)
    canvas = _Canvas(call, img, color, [_points(call, "center", center, 1)])
    middle = canvas.points[0][0]
    away_x, away_y = absolute(canvas.x - middle[0]), absolute(canvas.y - middle[1])
    if width > 1:
        square = (away_x * away_x + away_y * away_y).astype("float64")
        inner = max(size - _reach(width), 0.0)
        outside: Tensor = square >= inner**2
        return canvas.painted((square <= (size + _reach(width)) ** 2) & outside)
    low, high = _octants(size)
    row = minimum(away_y, constant(away_y, size + 1))
    most = take(constant(row, np.append(high, -1)), row, 0)
    inside = away_x <= most
    if width == 1:
        inside = inside & (away_x >= take(constant(row, np.append(low, 0)), row, 0))
    return canvas.painted(inside)


def _octants(radius: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return for each row of a circle, from its middle, from where to where its line goes."""
    low, high = np.full(radius + 1, radius + 1), np.full(radius + 1, -1)
    x, y, error, plus, minus = radius, 0, 0, 1, 2 * radius - 1
    while x >= y:
        for row, column in ((y, x), (x, y)):
            low[row], high[row] = min(low[row], column), max(high[row], column)
        y += 1
        error += plus
        plus += 2
        if error > 0:
            error -= minus
            x -= 1
            minus -= 2
    return low, high


def polylines(
    img: Any, pts: Any, isClosed: bool, color: Any, thickness: int = 1, lineType: int = c.LINE_8
) -> Tensor:
    """Return img with lines through lists of points, int32 [n, 2] or [n, 1, 2], and back where isClosed.

    OpenCV: as line.
    """
    call = "polylines"
    width = _thickness(call, thickness, filled=False)
    chosen(call, "lineType", lineType, (c.LINE_8,))
    canvas, mask = _outlined(call, img, pts, color, flag(call, "isClosed", isClosed), width)
    return canvas.image if mask is None else canvas.painted(mask)


def _outlined(
    call: str, img: Any, pts: Any, color: Any, closed: bool, width: int
) -> tuple[_Canvas, Tensor | None]:
    outlines = _outlines(call, pts)
    canvas = _Canvas(call, img, color, outlines)
    mask = None
    for points in canvas.points:
        count = int(points.shape[0])
        for place in range(count if closed else count - 1):
            stroke = _stroke(canvas, points[place], points[(place + 1) % count], width)
            mask = stroke if mask is None else mask | stroke
        if count == 1 and not closed:
            stroke = _stroke(canvas, points[0], points[0], width)
            mask = stroke if mask is None else mask | stroke
    return canvas, mask


def _outlines(call: str, pts: Any) -> list[Tensor]:
    if not isinstance(pts, (list, tuple)):
        pts = [pts]
    found = [_points(call, "pts", points) for points in pts]
    if sum(int(points.shape[0]) for points in found) > _MOST_POINTS:
        raise Invalid(f"{call}: pts has more than {_MOST_POINTS} points")
    return found


def fillPoly(img: Any, pts: Any, color: Any, lineType: int = c.LINE_8) -> Tensor:
    """Return img with what lies inside of an odd number of outlines, int32 [n, 2] or [n, 1, 2], and those.

    OpenCV: exact for outlines inside of the image, else but for pixels along them.
    """
    call = "fillPoly"
    chosen(call, "lineType", lineType, (c.LINE_8,))
    canvas, mask = _outlined(call, img, pts, color, True, 1)
    if mask is None:
        return canvas.image
    inside = None
    for points in canvas.points:
        count = int(points.shape[0])
        for place in range(count):
            right = _right_of(canvas, points[place], points[(place + 1) % count])
            inside = right if inside is None else inside ^ right
    assert inside is not None
    return canvas.painted(mask | inside)


def _right_of(canvas: _Canvas, start: Tensor, stop: Tensor) -> Tensor:
    """Tell which pixels of the rows that an edge crosses lie right of it, or on it."""
    swap = stop[1] < start[1]
    top, bottom = where(swap, stop, start), where(swap, start, stop)
    high = bottom[1] - top[1]
    slope = _truncated((bottom[0] - top[0]) * _FIXED, maximum(high, constant(high, 1)))
    crossing = top[0] * _FIXED + (canvas.y - top[1]) * slope
    on_row = (canvas.y >= top[1]) & (canvas.y < bottom[1])
    return on_row & (canvas.x * _FIXED >= crossing)


def _truncated(x: Tensor, y: Tensor) -> Tensor:
    size = absolute(x) // y
    return where(x < 0, -size, size)

"""Points, outlines and regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.backend import Move, int_or_none
from libs.compute.image.pixels import (
    absolute,
    constant,
    describe,
    flag,
    height_width,
    image,
    read,
    reduced,
    sqrt,
    take,
    where,
)
from libs.compute.tensor import Tensor

__all__ = [
    "arcLength",
    "boundingRect",
    "contourArea",
    "findNonZero",
    "moments",
]


def findNonZero(src: Any) -> Tensor:
    """Return where one channel isn't 0, row by row, int32 [n, 2] of (x, y).

    OpenCV: exact.
    """
    tensor = image("findNonZero", "src", src, channels=(1,))
    height, width = height_width(tensor)
    held = (tensor != 0).reshape((height * width,))
    b = held.backend
    order = Tensor(b, b.arg_sort((~held).astype("uint8").value, 0))
    count = b.size(reduced("reduce_sum", held.astype("int64"), (0,)).value)
    first = Tensor(b, b.move(order.value, (count,), (1,), 0))
    row = first // width
    column = first - row * width
    moves = [Move(each.value, (count,), (1,), 0, (2,), place) for place, each in enumerate((column, row))]
    return Tensor(b, b.raster(first.type, (count, 2), moves)).astype("int32")


def _points(call: str, name: str, thing: Any) -> Tensor:
    """Return points [n, 2] as int32 or float64."""
    found = read(call, name, thing)
    sizes = [int_or_none(size) for size in found.shape]
    if not (len(sizes) in (2, 3) and sizes[-1] == 2 and (len(sizes) == 2 or sizes[1] == 1 or sizes[0] == 1)):
        raise Invalid(f"{call}: {name} is {describe(found)}; it is points [n, 2] or [n, 1, 2]")
    if found.dtype not in ("int32", "int64", "float32", "float64"):
        raise Invalid(f"{call}: {name} is {describe(found)}; points are int32 or float32")
    return found.reshape((-1, 2)).astype("float64")


def boundingRect(array: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x, y, width and height, int32, around points, or around what isn't 0 in a uint8 image.

    Points are int32 or float32 [n, 2] or [n, 1, 2]; an image has one channel. All are 0 around nothing.

    OpenCV: exact.
    """
    call = "boundingRect"
    found = read(call, "array", array)
    if found.dtype in ("uint8", "int8", "bool"):
        return _around_pixels(image(call, "array", found, ("uint8", "int8", "bool"), (1,)))
    points = _points(call, "array", found)
    if int_or_none(points.shape[0]) == 0:
        nothing = constant(points, 0, "int32")
        return nothing, nothing, nothing, nothing
    b = points.backend
    low = Tensor(b, b.elementwise("floor", reduced("reduce_min", points, (0,)).value)).astype("int32")
    high = Tensor(b, b.elementwise("floor", reduced("reduce_max", points, (0,)).value)).astype("int32")
    size = high - low + 1
    return low[0], low[1], size[0], size[1]


def _around_pixels(tensor: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    height, width = height_width(tensor)
    held = (tensor != 0).reshape((height, width))
    found = []
    for axis, size in ((1, width), (0, height)):
        line = reduced("reduce_max", held.astype("uint8"), (1 - axis,)) > 0
        at = constant(line, np.arange(size), "int32")
        first = reduced("reduce_min", where(line, at, constant(at, size)), (0,))
        last = reduced("reduce_max", where(line, at, constant(at, -1)), (0,))
        none = last < 0
        found.append((where(none, last * 0, first), where(none, last * 0, last - first + 1)))
    (x, wide), (y, high) = found
    return x, y, wide, high


def contourArea(contour: Any, oriented: bool = False) -> Tensor:
    """Return the area inside an outline, float64 of no axes; its sign says which way round where `oriented`.

    contour: points, int32 or float32 [n, 2] or [n, 1, 2].

    OpenCV: 1e-6.
    """
    points = _points("contourArea", "contour", contour)
    after = _rolled(points)
    x, y = points[:, 0], points[:, 1]
    signed = flag("contourArea", "oriented", oriented)
    twice = reduced("reduce_sum", x * after[:, 1] - after[:, 0] * y, (0,)) * 0.5
    return twice if signed else absolute(twice)


def _rolled(points: Tensor) -> Tensor:
    """Return for each point the next one, for the last the first."""
    count = int(points.shape[0])
    return take(points, constant(points, (np.arange(count) + 1) % max(count, 1), "int64"), 0)


def arcLength(curve: Any, closed: bool) -> Tensor:
    """Return the length of a line through points, and back to the first where `closed`, float64 of no axes.

    curve: points, int32 or float32 [n, 2] or [n, 1, 2].

    OpenCV: 1e-6.
    """
    points = _points("arcLength", "curve", curve)
    step = _rolled(points) - points
    lengths = sqrt(reduced("reduce_sum", step * step, (1,)))
    if not flag("arcLength", "closed", closed) and int(points.shape[0]):
        lengths = lengths[: int(points.shape[0]) - 1]
    return reduced("reduce_sum", lengths, (0,))


def moments(array: Any, binaryImage: bool = False) -> Mapping[str, Tensor]:
    """Return the moments of an image of one channel up to the third order, by OpenCV's names.

    Each is float64 of no axes; the image is [height, width] or [height, width, 1].

    m…: raw; mu…: about the centre of mass; nu…: independent of size. `binaryImage`: what isn't 0 counts as 1.

    OpenCV: 1e-9.
    """
    tensor = image("moments", "array", array, ("uint8", "uint16", "int16", "float32", "float64"), (1,))
    height, width = height_width(tensor)
    x = tensor.reshape((height, width)).astype("float64")
    if flag("moments", "binaryImage", binaryImage):
        x = (x != 0).astype("float64")
    powers = np.arange(4).reshape(4, 1)
    rows = constant(x, np.arange(height).reshape(1, -1).astype(float) ** powers)
    columns = constant(x, (np.arange(width).reshape(1, -1).astype(float) ** powers).T.copy())
    raw = rows @ x @ columns
    orders = [(p, total - p) for total in range(4) for p in range(total, -1, -1)]
    found = {f"m{p}{q}": raw[q, p] for p, q in orders}
    mass = found["m00"]
    none = absolute(mass) <= float(np.finfo(np.float64).eps)
    by = where(none, mass * 0, 1.0 / where(none, mass * 0 + 1, mass))
    cx, cy = found["m10"] * by, found["m01"] * by
    central = {
        "mu20": found["m20"] - found["m10"] * cx,
        "mu11": found["m11"] - found["m10"] * cy,
        "mu02": found["m02"] - found["m01"] * cy,
    }
    mu20, mu11, mu02 = central["mu20"], central["mu11"], central["mu02"]
    central["mu30"] = found["m30"] - cx * (mu20 * 3 + cx * found["m10"])
    twice = mu11 + mu11
    central["mu21"] = found["m21"] - cx * (twice + cx * found["m01"]) - cy * mu20
    central["mu12"] = found["m12"] - cy * (twice + cy * found["m10"]) - cx * mu02
    central["mu03"] = found["m03"] - cy * (mu02 * 3 + cy * found["m01"])
    root = sqrt(absolute(by))
    squared = by * by
    scaled = {
        name.replace("mu", "nu"): value * (squared if sum(map(int, name[2:])) == 2 else squared * root)
        for name, value in central.items()
    }
    return {**found, **central, **scaled}

"""What hangs together in an image, and how far away it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.backend import Value
from libs.compute.image import constants as c
from libs.compute.image.borders import padded
from libs.compute.image.filters import along
from libs.compute.image.pixels import (
    chosen,
    constant,
    describe,
    height_width,
    image,
    joined,
    minimum,
    planes,
    reduced,
    running_sum,
    saturate,
    sqrt,
    take,
    where,
)
from libs.compute.tensor import Tensor

__all__ = ["connectedComponents", "connectedComponentsWithStats", "distanceTransform"]

_MOST_PRODUCTS = 1 << 34


def connectedComponents(image: Any, connectivity: int = 8, ltype: int = c.CV_32S) -> tuple[Tensor, Tensor]:
    """Return how many labels there are, and each pixel's, int32 or uint16 [height, width]: 0 where it is 0.

    Regions are numbered by where their first pixel lies, row by row. connectivity: 8, or 4 without corners.

    OpenCV: exact but for the order of numbers.
    """
    call = "connectedComponents"
    tensor = _image(call, image)
    chosen(call, "connectivity", connectivity, (4, 8))
    result = "int32" if chosen(call, "ltype", ltype, (c.CV_16U, c.CV_32S)) == c.CV_32S else "uint16"
    count, labels = _labels(tensor, connectivity)
    return count, labels.astype(result)


def _image(call: str, thing: Any) -> Tensor:
    return image(call, "image", thing, ("uint8", "int8", "bool"), (1,))


def _labels(tensor: Tensor, connectivity: int) -> tuple[Tensor, Tensor]:
    height, width = height_width(tensor)
    count = height * width
    held = (tensor != 0).reshape((height, width))
    backend = held.backend
    # Every pixel starts with its own place; the lowest place of a region spreads until none changes.
    own = constant(held, np.arange(count).reshape(height, width), "int32")
    start = where(held, own, constant(own, count))

    def body(_: Value, carried: list[Value]) -> tuple[Value, list[Value]]:
        before = Tensor(backend, carried[0])
        lowest = where(held, _least_around(before, connectivity, count), before)
        # What a place has come to know, all who point to it know at once.
        table = joined([lowest.reshape((count,)), constant(lowest, [count])], 0)
        after = minimum(lowest, take(table, take(table, lowest, 0), 0))
        changed = reduced("reduce_max", (after != before).astype("uint8"), (0, 1))
        return changed.astype("bool").value, [after.value]

    (value,) = backend.loop(count + 1, [start.value], body)
    lowest = Tensor(backend, value)
    first = (lowest == own) & held
    numbers = running_sum(first.reshape((count,)).astype("int32"), 0)
    table = joined([numbers, constant(numbers, [0])], 0)
    total = numbers[count - 1] + 1
    return total, where(held, take(table, lowest, 0), constant(lowest, 0))


def _least_around(x: Tensor, connectivity: int, most: int) -> Tensor:
    """Return the least of each pixel and its neighbours."""
    height, width = height_width(x)
    around = padded(planes(x), (1, 1, 1, 1), c.BORDER_CONSTANT, (float(most),))
    around = around.reshape((height + 2, width + 2))
    rows = [along(around, 0, start, height) for start in range(3)]
    if connectivity == 8:
        best = minimum(minimum(rows[0], rows[1]), rows[2])
        columns = [along(best, 1, start, width) for start in range(3)]
        return minimum(minimum(columns[0], columns[1]), columns[2])
    columns = [along(rows[1], 1, start, width) for start in range(3)]
    across = minimum(minimum(columns[0], columns[1]), columns[2])
    down = minimum(along(rows[0], 1, 1, width), along(rows[2], 1, 1, width))
    return minimum(across, down)


def connectedComponentsWithStats(
    image: Any, connectivity: int = 8, ltype: int = c.CV_32S
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `connectedComponents`, each label's x, y, width, height and area, int32 [n, 5], and its centre.

    The centre is (x, y), float64 [n, 2]. Label 0 is what is 0; where nothing is, 0 and NaN.

    OpenCV: exact but for the order of numbers, and a label 0 without pixels.
    """
    call = "connectedComponentsWithStats"
    tensor = _image(call, image)
    chosen(call, "connectivity", connectivity, (4, 8))
    result = "int32" if chosen(call, "ltype", ltype, (c.CV_16U, c.CV_32S)) == c.CV_32S else "uint16"
    total, labels = _labels(tensor, connectivity)
    height, width = height_width(tensor)
    count = height * width
    b = labels.backend
    flat = labels.reshape((count,))
    # There are as many labels as pixels at most, and 0; those that there are come first.
    size = b.size(total.astype("int64").value)
    x = constant(flat, np.tile(np.arange(width), height), "int32")
    y = constant(flat, np.repeat(np.arange(height), width), "int32")

    def gathered(operator: str, values: Tensor, start: float) -> Tensor:
        table = constant(values, np.full(count + 1, start))
        whole = b.scatter(operator, table.value, flat.value, values.value)
        return Tensor(b, b.move(whole, (size,), (1,), 0))

    area = gathered("scatter_add", constant(flat, np.ones(count), "int32"), 0)
    left, top = gathered("scatter_min", x, width), gathered("scatter_min", y, height)
    right, bottom = gathered("scatter_max", x, -1), gathered("scatter_max", y, -1)
    none = area == 0
    wide, high = right - left + 1, bottom - top + 1
    nowhere = constant(area, 0)
    edges = [where(none, nowhere, each) for each in (left, top, wide, high)]
    stats = _columns([*edges, area])
    sums = [gathered("scatter_add", each.astype("float64"), 0) for each in (x, y)]
    nothing = constant(sums[0], math.nan)
    safe = where(none, area * 0 + 1, area).astype("float64")
    centres = _columns([where(none, nothing, each / safe) for each in sums])
    return total, labels.astype(result), stats, centres


def _columns(vectors: list[Tensor]) -> Tensor:
    return joined([vector.reshape((-1, 1)) for vector in vectors], 1)


def distanceTransform(
    src: Any, distanceType: int, maskSize: int = c.DIST_MASK_PRECISE, dstType: int = c.CV_32F
) -> Tensor:
    """Return how far each pixel is from the nearest one that is 0, in pixels, [height, width].

    It is float32 or, for a dstType of CV_8U, uint8.

    distanceType: DIST_L1, DIST_L2 or DIST_C. DIST_L2 is exact, by DIST_MASK_PRECISE alone (Felzenszwalb and
    Huttenlocher, 2012).

    OpenCV: exact for DIST_L1 and DIST_C, 1e-5 for DIST_L2, where any pixel is 0.
    """
    call = "distanceTransform"
    tensor = image(call, "src", src, ("uint8", "bool"), (1,))
    kind = chosen(call, "distanceType", distanceType, (c.DIST_L1, c.DIST_L2, c.DIST_C))
    rough = () if kind == c.DIST_L2 else (c.DIST_MASK_3, c.DIST_MASK_5)
    chosen(call, "maskSize", maskSize, (c.DIST_MASK_PRECISE, *rough))
    result = chosen(call, "dstType", dstType, (c.CV_32F, c.CV_8U))
    height, width = height_width(tensor)
    far = height + width
    held = (tensor != 0).reshape((height, width))
    start = where(held, constant(held, far, "int32"), constant(held, 0, "int32"))
    if kind == c.DIST_L1:
        found = _stepped(_stepped(start, 0), 1).astype("float32")
    elif kind == c.DIST_C:
        found = _by_squares(start).astype("float32")
    else:
        found = _by_circles(call, tensor, _stepped(start, 0))
    # Without a pixel that is 0, nothing is near.
    none = reduced("reduce_min", held.astype("uint8"), (0, 1)) > 0
    most = np.finfo(np.float32).max
    found = where(none, constant(found, math.sqrt(most) if kind == c.DIST_L2 else most), found)
    return saturate(found, "uint8") if result == c.CV_8U else found


def _stepped(x: Tensor, axis: int) -> Tensor:
    """Return the least of x[k] + |k - i| along an axis, by steps of 1, 2, 4 and so on."""
    length, step = int(x.shape[axis]), 1
    while step < length:
        kept = along(x, axis, 0, length - step)
        ahead = along(x, axis, step, length - step)
        after = joined([along(x, axis, 0, step), minimum(ahead, kept + step)], axis)
        back = joined([minimum(kept, ahead + step), along(x, axis, length - step, step)], axis)
        x = minimum(after, back)
        step *= 2
    return x


def _by_squares(x: Tensor) -> Tensor:
    """Return the chessboard distance: how often the field shrinks by a pixel all round before one is gone."""
    height, width = height_width(x)
    backend = x.backend

    def body(_: Value, carried: list[Value]) -> tuple[Value, list[Value]]:
        before = Tensor(backend, carried[0])
        after = minimum(before, _least_around(before, 8, height + width) + 1)
        changed = reduced("reduce_max", (after != before).astype("uint8"), (0, 1))
        return changed.astype("bool").value, [after.value]

    (found,) = backend.loop(max(height, width) + 1, [x.value], body)
    return Tensor(backend, found)


def _by_circles(call: str, tensor: Tensor, down: Tensor) -> Tensor:
    """Return the Euclidean distance from distances along columns: the least of all places of a row."""
    height, width = height_width(tensor)
    if height * width * width > _MOST_PRODUCTS:
        raise Invalid(f"{call}: src is {describe(tensor)}, for which exact distances take too long")
    squares = down.astype("float64")
    squares = squares * squares
    best = squares
    for step in range(1, width):
        kept = along(squares, 1, 0, width - step) + float(step * step)
        ahead = along(squares, 1, step, width - step) + float(step * step)
        far = constant(best, np.full((height, step), math.inf))
        best = minimum(best, minimum(joined([far, kept], 1), joined([ahead, far], 1)))
    return sqrt(best).astype("float32")

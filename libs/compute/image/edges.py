"""Edges and corners."""

from __future__ import annotations

import math
from typing import Any

from libs.common.errors import Invalid
from libs.compute.backend import Value
from libs.compute.image import constants as c
from libs.compute.image.arithmetic import as_mask
from libs.compute.image.borders import border_type, padded
from libs.compute.image.filters import WITHOUT_WRAP, Scharr, Sobel, along
from libs.compute.image.pixels import (
    absolute,
    channels_of,
    chosen,
    flag,
    height_width,
    image,
    maximum,
    planes,
    real,
    reduced,
    restored,
    sqrt,
    where,
    whole,
)
from libs.compute.image.smoothing import box_sum
from libs.compute.tensor import Tensor

__all__ = ["Canny", "cornerHarris", "cornerMinEigenVal"]

_TANGENT = 13573
"""Of 22.5 degrees, in 2^-15."""


def Canny(
    image: Any, threshold1: float, threshold2: float, apertureSize: int = 3, L2gradient: bool = False
) -> Tensor:
    """Return 255 along edges and 0 elsewhere, uint8 [height, width] (Canny, 1986).

    An edge is where a gradient above the lower threshold hangs together with one above the higher.

    OpenCV: exact.
    """
    call = "Canny"
    tensor = _image(call, image)
    size = chosen(call, "apertureSize", apertureSize, (3, 5, 7))
    low, high = sorted((real(call, "threshold1", threshold1), real(call, "threshold2", threshold2)))
    scale = 1.0
    if size == 7:
        low, high, scale = low / 16, high / 16, 1 / 16
    squared = flag(call, "L2gradient", L2gradient)
    if squared:
        low, high = (limit * limit if limit > 0 else limit for limit in (min(low, 32767), min(high, 32767)))
    dx, dy = (
        planes(Sobel(tensor, c.CV_16S, *order, size, scale, 0, c.BORDER_REPLICATE)).astype("int32")
        for order in ((1, 0), (0, 1))
    )
    size_ = dx * dx + dy * dy if squared else absolute(dx) + absolute(dy)
    dx, dy, size_ = _strongest(dx, dy, size_)
    ridge = _ridges(dx, dy, size_) & (size_ > math.floor(low))
    strong = ridge & (size_ > math.floor(high))
    return as_mask(_grown(strong, ridge))


def _image(call: str, thing: Any) -> Tensor:
    return image(call, "image", thing, ("uint8",))


def _strongest(dx: Tensor, dy: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of the channel where it is largest."""
    best = (dx[:, :, 0], dy[:, :, 0], size[:, :, 0])
    for number in range(1, channels_of(size)):
        other = (dx[:, :, number], dy[:, :, number], size[:, :, number])
        more = other[2] > best[2]
        best = (
            where(more, other[0], best[0]),
            where(more, other[1], best[1]),
            where(more, other[2], best[2]),
        )
    return best


def _ridges(dx: Tensor, dy: Tensor, size: Tensor) -> Tensor:
    """Tell where a gradient is larger than those before and behind it."""
    height, width = height_width(size)
    around = padded(planes(size), (1, 1, 1, 1), c.BORDER_CONSTANT)

    def beside(down: int, across: int) -> Tensor:
        moved = along(along(around, 0, 1 + down, height), 1, 1 + across, width)
        return moved.reshape((height, width))

    # int64: tangents take 15 bits more.
    wide, high = absolute(dx).astype("int64"), absolute(dy).astype("int64") * (1 << 15)
    flat = wide * _TANGENT
    steep = flat + wide * (1 << 16)
    horizontal = (size > beside(0, -1)) & (size >= beside(0, 1))
    vertical = (size > beside(-1, 0)) & (size >= beside(1, 0))
    falling = (size > beside(-1, -1)) & (size > beside(1, 1))
    rising = (size > beside(-1, 1)) & (size > beside(1, -1))
    opposite = (dx < 0) ^ (dy < 0)
    diagonal = where(opposite, rising, falling)
    return where(high < flat, horizontal, where(high > steep, vertical, diagonal))


def _grown(seeds: Tensor, field: Tensor) -> Tensor:
    """Return what of a field hangs together with seeds, corners included."""
    backend = seeds.backend
    height, width = height_width(seeds)

    def body(_: Value, carried: list[Value]) -> tuple[Value, list[Value]]:
        before = Tensor(backend, carried[0])
        # uint8: booleans have no maximum.
        around = padded(planes(before.astype("uint8")), (1, 1, 1, 1), c.BORDER_CONSTANT)
        for axis, count in ((0, height), (1, width)):
            first, second, third = (along(around, axis, start, count) for start in range(3))
            around = maximum(maximum(first, second), third)
        after = around.reshape((height, width)).astype("bool") & field
        new = reduced("reduce_max", (after ^ before).astype("uint8"), (0, 1))
        return new.astype("bool").value, [after.value]

    (found,) = backend.loop(height * width + 1, [seeds.value], body)
    return Tensor(backend, found)


def _covariances(
    call: str, src: Any, blockSize: Any, ksize: Any, borderType: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tensor = image(call, "src", src, ("uint8", "float32"), (1,))
    block = whole(call, "blockSize", blockSize, 1, 64)
    kind = border_type(call, "borderType", borderType, WITHOUT_WRAP)
    size = whole(call, "ksize", ksize, c.FILTER_SCHARR, 31)
    if size != c.FILTER_SCHARR and size % 2 == 0:
        raise Invalid(f"{call}: ksize is {size}; it is odd, or FILTER_SCHARR")
    scale = 1.0 / ((4 if size == c.FILTER_SCHARR else 1 << (max(size, 3) - 1)) * block)
    if size == c.FILTER_SCHARR:
        scale /= 2
    if tensor.dtype == "uint8":
        scale /= 255
    if size == c.FILTER_SCHARR:
        dx, dy = (Scharr(tensor, c.CV_32F, *order, scale, 0, kind) for order in ((1, 0), (0, 1)))
    else:
        dx, dy = (Sobel(tensor, c.CV_32F, *order, size, scale, 0, kind) for order in ((1, 0), (0, 1)))
    dx, dy = planes(dx), planes(dy)
    xx, xy, yy = (box_sum(part, block, block, kind) for part in (dx * dx, dx * dy, dy * dy))
    return tensor, xx, xy, yy


def cornerHarris(
    src: Any, blockSize: int, ksize: int, k: float, borderType: int = c.BORDER_DEFAULT
) -> Tensor:
    """Return how much of a corner each pixel is, float32: det - k·trace² of its gradients (Harris, 1988).

    OpenCV: 1e-5 of the largest.
    """
    call = "cornerHarris"
    tensor, xx, xy, yy = _covariances(call, src, blockSize, ksize, borderType)
    trace = xx + yy
    return restored(xx * yy - xy * xy - trace * trace * real(call, "k", k), tensor)


def cornerMinEigenVal(src: Any, blockSize: int, ksize: int = 3, borderType: int = c.BORDER_DEFAULT) -> Tensor:
    """Return the smaller eigenvalue of each pixel's gradients, float32 (Shi and Tomasi, 1994).

    OpenCV: 1e-5 of the largest.
    """
    tensor, xx, xy, yy = _covariances("cornerMinEigenVal", src, blockSize, ksize, borderType)
    half = (xx + yy) * 0.5
    difference = (xx - yy) * 0.5
    return restored(half - sqrt(difference * difference + xy * xy), tensor)

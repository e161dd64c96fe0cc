"""Images split by brightness."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image.filters import odd, separable
from libs.compute.image.histograms import counted
from libs.compute.image.kernels import gaussian
from libs.compute.image.pixels import (
    MOST_TAPS,
    channels_of,
    chosen,
    constant,
    describe,
    floor,
    height_width,
    image,
    minimum,
    part,
    planes,
    real,
    reduced,
    restored,
    running_sum,
    saturate,
    where,
    whole,
)
from libs.compute.image.smoothing import boxFilter
from libs.compute.tensor import Tensor

__all__ = ["adaptiveThreshold", "threshold"]

_TYPES = ("uint8", "uint16", "int16", "float32", "float64")
_EPSILON = float(np.finfo(np.float32).eps)


def threshold(src: Any, thresh: float, maxval: float, type: int) -> tuple[Tensor, Tensor]:
    """Return the threshold, float64 of no axes, and src split by it as `type` (THRESH_BINARY, …) says.

    With THRESH_OTSU (uint8, uint16) or THRESH_TRIANGLE (uint8) beside it, one is found from the histogram.

    OpenCV: exact.
    """
    call = "threshold"
    tensor = image(call, "src", src, _TYPES)
    options = [kind | search for search in (0, c.THRESH_OTSU, c.THRESH_TRIANGLE) for kind in range(5)]
    number = chosen(call, "type", type, options)
    kind, search = number & 7, number & ~7
    if search:
        types = ("uint8", "uint16") if search == c.THRESH_OTSU else ("uint8",)
        if tensor.dtype not in types or channels_of(tensor) != 1:
            raise Invalid(
                f"{call}: src is {describe(tensor)}; a search takes one channel of {' or '.join(types)}"
            )
        counts = counted(tensor, 256 if tensor.dtype == "uint8" else 65536, dtype="float64")
        height, width = height_width(tensor)
        limit = _otsu(counts, height * width) if search == c.THRESH_OTSU else _triangle(counts)
    else:
        limit = constant(tensor, real(call, "thresh", thresh), "float64")
    whole_numbers = tensor.dtype not in ("float32", "float64")
    if whole_numbers:
        limit = floor(limit)
    most = saturate(constant(tensor, real(call, "maxval", maxval), "float64"), tensor.dtype)
    x = tensor.astype("float64") if whole_numbers or tensor.dtype == "float64" else tensor
    above = x > limit.astype(x.dtype)
    return limit, _split(tensor, above, kind, limit, most)


def _split(x: Tensor, above: Tensor, kind: int, limit: Tensor, most: Tensor) -> Tensor:
    nothing = constant(x, 0)
    if kind == c.THRESH_BINARY:
        return where(above, most, nothing)
    if kind == c.THRESH_BINARY_INV:
        return where(above, nothing, most)
    if kind == c.THRESH_TRUNC:
        return where(above, saturate(limit, x.dtype), x)
    return where(above, x, nothing) if kind == c.THRESH_TOZERO else where(above, nothing, x)


def _otsu(counts: Tensor, total: int) -> Tensor:
    """Return the level that parts two classes whose means differ most (Otsu, 1979)."""
    share = counts * (1.0 / total)
    level = constant(share, np.arange(int(counts.shape[0])))
    below, moment = running_sum(share, 0), running_sum(share * level, 0)
    above = 1.0 - below
    whole_moment = reduced("reduce_sum", share * level, (0,))
    lesser = minimum(below, above)
    fit = lesser >= _EPSILON
    safe = where(fit, below, constant(below, 0.5))
    first = moment / safe
    second = (whole_moment - moment) / (1.0 - safe)
    apart = where(fit, safe * (1.0 - safe) * (first - second) * (first - second), constant(safe, 0))
    return _first_largest(apart)


def _first_largest(x: Tensor) -> Tensor:
    return Tensor(x.backend, x.backend.arg_max(x.value, 0)).astype("float64")


def _triangle(counts: Tensor) -> Tensor:
    """Return the level furthest below the line from the highest count to the end of the longer tail."""
    size = int(counts.shape[0])
    level = constant(counts, np.arange(size))
    there = counts > 0
    beyond = float(size)
    left = reduced("reduce_min", where(there, level, constant(level, beyond)), (0,))
    right = reduced("reduce_max", where(there, level, constant(level, -1)), (0,))
    left = where(left > 0, left - 1, left)
    right = where(right < size - 1, right + 1, right)
    peak = _first_largest(counts)
    flipped = peak - left < right - peak
    counts = where(flipped, part(counts, (size - 1,), (size,), (-1,)), counts)
    left = where(flipped, size - 1 - right, left)
    peak = where(flipped, size - 1 - peak, peak)
    height = reduced("reduce_max", counts, (0,))
    away = level * height + counts * (left - peak)
    in_tail = (level > left) & (level <= peak)
    away = where(in_tail & (away > 0), away, constant(away, -math.inf))
    best = reduced("reduce_max", away, (0,))
    found = where(best > 0, _first_largest(away), left) - 1
    return where(flipped, size - 1 - found, found)


def adaptiveThreshold(
    src: Any, maxValue: float, adaptiveMethod: int, thresholdType: int, blockSize: int, C: float
) -> Tensor:
    """Return a uint8 image of one channel split where a pixel is above the mean around it, less C.

    The mean is that of blockSize² pixels, plain (ADAPTIVE_THRESH_MEAN_C) or Gaussian.

    OpenCV: exact but where the mean rounds to another level.
    """
    call = "adaptiveThreshold"
    tensor = image(call, "src", src, ("uint8",), (1,))
    method = chosen(call, "adaptiveMethod", adaptiveMethod, range(2))
    kind = chosen(call, "thresholdType", thresholdType, (c.THRESH_BINARY, c.THRESH_BINARY_INV))
    size = odd(call, "blockSize", whole(call, "blockSize", blockSize, 3, MOST_TAPS))
    less, most = real(call, "C", C), real(call, "maxValue", maxValue)
    if method == c.ADAPTIVE_THRESH_MEAN_C:
        mean = boxFilter(tensor, -1, (size, size), borderType=c.BORDER_REPLICATE)
    else:
        weights = gaussian(size, 0).astype(np.float32)
        smooth = separable(planes(tensor).astype("float32"), weights, weights, c.BORDER_REPLICATE)
        mean = restored(saturate(smooth, "uint8"), tensor)
    difference = tensor.astype("int32") - mean.astype("int32")
    step = math.ceil(less) if kind == c.THRESH_BINARY else math.floor(less)
    above = difference > -step
    high = saturate(constant(tensor, most, "float64"), "uint8")
    return _split(tensor, above, kind, high, high)

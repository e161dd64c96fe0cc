"""What an image holds, in few numbers. Sums are made in float64.

Where OpenCV gives numbers, these are tensors of no axes, which float() and int() turn into numbers: a
function that is traced can go on computing with them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image.pixels import (
    REAL,
    absolute,
    channels_of,
    chosen,
    constant,
    depth,
    describe,
    height_width,
    image,
    joined,
    masked,
    planes,
    real,
    reduced,
    restored,
    running_sum,
    same_shape,
    saturate,
    sqrt,
    where,
    whole,
)
from libs.compute.tensor import Tensor, tensors_of

__all__ = [
    "PSNR",
    "countNonZero",
    "integral",
    "integral2",
    "mean",
    "meanStdDev",
    "minMaxLoc",
    "norm",
    "normalize",
    "reduce",
    "sumElems",
]


def _sums(x: Tensor) -> Tensor:
    """Return the sum of each channel of [height, width, channels], float64."""
    return reduced("reduce_sum", x.astype("float64"), (0, 1))


def _four(x: Tensor) -> Tensor:
    """Return a number for each channel, and 0 up to the fourth, as OpenCV's scalars."""
    missing = 4 - int(x.shape[0])
    return joined([x, constant(x, np.zeros(missing))], 0) if missing > 0 else x


def _counted(held: Tensor | None, x: Tensor) -> Tensor:
    if held is None:
        height, width = height_width(x)
        return constant(x, float(height * width), "float64")
    return reduced("reduce_sum", held.astype("float64"), (0, 1, 2))


def _over(total: Tensor, count: Tensor) -> Tensor:
    """Return total / count, 0 where the count is 0."""
    none = count == 0
    return where(none, total * 0, total / where(none, count + 1, count))


def _kept(call: str, tensor: Tensor, mask: Any) -> tuple[Tensor, Tensor | None]:
    """Return [height, width, channels] in float64, 0 outside of the mask, and the mask."""
    held = masked(call, mask, tensor)
    x = planes(tensor).astype("float64")
    if held is None:
        return x, None
    x, held = tensors_of(x, held)
    return where(held, x, constant(x, 0)), held


def sumElems(src: Any) -> Tensor:
    """Return the sum of each channel, float64 [4]; channels that there aren't are 0.

    OpenCV: exact for integers, 1e-9 for floats.
    """
    tensor = image("sumElems", "src", src, channels=(1, 2, 3, 4))
    return _four(_sums(planes(tensor)))


def mean(src: Any, mask: Any = None) -> Tensor:
    """Return the mean of each channel, float64 [4], where the mask isn't 0; channels that there aren't are 0.

    mask, here as elsewhere: uint8, int8 or bool [height, width].

    OpenCV: 1e-7.
    """
    tensor = image("mean", "src", src, channels=(1, 2, 3, 4))
    x, held = _kept("mean", tensor, mask)
    return _four(_over(_sums(x), _counted(held, x)))


def meanStdDev(src: Any, mask: Any = None) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel, float64 [channels, 1], where the mask isn't 0.

    OpenCV: 1e-7.
    """
    tensor = image("meanStdDev", "src", src)
    x, held = _kept("meanStdDev", tensor, mask)
    count = _counted(held, x)
    middle = _over(_sums(x), count)
    away = x - middle
    if held is not None:
        away = where(held, away, constant(away, 0))
    spread = sqrt(_over(_sums(away * away), count))
    return middle.reshape((-1, 1)), spread.reshape((-1, 1))


def countNonZero(src: Any) -> Tensor:
    """Return how many elements of one channel aren't 0, int32 of no axes.

    OpenCV: exact.
    """
    tensor = image("countNonZero", "src", src, channels=(1,))
    return reduced("reduce_sum", planes(tensor != 0).astype("int32"), (0, 1, 2))


def minMaxLoc(src: Any, mask: Any = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the smallest and largest element of one channel, float64, and where each first is, int64 (x, y).

    Under a mask without pixels: 0, 0, (-1, -1) and (-1, -1).

    OpenCV: exact.
    """
    call = "minMaxLoc"
    tensor = image(call, "src", src, channels=(1,))
    height, width = height_width(tensor)
    held = masked(call, mask, tensor)
    x = planes(tensor).astype("float64")
    found = []
    for sign in (-1.0, 1.0):
        key = x * sign
        if held is not None:
            key, under = tensors_of(key, held)
            key = where(under, key, constant(key, -math.inf))
        key = key.reshape((height * width,))
        best = reduced("reduce_max", key, (0,))
        at = Tensor(key.backend, key.backend.arg_max(key.value, 0))
        row = at // width
        place = joined([(at - row * width).reshape((1,)), row.reshape((1,))], 0)
        if held is not None:
            none = best == -math.inf
            best, place = where(none, best * 0, best), where(none, place * 0 - 1, place)
            best = where(none, constant(best, 0), best)
        found.append((best * sign, place))
    (low, low_at), (high, high_at) = found
    return low, high, low_at, high_at


def norm(src1: Any, src2: Any = None, normType: int = c.NORM_L2, mask: Any = None) -> Tensor:
    """Return the norm of src1, or of src1 - src2, over all channels, float64 of no axes.

    normType: NORM_INF, NORM_L1, NORM_L2 or NORM_L2SQR. A mask [height, width] leaves out where it
    is 0. As in OpenCV, norm(src1, NORM_L1) leaves src2 out.

    OpenCV: exact for integers, 1e-7 for floats.
    """
    call = "norm"
    alone = isinstance(src2, int) and not isinstance(src2, bool)
    src2, named = (None, src2) if alone else (src2, normType)
    kind = chosen(call, "normType", named, (c.NORM_INF, c.NORM_L1, c.NORM_L2, c.NORM_L2SQR))
    tensor = image(call, "src1", src1)
    x = planes(tensor).astype("float64") if src2 is None else _difference(call, tensor, src2)
    held = masked(call, mask, tensor)
    if held is not None:
        x, held = tensors_of(x, held)
        x = where(held, x, constant(x, 0))
    return _norm(x, kind)


def _difference(call: str, tensor: Tensor, src2: Any) -> Tensor:
    """Return an image less another one of its type and shape, float64 [height, width, channels]."""
    other = image(call, "src2", src2, (tensor.dtype,))
    tensor, other = tensors_of(tensor, other)
    same_shape(call, src1=tensor, src2=other)
    return planes(tensor).astype("float64") - planes(other).astype("float64")


def _norm(x: Tensor, kind: int) -> Tensor:
    axes = range(x.ndim)
    if kind == c.NORM_INF:
        return reduced("reduce_max", absolute(x), axes)
    if kind == c.NORM_L1:
        return reduced("reduce_sum", absolute(x), axes)
    total = reduced("reduce_sum", x * x, axes)
    return sqrt(total) if kind == c.NORM_L2 else total


def PSNR(src1: Any, src2: Any, R: float = 255) -> Tensor:
    """Return the peak signal-to-noise ratio in dB of two images, for a largest value R: float64 of no axes.

    OpenCV: 1e-7.
    """
    call = "PSNR"
    tensor = image(call, "src1", src1)
    error = _norm(_difference(call, tensor, src2), c.NORM_L2SQR)
    height, width = height_width(tensor)
    root = sqrt(error / float(height * width * channels_of(tensor)))
    ratio = real(call, "R", R) / (root + float(np.finfo(np.float64).eps))
    logarithm = Tensor(ratio.backend, ratio.backend.elementwise("log", ratio.value))
    return logarithm * (20 / math.log(10))


def normalize(
    src: Any,
    alpha: float = 1,
    beta: float = 0,
    norm_type: int = c.NORM_L2,
    dtype: int = -1,
    mask: Any = None,
) -> Tensor:
    """Return src scaled to the norm alpha, or, for NORM_MINMAX, to numbers from alpha to beta.

    norm_type: NORM_INF, NORM_L1, NORM_L2 or NORM_MINMAX, over all channels. Under a mask [height, width],
    only its pixels count and are returned; others are 0.

    OpenCV: within 1 for integers, 1e-6 for floats.
    """
    call = "normalize"
    kind = chosen(call, "norm_type", norm_type, (c.NORM_INF, c.NORM_L1, c.NORM_L2, c.NORM_MINMAX))
    tensor = image(call, "src", src)
    a, b = real(call, "alpha", alpha), real(call, "beta", beta)
    result = depth(call, "dtype", dtype, tensor.dtype)
    x, held = _kept(call, tensor, mask)
    if kind == c.NORM_MINMAX:
        low, high = _range(x, held)
        least, most = min(a, b), max(a, b)
        wide = high - low
        flat = wide <= float(np.finfo(np.float64).eps)
        scale = where(flat, wide * 0, (most - least) / where(flat, wide * 0 + 1, wide))
        shift = least - low * scale
    else:
        size = _norm(x, kind)
        flat = size <= float(np.finfo(np.float64).eps)
        scale = where(flat, size * 0, a / where(flat, size * 0 + 1, size))
        shift = scale * 0
    compute = "float64" if "float64" in (tensor.dtype, result) or tensor.dtype == "int32" else "float32"
    made = saturate(x.astype(compute) * scale.astype(compute) + shift.astype(compute), result)
    if held is not None:
        made, held = tensors_of(made, held)
        made = where(held, made, constant(made, 0))
    return restored(made, tensor)


def _range(x: Tensor, held: Tensor | None) -> tuple[Tensor, Tensor]:
    axes = range(x.ndim)
    if held is None:
        return reduced("reduce_min", x, axes), reduced("reduce_max", x, axes)
    low = reduced("reduce_min", where(held, x, constant(x, math.inf)), axes)
    high = reduced("reduce_max", where(held, x, constant(x, -math.inf)), axes)
    none = high < low
    return where(none, constant(low, 0), low), where(none, constant(high, 0), high)


def reduce(src: Any, dim: int, rtype: int, dtype: int = -1) -> Tensor:
    """Return src with its columns (dim 0) or rows (dim 1) made one: by REDUCE_SUM, _AVG, _MAX, _MIN or _SUM2.

    The result is [1, width(, channels)] or [height, 1(, channels)].

    OpenCV: exact for integers, 1e-6 for floats.
    """
    call = "reduce"
    tensor = image(call, "src", src)
    axis = whole(call, "dim", dim, 0, 1)
    kind = chosen(call, "rtype", rtype, range(5))
    result = depth(call, "dtype", dtype, tensor.dtype)
    x = planes(tensor)
    if kind in (c.REDUCE_MAX, c.REDUCE_MIN):
        if result != tensor.dtype:
            raise Invalid(
                f"{call}: dtype says {result}; the largest and smallest of {describe(tensor)} are of its type"
            )
        made = reduced("reduce_max" if kind == c.REDUCE_MAX else "reduce_min", x, (axis,), keep=True)
        return restored(made, tensor)
    x = x.astype("float64")
    total = reduced("reduce_sum", x * x if kind == c.REDUCE_SUM2 else x, (axis,), keep=True)
    if kind == c.REDUCE_AVG:
        total = total * (1.0 / int(x.shape[axis]))
    return restored(saturate(total, result), tensor)


def integral(src: Any, sdepth: int = -1) -> Tensor:
    """Return the sum of all pixels above and left of each place, [height + 1, width + 1(, channels)].

    sdepth: -1 (int32 of uint8, else float64), CV_32S, CV_32F or CV_64F.

    OpenCV: exact for integers, 1e-6 for floats.
    """
    call = "integral"
    tensor = image(call, "src", src, ("uint8", "uint16", "int16", "float32", "float64"))
    return restored(_integrated(planes(tensor), _sum_type(call, sdepth, tensor)), tensor)


def integral2(src: Any, sdepth: int = -1, sqdepth: int = -1) -> tuple[Tensor, Tensor]:
    """Return `integral`, and the same of the pixels' squares: float64, or float32 for sqdepth CV_32F.

    OpenCV: exact for integers, 1e-6 for floats.
    """
    call = "integral2"
    tensor = image(call, "src", src, ("uint8", "uint16", "int16", "float32", "float64"))
    chosen(call, "sqdepth", sqdepth, (-1, c.CV_32F, c.CV_64F))
    x = planes(tensor)
    squares = x.astype("float64")
    of_squares = _integrated(squares * squares, "float32" if sqdepth == c.CV_32F else "float64")
    return (
        restored(_integrated(x, _sum_type(call, sdepth, tensor)), tensor),
        restored(of_squares, tensor),
    )


def _sum_type(call: str, sdepth: Any, tensor: Tensor) -> str:
    kind = chosen(call, "sdepth", sdepth, (-1, c.CV_32S, c.CV_32F, c.CV_64F))
    if kind == -1:
        return "int32" if tensor.dtype == "uint8" else "float64"
    if kind == c.CV_32S and tensor.dtype in REAL:
        raise Invalid(f"{call}: src is {describe(tensor)}; sums of floats are CV_32F or CV_64F")
    return depth(call, "sdepth", kind, tensor.dtype)


def _integrated(x: Tensor, result: str) -> Tensor:
    # int32 wraps as OpenCV's does.
    total = running_sum(running_sum(x.astype("int32" if result == "int32" else "float64"), 0), 1)
    height, width, channels = (int(size) for size in total.shape)
    below = joined([constant(total, np.zeros((height, 1, channels))), total], 1)
    return joined([constant(total, np.zeros((1, width + 1, channels))), below], 0).astype(result)

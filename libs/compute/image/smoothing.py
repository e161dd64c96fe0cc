"""Means of windows, plain ones and Gaussian ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image.borders import border_type, padded
from libs.compute.image.filters import TYPES, WITHOUT_WRAP, along, correlated, odd, separable, working_type
from libs.compute.image.kernels import anchor_of, gaussian, gaussian_fixed
from libs.compute.image.pixels import (
    MOST_TAPS,
    REAL,
    depth,
    flag,
    floor,
    height_width,
    image,
    joined,
    pair,
    planes,
    real,
    restored,
    running_sum,
    saturate,
)
from libs.compute.tensor import Tensor

__all__ = ["GaussianBlur", "blur", "boxFilter", "sqrBoxFilter"]


def boxFilter(
    src: Any,
    ddepth: int,
    ksize: tuple[int, int],
    anchor: tuple[int, int] = (-1, -1),
    normalize: bool = True,
    borderType: int = c.BORDER_DEFAULT,
) -> Tensor:
    """Return the mean of each window (width, height), or its sum where not `normalize`.

    OpenCV: exact for integers, but for uint8 in windows of 2, 4, 8, … pixels: there it adds one too many
    before it divides (black becomes 1 by a window of two). 1e-6 for floats.
    """
    return _boxed("boxFilter", src, ddepth, ksize, anchor, normalize, borderType, square=False)


def sqrBoxFilter(
    src: Any,
    ddepth: int,
    ksize: tuple[int, int],
    anchor: tuple[int, int] = (-1, -1),
    normalize: bool = True,
    borderType: int = c.BORDER_DEFAULT,
) -> Tensor:
    """Return the mean (or sum) of squares in each window (width, height).

    ddepth -1: float32 of integers, else float64.

    OpenCV: 1e-6.
    """
    call = "sqrBoxFilter"
    if isinstance(ddepth, int) and ddepth == -1:
        ddepth = c.CV_64F if image(call, "src", src).dtype in REAL else c.CV_32F
    return _boxed(call, src, ddepth, ksize, anchor, normalize, borderType, square=True)


def blur(
    src: Any, ksize: tuple[int, int], anchor: tuple[int, int] = (-1, -1), borderType: int = c.BORDER_DEFAULT
) -> Tensor:
    """Return the mean of each window (width, height).

    OpenCV: exact for integers, but for uint8 in windows of 2, 4, 8, … pixels: there it adds one too many
    before it divides (black becomes 1 by a window of two). 1e-6 for floats.
    """
    return _boxed("blur", src, -1, ksize, anchor, True, borderType, square=False)


def _boxed(
    call: str,
    src: Any,
    ddepth: int,
    ksize: Any,
    anchor: Any,
    normalize: bool,
    borderType: int,
    *,
    square: bool,
) -> Tensor:
    tensor = image(call, "src", src, TYPES)
    width, height = pair(call, "ksize", ksize, 1, MOST_TAPS)
    mean = flag(call, "normalize", normalize)
    result = depth(call, "ddepth", ddepth, tensor.dtype)
    kind = border_type(call, "borderType", borderType, WITHOUT_WRAP)
    place = anchor_of(call, anchor, width, height)
    x = planes(tensor)
    # Sums of 32 bits hold those of a window of 16-bit numbers up to 2^15 of them.
    exact = tensor.dtype not in REAL and not square and (tensor.dtype == "uint8" or width * height < 1 << 15)
    x = x.astype("int32" if exact else "float64")
    total = box_sum(x * x if square else x, width, height, kind, place)
    if mean and tensor.dtype == result == "uint8" and width * height <= _SMALL:
        total = floor(total.astype("float64") * (1.0 / (width * height)) + 0.5)
    elif mean:
        total = total.astype("float64") * (1.0 / (width * height))
    return restored(saturate(total, result), tensor)


_SMALL = 256
"""Pixels of a window up to which OpenCV rounds halves of uint8 means up, beyond which to the even one."""


def box_sum(x: Tensor, width: int, height: int, kind: int, anchor: tuple[int, int] = (-1, -1)) -> Tensor:
    """Return the sum of each window of [height, width, channels], in its type."""
    rows, columns = height_width(x)
    left = width // 2 if anchor[0] == -1 else anchor[0]
    top = height // 2 if anchor[1] == -1 else anchor[1]
    x = padded(x, (top, height - 1 - top, left, width - 1 - left), kind)
    return sliding(sliding(x, 1, width, columns), 0, height, rows)


_FEW = 9


def sliding(x: Tensor, axis: int, size: int, count: int) -> Tensor:
    """Return sums of `size` neighbours along an axis, by running sums where they are many."""
    if size <= _FEW or x.dtype in REAL:
        return correlated(x, np.ones(size), axis, count) if x.dtype in REAL else _added(x, axis, size, count)
    total = running_sum(x, axis)
    first = along(total, axis, size - 1, 1)
    rest = along(total, axis, size, count - 1) - along(total, axis, 0, count - 1) if count > 1 else None
    return first if rest is None else joined([first, rest], axis)


def _added(x: Tensor, axis: int, size: int, count: int) -> Tensor:
    total = along(x, axis, 0, count)
    for place in range(1, size):
        total = total + along(x, axis, place, count)
    return total


def GaussianBlur(
    src: Any, ksize: tuple[int, int], sigmaX: float, sigmaY: float = 0, borderType: int = c.BORDER_DEFAULT
) -> Tensor:
    """Return src smoothed by a Gaussian of ksize = (width, height), both odd.

    A ksize of (0, 0) is made of the sigmas, which are in pixels; a sigmaX of 0 of the size, a sigmaY of 0 of
    sigmaX.

    OpenCV: exact for uint8 and uint16, by its fixed point, within 1 for int16, 1e-5 for floats.
    """
    call = "GaussianBlur"
    tensor = image(call, "src", src, TYPES)
    width, height = pair(call, "ksize", ksize, 0, MOST_TAPS)
    across = real(call, "sigmaX", sigmaX)
    down = real(call, "sigmaY", sigmaY)
    down = down if down > 0 else across
    reach = 3 if tensor.dtype == "uint8" else 4
    width, height = (
        round(sigma * reach * 2 + 1) | 1 if size == 0 and sigma > 0 else size
        for size, sigma in ((width, across), (height, down))
    )
    if not 0 < width <= MOST_TAPS or not 0 < height <= MOST_TAPS:
        raise Invalid(f"{call}: ksize is {width} by {height}, of which none is 0 unless its sigma isn't")
    odd(call, "ksize", width)
    odd(call, "ksize", height)
    kind = border_type(call, "borderType", borderType, WITHOUT_WRAP)
    across, down = max(across, 0.0), max(down, 0.0)
    rows, columns = height_width(tensor)
    width, height = (1 if columns == 1 and kind else width), (1 if rows == 1 and kind else height)
    x = planes(tensor)
    if tensor.dtype in ("uint8", "uint16"):
        # In fixed point: float64 holds sums of 48 bits.
        bits = 8 if tensor.dtype == "uint8" else 16
        fixed = (gaussian_fixed(width, across, bits), gaussian_fixed(height, down, bits))
        total = separable(x.astype("float64"), *fixed, kind)
        return restored(saturate(floor(total * 4.0**-bits + 0.5), tensor.dtype), tensor)
    compute = working_type(tensor.dtype, tensor.dtype)
    kernels = (gaussian(width, across).astype(compute), gaussian(height, down).astype(compute))
    return restored(saturate(separable(x.astype(compute), *kernels, kind), tensor.dtype), tensor)

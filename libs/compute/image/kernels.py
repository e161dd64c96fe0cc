"""Kernels of filters: small arrays that are known when the code runs or is traced."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image.pixels import MOST_TAPS, chosen, flag, pair, real, whole
from libs.compute.tensor import Tensor, asarray

__all__ = ["getDerivKernels", "getGaborKernel", "getGaussianKernel", "getStructuringElement"]

Kernel = npt.NDArray[np.float64]
_MOST_REACH = 1024
"""Of a Gabor filter whose size is made of its sigma, in pixels to either side."""
_SMALL_GAUSSIANS = {
    1: [1.0],
    3: [0.25, 0.5, 0.25],
    5: [0.0625, 0.25, 0.375, 0.25, 0.0625],
    7: [0.03125, 0.109375, 0.21875, 0.28125, 0.21875, 0.109375, 0.03125],
    9: [4 / 256, 13 / 256, 30 / 256, 51 / 256, 60 / 256, 51 / 256, 30 / 256, 13 / 256, 4 / 256],
}
"""What there is for sizes without a sigma; sums of 2^-8, so that they are exact in fixed point."""


def gaussian(size: int, sigma: float) -> Kernel:
    """Return `size` weights of a Gaussian whose sum is 1; sigma of 0 or less is made of the size."""
    if sigma <= 0 and size in _SMALL_GAUSSIANS:
        return np.array(_SMALL_GAUSSIANS[size])
    deviation = sigma if sigma > 0 else size * 0.15 + 0.35
    at = np.arange(size) - (size - 1) / 2
    weights = np.exp(-0.5 * (at / deviation) ** 2)
    return np.asarray(weights / weights.sum())


def gaussian_fixed(size: int, sigma: float, bits: int) -> npt.NDArray[np.int64]:
    """Return the weights as multiples of 2^-bits; what rounding leaves goes on to the next one inwards."""
    exact = gaussian(size, sigma) * (1 << bits)
    fixed = np.zeros(size, np.int64)
    rest = 0.0
    for place in range(size // 2):
        wanted = float(exact[place]) + rest
        fixed[place] = fixed[size - 1 - place] = round(wanted)
        rest = wanted - round(wanted)
    fixed[size // 2] = (1 << bits) - fixed.sum()
    return fixed


def derivative(order: int, size: int) -> Kernel:
    """Return Sobel's weights along one axis: a binomial smoothing, differenced `order` times."""
    kernel = np.array([1.0])
    for step in range(size - 1):
        kernel = np.convolve(kernel, [-1.0, 1.0] if step < order else [1.0, 1.0])
    return kernel


def _depth(call: str, ktype: Any) -> str:
    return "float32" if chosen(call, "ktype", ktype, (c.CV_32F, c.CV_64F)) == c.CV_32F else "float64"


def getGaussianKernel(ksize: int, sigma: float, ktype: int = c.CV_64F) -> Tensor:
    """Return the weights of a Gaussian, [ksize, 1]; sigma, in pixels, of 0 or less: made of the size.

    OpenCV: 1e-7.
    """
    call = "getGaussianKernel"
    size = whole(call, "ksize", ksize, 1, MOST_TAPS)
    if size % 2 == 0:
        raise Invalid(f"{call}: ksize is {size}; it is odd")
    weights = gaussian(size, real(call, "sigma", sigma))
    return asarray(weights.reshape(-1, 1).astype(_depth(call, ktype)))


def getDerivKernels(
    dx: int, dy: int, ksize: int, normalize: bool = False, ktype: int = c.CV_32F
) -> tuple[Tensor, Tensor]:
    """Return the weights of Sobel's filter, or Scharr's for `ksize` FILTER_SCHARR, as two columns [ksize, 1].

    OpenCV: exact.
    """
    call = "getDerivKernels"
    along_x, along_y = deriv_kernels(call, dx, dy, ksize, flag(call, "normalize", normalize))
    dtype = _depth(call, ktype)
    columns = (along_x.reshape(-1, 1), along_y.reshape(-1, 1))
    return asarray(columns[0].astype(dtype)), asarray(columns[1].astype(dtype))


def deriv_kernels(call: str, dx: int, dy: int, ksize: int, normalize: bool = False) -> tuple[Kernel, Kernel]:
    """Return the two vectors; raises Invalid for orders that the size doesn't have."""
    across, down = whole(call, "dx", dx, 0, 30), whole(call, "dy", dy, 0, 30)
    if isinstance(ksize, int) and ksize == c.FILTER_SCHARR:
        if across + down != 1:
            raise Invalid(f"{call}: dx + dy is {across + down}; Scharr's filter takes 1")
        smooth = np.array([3.0, 10.0, 3.0]) / (32 if normalize else 1)
        steep = np.array([-1.0, 0.0, 1.0])
        return (steep, smooth) if across else (smooth, steep)
    size = whole(call, "ksize", ksize, 1, 31)
    if size % 2 == 0:
        raise Invalid(f"{call}: ksize is {size}; it is odd")
    if across + down == 0:
        raise Invalid(f"{call}: dx and dy are both 0; a derivative has an order")
    made = []
    for name, order in (("dx", across), ("dy", down)):
        own = 3 if size == 1 and order > 0 else size
        if order >= own:
            raise Invalid(f"{call}: {name} is {order}; that takes a larger ksize than {size}")
        kernel = derivative(order, own)
        made.append(kernel / (1 << (own - order - 1)) if normalize else kernel)
    return made[0], made[1]


def getGaborKernel(
    ksize: tuple[int, int],
    sigma: float,
    theta: float,
    lambd: float,
    gamma: float,
    psi: float = math.pi / 2,
    ktype: int = c.CV_64F,
) -> Tensor:
    """Return the weights of a Gabor filter, [height, width], for ksize = (width, height).

    OpenCV: 1e-12.
    """
    call = "getGaborKernel"
    width, height = pair(call, "ksize", ksize, -1, 255)
    numbers = {"sigma": sigma, "theta": theta, "lambd": lambd, "gamma": gamma, "psi": psi}
    found = {name: real(call, name, value) for name, value in numbers.items()}
    for name in ("sigma", "lambd", "gamma"):
        if found[name] == 0:
            raise Invalid(f"{call}: {name} is 0")
    sine, cosine = math.sin(found["theta"]), math.cos(found["theta"])
    across, down = found["sigma"], found["sigma"] / found["gamma"]
    x_most = width // 2 if width > 0 else round(3 * max(abs(across * cosine), abs(down * sine)))
    y_most = height // 2 if height > 0 else round(3 * max(abs(across * sine), abs(down * cosine)))
    if max(x_most, y_most) > _MOST_REACH:
        raise Invalid(f"{call}: sigma is {sigma!r} and gamma is {gamma!r}: too wide; give a ksize above 0")
    y, x = np.mgrid[y_most : -y_most - 1 : -1, x_most : -x_most - 1 : -1]
    along, beside = x * cosine + y * sine, -x * sine + y * cosine
    envelope = np.exp(-0.5 * (along / across) ** 2 - 0.5 * (beside / down) ** 2)
    wave = np.cos(2 * math.pi / found["lambd"] * along + found["psi"])
    return asarray((envelope * wave).astype(_depth(call, ktype)))


def getStructuringElement(shape: int, ksize: tuple[int, int], anchor: tuple[int, int] = (-1, -1)) -> Tensor:
    """Return the pixels that erode and dilate look at, uint8 [height, width], for ksize = (width, height).

    OpenCV: exact.
    """
    call = "getStructuringElement"
    kind = chosen(call, "shape", shape, (c.MORPH_RECT, c.MORPH_CROSS, c.MORPH_ELLIPSE))
    width, height = pair(call, "ksize", ksize, 1, MOST_TAPS)
    x, y = anchor_of(call, anchor, width, height)
    element = np.zeros((height, width), np.uint8)
    if kind == c.MORPH_RECT or (width, height) == (1, 1):
        element[...] = 1
    elif kind == c.MORPH_CROSS:
        element[y, :] = element[:, x] = 1
    else:
        half, middle = height // 2, width // 2
        for row in range(height):
            away = row - half
            if abs(away) <= half:
                share = (half * half - away * away) / (half * half) if half else 0
                reach = round(middle * math.sqrt(share))
                element[row, max(middle - reach, 0) : min(middle + reach + 1, width)] = 1
    return asarray(element)


def anchor_of(call: str, anchor: Any, width: int, height: int) -> tuple[int, int]:
    """Return which of a kernel's pixels lies over the result's: (-1, -1) is its middle."""
    x, y = pair(call, "anchor", anchor, -1, MOST_TAPS)
    x, y = (width // 2 if x == -1 else x), (height // 2 if y == -1 else y)
    if x >= width or y >= height:
        raise Invalid(f"{call}: anchor is {anchor!r}, outside of the kernel of {width} by {height}")
    return x, y

"""Linear filters: a window's pixels, weighted and added up."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image.borders import border_type, padded
from libs.compute.image.kernels import anchor_of, deriv_kernels
from libs.compute.image.pixels import (
    MOST_TAPS,
    constant,
    depth,
    height_width,
    image,
    known,
    part,
    planes,
    real,
    restored,
    saturate,
    whole,
)
from libs.compute.tensor import Tensor

__all__ = [
    "Laplacian",
    "Scharr",
    "Sobel",
    "filter2D",
    "sepFilter2D",
    "spatialGradient",
]

TYPES = ("uint8", "uint16", "int16", "float32", "float64")
WITHOUT_WRAP = (c.BORDER_CONSTANT, c.BORDER_REPLICATE, c.BORDER_REFLECT, c.BORDER_REFLECT_101)
Weights = npt.NDArray[Any]


def correlated(x: Tensor, weights: Weights, axis: int, count: int) -> Tensor:
    """Return Σ weights[k]·x[k + i] for i < count along an axis; weights of 0 are left out."""
    total = None
    for place, weight in enumerate(weights.tolist()):
        if not weight:
            continue
        window = along(x, axis, place, count)
        term = window if weight == 1 else window * weight
        total = term if total is None else total + term
    return along(x, axis, 0, count) * 0 if total is None else total


def along(x: Tensor, axis: int, start: int, count: int) -> Tensor:
    """Return so many slices along an axis, from one on."""
    starts = [start if place == axis else 0 for place in range(x.ndim)]
    sizes = [count if place == axis else int(size) for place, size in enumerate(x.shape)]
    return part(x, starts, sizes)


def separable(
    x: Tensor, across: Weights, down: Weights, kind: int, anchor: tuple[int, int] = (-1, -1)
) -> Tensor:
    """Return [height, width, channels] filtered by one vector along rows and one along columns."""
    height, width = height_width(x)
    left = len(across) // 2 if anchor[0] == -1 else anchor[0]
    top = len(down) // 2 if anchor[1] == -1 else anchor[1]
    x = padded(x, (top, len(down) - 1 - top, left, len(across) - 1 - left), kind)
    return correlated(correlated(x, across, 1, width), down, 0, height)


def working_type(source: str, result: str) -> str:
    """Return the type that sums of pixels are made in."""
    return "float64" if "float64" in (source, result) else "float32"


def odd(call: str, name: str, size: int) -> int:
    """Return a size that must be odd."""
    if size % 2 == 0:
        raise Invalid(f"{call}: {name} is {size}; it is odd")
    return size


def filter2D(
    src: Any,
    ddepth: int,
    kernel: Any,
    anchor: tuple[int, int] = (-1, -1),
    delta: float = 0,
    borderType: int = c.BORDER_DEFAULT,
) -> Tensor:
    """Return Σ kernel[i, j]·src at each window, plus delta: the kernel [height, width] isn't turned round.

    anchor, here as elsewhere: which pixel (x, y) of the kernel lies over the result's; (-1, -1): the middle.

    OpenCV: within 1 for integers, 1e-5 for floats (it goes through a Fourier transform for large kernels).
    """
    return _filtered("filter2D", src, ddepth, kernel, anchor, delta, borderType)


def _filtered(
    call: str, src: Any, ddepth: Any, kernel: Any, anchor: Any, delta: Any, borderType: Any
) -> Tensor:
    tensor = image(call, "src", src, TYPES)
    weights = known(call, "kernel", kernel)
    if weights.ndim == 1:
        weights = weights.reshape(-1, 1)
    if weights.ndim != 2 or not 0 < weights.size <= MOST_TAPS:
        raise Invalid(
            f"{call}: kernel has shape {list(weights.shape)}; it is [height, width], at most {MOST_TAPS}"
        )
    result = depth(call, "ddepth", ddepth, tensor.dtype)
    rows, columns = weights.shape
    x_at, y_at = anchor_of(call, anchor, columns, rows)
    kind = border_type(call, "borderType", borderType, WITHOUT_WRAP)
    height, width = height_width(tensor)
    compute = working_type(tensor.dtype, result)
    x = padded(planes(tensor).astype(compute), (y_at, rows - 1 - y_at, x_at, columns - 1 - x_at), kind)
    total = constant(x, real(call, "delta", delta)).reshape((1, 1, 1))
    for row, line in enumerate(weights.astype(compute)):
        if line.any():
            total = total + correlated(along(x, 0, row, height), line, 1, width)
    if total.ndim != 3 or total.shape[0] != height:
        total = total + along(along(x, 0, 0, height), 1, 0, width) * 0
    return restored(saturate(total, result), tensor)


def sepFilter2D(
    src: Any,
    ddepth: int,
    kernelX: Any,
    kernelY: Any,
    anchor: tuple[int, int] = (-1, -1),
    delta: float = 0,
    borderType: int = c.BORDER_DEFAULT,
) -> Tensor:
    """Return rows weighted by kernelX, columns by kernelY, plus delta; both are vectors.

    OpenCV: within 1 for integers (smoothing of uint8 takes weights of 8 bits there), 1e-5 for floats.
    """
    call = "sepFilter2D"
    tensor = image(call, "src", src, TYPES)
    vectors = []
    for name, kernel in (("kernelX", kernelX), ("kernelY", kernelY)):
        vector = known(call, name, kernel).reshape(-1)
        if not 0 < vector.size <= MOST_TAPS:
            raise Invalid(f"{call}: {name} has {vector.size} elements; it has 1 to {MOST_TAPS}")
        vectors.append(vector)
    place = anchor_of(call, anchor, len(vectors[0]), len(vectors[1]))
    return _separated(call, tensor, (vectors[0], vectors[1]), ddepth, place, delta, borderType)


def _separated(
    call: str,
    tensor: Tensor,
    vectors: tuple[Weights, Weights],
    ddepth: int,
    anchor: tuple[int, int],
    delta: float,
    borderType: int,
) -> Tensor:
    result = depth(call, "ddepth", ddepth, tensor.dtype)
    kind = border_type(call, "borderType", borderType, WITHOUT_WRAP)
    compute = working_type(tensor.dtype, result)
    across, down = (vector.astype(compute) for vector in vectors)
    total = separable(planes(tensor).astype(compute), across, down, kind, anchor)
    more = real(call, "delta", delta)
    return restored(saturate(total + more if more else total, result), tensor)


def Sobel(
    src: Any,
    ddepth: int,
    dx: int,
    dy: int,
    ksize: int = 3,
    scale: float = 1,
    delta: float = 0,
    borderType: int = c.BORDER_DEFAULT,
) -> Tensor:
    """Return the derivative of src of order dx along x and dy along y, smoothed across it.

    OpenCV: exact for integers where `scale` is 1 and sums stay below 2^24; else within 1, 1e-5 for floats.
    """
    return _derived("Sobel", src, ddepth, dx, dy, ksize, scale, delta, borderType)


def Scharr(
    src: Any,
    ddepth: int,
    dx: int,
    dy: int,
    scale: float = 1,
    delta: float = 0,
    borderType: int = c.BORDER_DEFAULT,
) -> Tensor:
    """Return the first derivative of src along x or y by Scharr's weights, 3, 10 and 3.

    OpenCV: exact for integers where `scale` is 1; else within 1, 1e-5 for floats.
    """
    return _derived("Scharr", src, ddepth, dx, dy, c.FILTER_SCHARR, scale, delta, borderType)


def _derived(
    call: str,
    src: Any,
    ddepth: int,
    dx: int,
    dy: int,
    ksize: int,
    scale: float,
    delta: float,
    borderType: int,
) -> Tensor:
    tensor = image(call, "src", src, TYPES)
    across, down = deriv_kernels(call, dx, dy, ksize)
    factor = real(call, "scale", scale)
    # On the smoothing one, as in OpenCV.
    if dx == 0:
        across = across * factor
    else:
        down = down * factor
    return _separated(call, tensor, (across, down), ddepth, (-1, -1), delta, borderType)


def Laplacian(
    src: Any,
    ddepth: int,
    ksize: int = 1,
    scale: float = 1,
    delta: float = 0,
    borderType: int = c.BORDER_DEFAULT,
) -> Tensor:
    """Return the sum of the second derivatives along x and y.

    OpenCV: exact for integers where `scale` is 1 and sums stay below 2^24; else within 1, 1e-5 for floats.
    """
    call = "Laplacian"
    size = odd(call, "ksize", whole(call, "ksize", ksize, 1, 31))
    factor = real(call, "scale", scale)
    if size <= 3:
        kernel = [[0, 1, 0], [1, -4, 1], [0, 1, 0]] if size == 1 else [[2, 0, 2], [0, -8, 0], [2, 0, 2]]
        return _filtered(call, src, ddepth, np.array(kernel) * factor, (-1, -1), delta, borderType)
    tensor = image(call, "src", src, TYPES)
    result = depth(call, "ddepth", ddepth, tensor.dtype)
    kind = border_type(call, "borderType", borderType, WITHOUT_WRAP)
    steep, smooth = deriv_kernels(call, 2, 0, size)
    compute = working_type(tensor.dtype, result)
    x = planes(tensor).astype(compute)
    both = separable(x, steep, smooth, kind) + separable(x, smooth, steep, kind)
    return restored(saturate(both * factor + real(call, "delta", delta), result), tensor)


def spatialGradient(src: Any, ksize: int = 3, borderType: int = c.BORDER_DEFAULT) -> tuple[Tensor, Tensor]:
    """Return the first derivatives of a uint8 image along x and y as int16, by Sobel's weights of size 3.

    OpenCV: exact.
    """
    call = "spatialGradient"
    tensor = image(call, "src", src, ("uint8",), (1,))
    whole(call, "ksize", ksize, 3, 3)
    border_type(call, "borderType", borderType, (c.BORDER_REPLICATE, c.BORDER_REFLECT_101))
    dx = _derived(call, tensor, c.CV_16S, 1, 0, 3, 1, 0, borderType)
    return dx, _derived(call, tensor, c.CV_16S, 0, 1, 3, 1, 0, borderType)

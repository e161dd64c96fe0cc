"""Where a smaller image lies in a larger one."""

from __future__ import annotations

from typing import Any

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image.pixels import (
    absolute,
    channels_of,
    chosen,
    constant,
    describe,
    height_width,
    image,
    maximum,
    part,
    planes,
    product,
    reduced,
    sqrt,
    where,
)
from libs.compute.image.smoothing import sliding
from libs.compute.tensor import Tensor, tensors_of

__all__ = ["matchTemplate"]

_MOST_PRODUCTS = 1 << 36


def matchTemplate(image: Any, templ: Any, method: int) -> Tensor:
    """Return how well templ fits at each place of image, float32 [rows, columns], by `method` (TM_CCORR, …).

    uint8 or float32, of equally many channels. It computes in float64.

    OpenCV: 1e-3 of the largest (it goes through a Fourier transform in float32), but where all of a window or
    of templ is one level.
    """
    call = "matchTemplate"
    tensor, small = tensors_of(_image(call, "image", image), _image(call, "templ", templ))
    kind = chosen(call, "method", method, range(6))
    (height, width), (rows, columns) = height_width(tensor), height_width(small)
    if tensor.dtype != small.dtype or channels_of(tensor) != channels_of(small):
        raise Invalid(f"{call}: image is {describe(tensor)} and templ is {describe(small)}")
    if rows > height or columns > width:
        raise Invalid(f"{call}: templ is {describe(small)}, larger than image, {describe(tensor)}")
    sizes = (height - rows + 1, width - columns + 1)
    if sizes[0] * sizes[1] * rows * columns * channels_of(small) > _MOST_PRODUCTS:
        raise Invalid(f"{call}: {describe(small)} in {describe(tensor)} takes too long; make both smaller")
    x, t = planes(tensor).astype("float64"), planes(small).astype("float64")
    if kind in (c.TM_CCOEFF, c.TM_CCOEFF_NORMED):
        t = t - reduced("reduce_sum", t, (0, 1), keep=True) * (1.0 / (rows * columns))
    fit = _correlated(x, t, sizes)
    squares = _windows(x * x, (rows, columns), sizes)
    own = reduced("reduce_sum", t * t, (0, 1, 2))
    if kind in (c.TM_SQDIFF, c.TM_SQDIFF_NORMED):
        fit = squares - fit * 2.0 + own
        fit = maximum(fit, constant(fit, 0))
    if kind in (c.TM_SQDIFF, c.TM_CCORR, c.TM_CCOEFF):
        return fit.astype("float32")
    if kind == c.TM_CCOEFF_NORMED:
        sums = _sums(x, (rows, columns), sizes)
        squares = squares - reduced("reduce_sum", sums * sums, (2,)) * (1.0 / (rows * columns))
    norm = sqrt(maximum(squares, constant(squares, 0))) * sqrt(own)
    return _normed(fit, norm, kind).astype("float32")


def _image(call: str, name: str, thing: Any) -> Tensor:
    return image(call, name, thing, ("uint8", "float32"))


def _normed(fit: Tensor, norm: Tensor, kind: int) -> Tensor:
    """Return fit / norm; what rounding takes beyond 1 comes back, and 0 (SQDIFF: 1) of nothing."""
    size = absolute(fit)
    inside = size < norm
    safe = where(inside, norm, constant(norm, 1))
    near = size < norm * 1.125
    one = where(fit > 0, constant(fit, 1), constant(fit, -1))
    beyond = where(near, one, constant(fit, 1 if kind == c.TM_SQDIFF_NORMED else 0))
    return where(inside, fit / safe, beyond)


def _correlated(x: Tensor, t: Tensor, sizes: tuple[int, int]) -> Tensor:
    """Return Σ x·t over windows: one product of matrices for each row of the template."""
    rows, columns = height_width(t)
    channels = channels_of(t)
    width = int(x.shape[1])
    b = x.backend
    total = None
    for row in range(rows):
        # Windows of one row overlap in memory: each starts one pixel on.
        line = part(x, (row, 0, 0), (sizes[0], width, channels))
        shape = (sizes[0], sizes[1], columns * channels)
        windows = Tensor(b, b.move(line.value, shape, (width * channels, channels, 1)))
        weights = t[row].reshape((columns * channels, 1))
        term = product(windows, weights).reshape(sizes)
        total = term if total is None else total + term
    assert total is not None
    return total


def _sums(x: Tensor, window: tuple[int, int], sizes: tuple[int, int]) -> Tensor:
    return sliding(sliding(x, 1, window[1], sizes[1]), 0, window[0], sizes[0])


def _windows(x: Tensor, window: tuple[int, int], sizes: tuple[int, int]) -> Tensor:
    return reduced("reduce_sum", _sums(x, window, sizes), (2,))

"""An image between its pixels: what remap and the warps read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from libs.compute.image import constants as c
from libs.compute.image.pixels import (
    channels_of,
    clip,
    constant,
    floor,
    height_width,
    maximum,
    minimum,
    rint,
    saturate,
    stacked,
    take,
    where,
)
from libs.compute.image.taps import spline_weights
from libs.compute.tensor import Tensor

KINDS = (c.INTER_NEAREST, c.INTER_LINEAR, c.INTER_CUBIC, c.INTER_LANCZOS4)
GRID = 32
"""Places between two pixels that INTER_LANCZOS4 tells apart."""
_FAR = float(1 << 28)
"""Nothing lies further away than this."""

Border = tuple[int, Sequence[float]]
"""Kind, and what a constant one puts in each channel."""


def sampled(x: Tensor, across: Tensor, down: Tensor, interpolation: int, border: Border) -> Tensor:
    """Return [height, width, channels] at places float32 or float64 [rows, columns], x across and y down."""
    across, down = (clip(place, -_FAR, _FAR) for place in (across, down))
    if interpolation == c.INTER_NEAREST:
        return _at(x, rint(down).astype("int32"), rint(across).astype("int32"), border)
    if interpolation == c.INTER_LANCZOS4:
        across, down = (rint(place * float(GRID)) for place in (across, down))
        return on_grid(x, across.astype("int32"), down.astype("int32"), border)
    lefts, tops = floor(across), floor(down)
    compute = "float64" if x.dtype == "float64" else "float32"
    shares = [(place - start).astype(compute) for place, start in ((across, lefts), (down, tops))]
    left, top = lefts.astype("int32"), tops.astype("int32")
    if interpolation == c.INTER_CUBIC:
        cubic = [_cubic(share) for share in shares]
        return _mixed(x, left - 1, top - 1, cubic[0], cubic[1], border)
    weights = [[1 - share, share] for share in shares]
    return _mixed(x, left, top, weights[0], weights[1], border)


def _cubic(share: Tensor) -> list[Tensor]:
    """Return the four weights of a cubic convolution with a = -0.75."""
    a, beside, rest = -0.75, share + 1, 1 - share
    first = ((a * beside - 5 * a) * beside + 8 * a) * beside - 4 * a
    second = ((a + 2) * share - (a + 3)) * share * share + 1
    third = ((a + 2) * rest - (a + 3)) * rest * rest + 1
    return [first, second, third, 1 - first - second - third]


def on_grid(x: Tensor, across: Tensor, down: Tensor, border: Border) -> Tensor:
    """Return an image at places int32 [rows, columns] in 32nds of a pixel, by INTER_LANCZOS4."""
    compute = "float64" if x.dtype == "float64" else "float32"
    shares = np.arange(GRID, dtype=np.float32) / np.float32(GRID)
    table = constant(across, spline_weights(shares, c.INTER_LANCZOS4), compute)
    starts, weights = [], []
    for place in (across, down):
        start = floor(place.astype("float64") * (1 / GRID)).astype("int32")
        share = place - start * GRID
        weights.append([take(table[tap], share, 0) for tap in range(int(table.shape[0]))])
        starts.append(start - 3)
    return _mixed(x, starts[0], starts[1], weights[0], weights[1], border)


def _mixed(
    x: Tensor, lefts: Tensor, tops: Tensor, across: list[Tensor], down: list[Tensor], border: Border
) -> Tensor:
    """Return the weighted sum of the pixels right of and below a place, and it."""
    total = None
    for row, high in enumerate(down):
        line = None
        for column, wide in enumerate(across):
            pixel = _at(x, tops + row, lefts + column, border).astype(high.dtype)
            term = pixel * wide.reshape((*wide.shape, 1))
            line = term if line is None else line + term
        assert line is not None
        term = line * high.reshape((*high.shape, 1))
        total = term if total is None else total + term
    assert total is not None
    return saturate(total, x.dtype)


def _at(x: Tensor, rows: Tensor, columns: Tensor, border: Border) -> Tensor:
    """Return the pixels at int32 places, which may lie outside."""
    height, width = height_width(x)
    kind, value = border
    inside = None
    if kind == c.BORDER_CONSTANT:
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    within = _INSIDE[kind]
    index = within(rows, height) * width + within(columns, width)
    found = take(x.reshape((height * width, channels_of(x))), index, 0)
    if inside is None:
        return found
    filling = saturate(constant(x, np.array(value), "float64"), x.dtype)
    return where(inside.reshape((*inside.shape, 1)), found, filling)


def _clamped(place: Tensor, size: int) -> Tensor:
    return minimum(maximum(place, constant(place, 0)), constant(place, size - 1))


def _reflected(place: Tensor, size: int) -> Tensor:
    turned = place % (2 * size)
    return minimum(turned, 2 * size - 1 - turned)


def _reflected_101(place: Tensor, size: int) -> Tensor:
    if size == 1:
        return place * 0
    turned = place % (2 * size - 2)
    return minimum(turned, 2 * size - 2 - turned)


def _wrapped(place: Tensor, size: int) -> Tensor:
    return place % size


_INSIDE: dict[int, Callable[[Tensor, int], Tensor]] = {
    c.BORDER_CONSTANT: _clamped,
    c.BORDER_REPLICATE: _clamped,
    c.BORDER_REFLECT: _reflected,
    c.BORDER_REFLECT_101: _reflected_101,
    c.BORDER_WRAP: _wrapped,
}


def grid(like: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the x of each column, float64 [1, width], and the y of each row, float64 [height, 1]."""
    x = constant(like, np.arange(width).reshape(1, -1), "float64")
    return x, constant(like, np.arange(height).reshape(-1, 1), "float64")


def matrix_of(rows: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return scalars as a matrix."""
    return stacked([stacked([each.reshape(()) for each in row], 0) for row in rows], 0)

"""Images of other sizes, as OpenCV's `resize` makes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image import taps
from libs.compute.image.borders import padded
from libs.compute.image.pixels import (
    MOST_ELEMENTS,
    MOST_SIDE,
    REAL,
    channels_of,
    chosen,
    constant,
    floor,
    height_width,
    image,
    pair,
    part,
    picked,
    planes,
    real,
    reduced,
    restored,
    rint,
    saturate,
    where,
)
from libs.compute.image.taps import Taps
from libs.compute.tensor import Tensor

__all__ = ["resize"]

_KINDS = (
    c.INTER_NEAREST,
    c.INTER_LINEAR,
    c.INTER_CUBIC,
    c.INTER_AREA,
    c.INTER_LANCZOS4,
    c.INTER_NEAREST_EXACT,
)
_EPSILON = float(np.finfo(np.float64).eps)
_BITS = 11
"""Of the weights of uint8 images."""


def resize(
    src: Any,
    dsize: tuple[int, int] | None,
    fx: float = 0,
    fy: float = 0,
    interpolation: int = c.INTER_LINEAR,
) -> Tensor:
    """Return src as (width, height) pixels, or, where dsize is None or (0, 0), fx and fy times as many.

    OpenCV: exact for INTER_NEAREST, and uint8 by INTER_LINEAR; else within 1 for integers, 1e-5 for floats.
    INTER_NEAREST_EXACT: but for middles exactly between two pixels.
    """
    return scaled("resize", src, dsize, fx, fy, interpolation)


def scaled(call: str, src: Any, dsize: Any, fx: Any, fy: Any, interpolation: Any) -> Tensor:
    """Do what `resize` does, for a function that refuses in its own name."""
    tensor = image(call, "src", src, ("uint8", "uint16", "int16", "float32", "float64"))
    kind = chosen(call, "interpolation", interpolation, _KINDS)
    height, width = height_width(tensor)
    new_width, new_height = (0, 0) if dsize is None else pair(call, "dsize", dsize, 0, MOST_SIDE)
    if new_width or new_height:
        # As OpenCV: which pixel is nearest hangs on the last bit of it.
        across, down = 1 / (max(new_width, 1) / width), 1 / (max(new_height, 1) / height)
    else:
        ratios = real(call, "fx", fx), real(call, "fy", fy)
        if min(ratios) <= 0 or max(ratios) > MOST_SIDE:
            raise Invalid(f"{call}: give dsize, or fx and fy above 0; they are {fx} and {fy}")
        new_width, new_height = round(width * ratios[0]), round(height * ratios[1])
        across, down = 1 / ratios[0], 1 / ratios[1]
    if not new_width or not new_height or new_width * new_height * channels_of(tensor) > MOST_ELEMENTS:
        given = f"dsize is {dsize!r}, fx {fx!r} and fy {fy!r}"
        raise Invalid(f"{call}: {given}: the result would be {new_width} by {new_height} pixels")
    return restored(resized(planes(tensor), (new_height, new_width), (down, across), kind), tensor)


def resized(x: Tensor, sizes: tuple[int, int], scales: tuple[float, float], kind: int) -> Tensor:
    """Return [height, width, channels] in other sizes; a new pixel stands for so many old ones."""
    height, width = height_width(x)
    if kind == c.INTER_NEAREST_EXACT:
        rows, columns = taps.nearest_exact(height, sizes[0]), taps.nearest_exact(width, sizes[1])
        return picked(picked(x, rows, 0), columns, 1)
    if kind == c.INTER_NEAREST:
        rows, columns = taps.nearest(height, sizes[0], scales[0]), taps.nearest(width, sizes[1], scales[1])
        return picked(picked(x, rows, 0), columns, 1)
    if sizes == (height, width):
        return x
    halved = kind == c.INTER_LINEAR and all(abs(scale - 2) < _EPSILON for scale in scales)
    if (kind == c.INTER_AREA or halved) and min(scales) >= 1 - _EPSILON:
        return _averaged(x, sizes, scales)
    if kind in (c.INTER_CUBIC, c.INTER_LANCZOS4):
        down = taps.spline(height, sizes[0], scales[0], kind)
        across = taps.spline(width, sizes[1], scales[1], kind)
    else:
        as_area = kind == c.INTER_AREA
        down = taps.linear(height, sizes[0], scales[0], area=as_area, rows=True)
        across = taps.linear(width, sizes[1], scales[1], area=as_area, rows=False)
    if x.dtype != "uint8":
        return _weighted(x, down, across)
    return _in_fixed_point(x, down, across, linear=kind in (c.INTER_LINEAR, c.INTER_AREA))


def _weighted(x: Tensor, down: Taps, across: Taps) -> Tensor:
    compute = "float64" if x.dtype == "float64" else "float32"
    total = mixed(mixed(x.astype(compute), across.places, across.weights, 1), down.places, down.weights, 0)
    return saturate(total, x.dtype)


def mixed(x: Tensor, places: taps.Numbers, weights: taps.Numbers, axis: int) -> Tensor:
    """Return Σ weights·x at places along an axis of [height, width, channels]."""
    shape = tuple(-1 if place == axis else 1 for place in range(x.ndim))
    total = None
    for at, weight in zip(places, weights, strict=True):
        if not weight.any():
            continue
        term = picked(x, at, axis)
        if not (weight == 1).all():
            term = term * constant(x, weight.reshape(shape))
        total = term if total is None else total + term
    assert total is not None
    return total


def _in_fixed_point(x: Tensor, down: Taps, across: Taps, *, linear: bool) -> Tensor:
    """Weigh in multiples of 2^-11; float64 holds what that takes exactly."""
    rows = mixed(x.astype("float64"), across.places, across.fixed(_BITS), 1)
    if not linear:
        total = mixed(rows, down.places, down.fixed(_BITS), 0)
        return saturate(floor(total * 2.0 ** (-2 * _BITS) + 0.5), "uint8")
    # Two roundings down on the way, as the fastest instructions for it have them.
    rows = floor(rows * 2.0**-4)
    first, second = (
        floor(picked(rows, places, 0) * constant(rows, weights.reshape(-1, 1, 1)) * 2.0**-16)
        for places, weights in zip(down.places, down.fixed(_BITS), strict=True)
    )
    return saturate(floor((first + second) * 0.25 + 0.5), "uint8")


def _averaged(x: Tensor, sizes: tuple[int, int], scales: tuple[float, float]) -> Tensor:
    height, width = height_width(x)
    down, across = (round(scale) for scale in scales)
    if max(abs(down - scales[0]), abs(across - scales[1])) >= _EPSILON:
        whole = taps.area(height, sizes[0], scales[0]), taps.area(width, sizes[1], scales[1])
        return _weighted(x, *whole)
    rows, columns = sizes[0] * down, sizes[1] * across
    compute = x.dtype if x.dtype in ("float32", "float64") else "int32"
    # The last cells may have fewer pixels, or be cut off.
    kept = part(x.astype(compute), (0, 0, 0), (min(rows, height), min(columns, width), channels_of(x)))
    edges = (0, rows - min(rows, height), 0, columns - min(columns, width))
    cells = padded(kept, edges, c.BORDER_CONSTANT)
    total = reduced("reduce_sum", cells.reshape((sizes[0], down, sizes[1], across, channels_of(x))), (1, 3))
    high = np.minimum(down, height - np.arange(sizes[0]) * down)
    wide = np.minimum(across, width - np.arange(sizes[1]) * across)
    counts = high.reshape(-1, 1, 1) * wide.reshape(1, -1, 1)
    working = x.dtype if x.dtype in REAL else "float32"
    mean = total.astype(working) * constant(total, (1 / counts).astype(np.float32), working)
    if compute == "int32" and (down, across) == (2, 2):
        # Of four pixels, halves go up.
        return saturate(where(constant(mean, counts == 4, "bool"), floor(mean + 0.5), rint(mean)), x.dtype)
    return saturate(mean, x.dtype)

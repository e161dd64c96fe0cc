"""What lies beyond the edges of an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.common.errors import Invalid
from libs.compute.backend import Move, contiguous_strides
from libs.compute.image import constants as c
from libs.compute.image.pixels import (
    MOST_ELEMENTS,
    channels_of,
    chosen,
    colour,
    constant,
    height_width,
    image,
    picked,
    planes,
    restored,
    saturate,
    spread,
    whole,
)
from libs.compute.tensor import Tensor

__all__ = ["borderInterpolate", "copyMakeBorder"]

KINDS = (c.BORDER_CONSTANT, c.BORDER_REPLICATE, c.BORDER_REFLECT, c.BORDER_WRAP, c.BORDER_REFLECT_101)
_MOST_BORDER = 1 << 16


def border_type(call: str, name: str, value: Any, kinds: Sequence[int] = KINDS) -> int:
    """Return a kind of border without BORDER_ISOLATED, which changes nothing where images are whole."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        value &= ~c.BORDER_ISOLATED
    return chosen(call, name, value, kinds)


def places(start: int, stop: int, size: int, kind: int) -> npt.NDArray[np.int64]:
    """Return which of `size` pixels stand at positions start … stop - 1; -1 for a constant border."""
    at = np.arange(start, stop, dtype=np.int64)
    if kind == c.BORDER_REPLICATE:
        return np.clip(at, 0, size - 1)
    if kind == c.BORDER_WRAP:
        return at % size
    if kind == c.BORDER_REFLECT:
        at = at % (2 * size)
        return np.minimum(at, 2 * size - 1 - at)
    if kind == c.BORDER_REFLECT_101:
        if size == 1:
            return np.zeros_like(at)
        at = at % (2 * size - 2)
        return np.minimum(at, 2 * size - 2 - at)
    return np.where((at < 0) | (at >= size), -1, at)


def padded(x: Tensor, edges: tuple[int, int, int, int], kind: int, value: Sequence[float] = (0.0,)) -> Tensor:
    """Return [height, width, channels] with (top, bottom, left, right) more pixels."""
    top, bottom, left, right = edges
    if not any(edges):
        return x
    height, width = height_width(x)
    if kind != c.BORDER_CONSTANT:
        x = picked(x, places(-top, height + bottom, height, kind), 0) if top or bottom else x
        return picked(x, places(-left, width + right, width, kind), 1) if left or right else x
    shape = (height + top + bottom, width + left + right, channels_of(x))
    strides = contiguous_strides(shape)
    inside = Move(
        x.value, tuple(x.shape), contiguous_strides(x.shape), 0, strides, strides[0] * top + strides[1] * left
    )
    b, type_ = x.backend, x.type
    filling = saturate(constant(x, np.array(value, np.float64), "float64"), x.dtype)
    if len(set(value)) == 1:
        number = np.asarray(constant(x, value[0]).backend.known(filling.value)).reshape(-1)[0].item()
        return Tensor(b, b.raster(type_, shape, [inside], number))
    around = spread(filling, shape)
    return Tensor(b, b.raster(type_, shape, [Move(around.value, shape, strides, 0, strides), inside]))


def copyMakeBorder(
    src: Any, top: int, bottom: int, left: int, right: int, borderType: int, value: Any = 0
) -> Tensor:
    """Return src with so many more pixels around it, made as `borderType` (BORDER_CONSTANT, …) says.

    OpenCV: exact.
    """
    call = "copyMakeBorder"
    tensor = image(call, "src", src)
    sides = {"top": top, "bottom": bottom, "left": left, "right": right}
    edges = [whole(call, name, side, 0, _MOST_BORDER) for name, side in sides.items()]
    height, width = height_width(tensor)
    if (height + edges[0] + edges[1]) * (width + edges[2] + edges[3]) * channels_of(tensor) > MOST_ELEMENTS:
        raise Invalid(
            f"{call}: top, bottom, left and right are {edges}: "
            f"the result would have more than {MOST_ELEMENTS} elements"
        )
    kind = border_type(call, "borderType", borderType)
    filling = colour(call, "value", value, channels_of(tensor))
    return restored(padded(planes(tensor), (edges[0], edges[1], edges[2], edges[3]), kind, filling), tensor)


def borderInterpolate(p: int, len: int, borderType: int) -> int:
    """Return which of `len` pixels stands at position p, which may be outside; -1 for BORDER_CONSTANT.

    OpenCV: exact.
    """
    call = "borderInterpolate"
    place = whole(call, "p", p, -(1 << 31), 1 << 31)
    size = whole(call, "len", len, 1, 1 << 31)
    return int(places(place, place + 1, size, border_type(call, "borderType", borderType))[0])

"""Images at half and at twice the size, smoothed by a binomial window of five (Burt and Adelson, 1983)."""

from __future__ import annotations

from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image.borders import border_type, places
from libs.compute.image.pixels import (
    MOST_ELEMENTS,
    MOST_SIDE,
    REAL,
    channels_of,
    describe,
    floor,
    height_width,
    image,
    pair,
    planes,
    restored,
    saturate,
    whole,
)
from libs.compute.image.resizing import mixed
from libs.compute.tensor import Tensor

__all__ = ["buildPyramid", "pyrDown", "pyrUp"]

_TYPES = ("uint8", "uint16", "int16", "float32", "float64")
_WEIGHTS = np.array([1, 4, 6, 4, 1])
_KINDS = (c.BORDER_REPLICATE, c.BORDER_REFLECT, c.BORDER_WRAP, c.BORDER_REFLECT_101)


def pyrDown(src: Any, dstsize: tuple[int, int] | None = None, borderType: int = c.BORDER_DEFAULT) -> Tensor:
    """Return every other pixel of src smoothed, in an image of (width + 1) // 2 by (height + 1) // 2.

    OpenCV: exact for integers, 1e-6 for floats.
    """
    return _halved("pyrDown", src, dstsize, borderType)


def _halved(call: str, src: Any, dstsize: Any, borderType: Any) -> Tensor:
    tensor = image(call, "src", src, _TYPES)
    height, width = height_width(tensor)
    new_width, new_height = (width + 1) // 2, (height + 1) // 2
    wanted = (0, 0) if dstsize is None else pair(call, "dstsize", dstsize, 0, MOST_SIDE)
    if 0 not in wanted:
        new_width, new_height = wanted
        if abs(new_width * 2 - width) > 2 or abs(new_height * 2 - height) > 2:
            raise Invalid(
                f"{call}: dstsize is {dstsize!r}; it is half of {width} by {height}, give or take 1"
            )
    kind = border_type(call, "borderType", borderType, _KINDS)
    x = _working(planes(tensor))
    for axis, size, count in ((1, width, new_width), (0, height, new_height)):
        at = np.stack([places(tap - 2, tap - 2 + 2 * count, size, kind)[::2] for tap in range(5)])
        x = mixed(x, at, np.repeat(_WEIGHTS.reshape(-1, 1), count, 1), axis)
    return restored(_scaled(x, 8, tensor.dtype), tensor)


def pyrUp(src: Any, dstsize: tuple[int, int] | None = None, borderType: int = c.BORDER_DEFAULT) -> Tensor:
    """Return src with pixels put between its own, in an image of twice the size.

    OpenCV: exact for integers, 1e-6 for floats.
    """
    call = "pyrUp"
    tensor = image(call, "src", src, _TYPES)
    height, width = height_width(tensor)
    if 4 * height * width * channels_of(tensor) > MOST_ELEMENTS:
        raise Invalid(
            f"{call}: src is {describe(tensor)}: the result would have more than {MOST_ELEMENTS} elements"
        )
    wanted = (0, 0) if dstsize is None else pair(call, "dstsize", dstsize, 0, 2 * MOST_SIDE)
    if wanted not in ((0, 0), (2 * width, 2 * height)):
        raise Invalid(f"{call}: dstsize is {dstsize!r}; it is {(2 * width, 2 * height)}, or left out")
    border_type(call, "borderType", borderType, (c.BORDER_REFLECT_101,))
    x = _working(planes(tensor))
    for axis, size in ((1, width), (0, height)):
        at = np.arange(2 * size) // 2
        # Before the first comes the second; after the last, the last again.
        before, after = np.abs(at - 1) if size > 1 else at, np.minimum(at + 1, size - 1)
        even = np.arange(2 * size) % 2 == 0
        weights = np.stack([np.where(even, 1, 0), np.where(even, 6, 4), np.where(even, 1, 4)])
        x = mixed(x, np.stack([before, at, after]), weights, axis)
    return restored(_scaled(x, 6, tensor.dtype), tensor)


def buildPyramid(src: Any, maxlevel: int, borderType: int = c.BORDER_DEFAULT) -> list[Tensor]:
    """Return src, and it halved maxlevel times.

    OpenCV: exact for integers, 1e-6 for floats.
    """
    call = "buildPyramid"
    levels = [image(call, "src", src, _TYPES)]
    border_type(call, "borderType", borderType, _KINDS)
    for _ in range(whole(call, "maxlevel", maxlevel, 0, 32)):
        levels.append(_halved(call, levels[-1], None, borderType))
    return levels


def _working(x: Tensor) -> Tensor:
    return x if x.dtype in REAL else x.astype("int32")


def _scaled(x: Tensor, bits: int, dtype: str) -> Tensor:
    if dtype in REAL:
        return x * 2.0**-bits
    return saturate(floor(x.astype("float64") * 2.0**-bits + 0.5), dtype)

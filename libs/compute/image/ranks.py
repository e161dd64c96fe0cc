"""Filters that weigh pixels by what they are: the median, and smoothing that stops at edges."""

from __future__ import annotations

import math
from typing import Any

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image.borders import border_type, padded
from libs.compute.image.filters import WITHOUT_WRAP, along, odd
from libs.compute.image.pixels import (
    MOST_TAPS,
    absolute,
    apply,
    height_width,
    image,
    planes,
    real,
    reduced,
    restored,
    saturate,
    whole,
)
from libs.compute.image.smoothing import sliding
from libs.compute.tensor import Tensor

__all__ = ["bilateralFilter", "medianBlur"]


def medianBlur(src: Any, ksize: int) -> Tensor:
    """Return the median of each window of ksize²; 3 or 5 but for uint8. The pixels at the edges go on beyond.

    OpenCV: exact.
    """
    call = "medianBlur"
    tensor = image(call, "src", src, ("uint8", "uint16", "int16", "float32"))
    size = odd(call, "ksize", whole(call, "ksize", ksize, 1, 255 if tensor.dtype == "uint8" else 5))
    if size == 1:
        return tensor
    reach = size // 2
    x = padded(planes(tensor), (reach,) * 4, c.BORDER_REPLICATE)
    found = (
        _selected(x, size, height_width(tensor)) if size <= _FEW else _counted(x, size, height_width(tensor))
    )
    return restored(found, tensor)


_FEW = 7
"""A side up to which windows are sorted rather than counted."""


def _selected(x: Tensor, size: int, sizes: tuple[int, int]) -> Tensor:
    """Return the middle of the pixels of each window.

    Of more than half of them, the least and the largest can't be the median: they go, another comes in.
    """
    height, width = sizes
    waiting = [
        along(along(x, 0, row, height), 1, column, width) for row in range(size) for column in range(size)
    ]
    kept = [waiting.pop() for _ in range(size * size // 2 + 2)]
    while len(kept) > 1:
        for place in range(1, len(kept)):
            kept[0], kept[place] = _ordered(kept[0], kept[place])
        for place in range(1, len(kept) - 1):
            kept[place], kept[-1] = _ordered(kept[place], kept[-1])
        kept = kept[1:-1]
        if waiting:
            kept.append(waiting.pop())
    return kept[0]


def _ordered(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return apply("min", x, y), apply("max", x, y)


def _counted(x: Tensor, size: int, sizes: tuple[int, int]) -> Tensor:
    """Return how many levels of uint8 at most half of each window lies at or below: its median."""
    height, width = sizes
    half = size * size // 2
    total = None
    for level in range(255):
        below = (x <= level).astype("int32")
        count = sliding(sliding(below, 1, size, width), 0, size, height)
        passed = (count <= half).astype("uint8")
        total = passed if total is None else total + passed
    assert total is not None
    return total


def bilateralFilter(
    src: Any, d: int, sigmaColor: float, sigmaSpace: float, borderType: int = c.BORDER_DEFAULT
) -> Tensor:
    """Return the mean of each round window of diameter d, weighed by how near pixels are in place and colour.

    d of 0 or less is made of sigmaSpace. uint8 and float32 of one or three channels.

    OpenCV: within 1 for uint8, 1e-3 for float32 (it takes weights from a table).
    """
    call = "bilateralFilter"
    tensor = image(call, "src", src, ("uint8", "float32"), (1, 3))
    by_colour, by_space = real(call, "sigmaColor", sigmaColor), real(call, "sigmaSpace", sigmaSpace)
    by_colour, by_space = (sigma if sigma > 0 else 1.0 for sigma in (by_colour, by_space))
    diameter = whole(call, "d", d, -(1 << 31), 1 << 10)
    radius = max(round(by_space * 1.5) if diameter <= 0 else diameter // 2, 1)
    if (2 * radius + 1) ** 2 > MOST_TAPS:
        raise Invalid(f"{call}: windows would be {2 * radius + 1} wide; lessen d or sigmaSpace")
    kind = border_type(call, "borderType", borderType, WITHOUT_WRAP)
    height, width = height_width(tensor)
    x = planes(tensor).astype("float32")
    wide = padded(x, (radius,) * 4, kind)
    weights = totals = None
    for row in range(-radius, radius + 1):
        for column in range(-radius, radius + 1):
            away = math.hypot(row, column)
            if away > radius:
                continue
            pixel = along(along(wide, 0, radius + row, height), 1, radius + column, width)
            apart = reduced("reduce_sum", absolute(pixel - x), (2,), keep=True)
            near = -0.5 * (away / by_space) ** 2
            weight = apply("exp", apart * apart * (-0.5 / by_colour**2) + near)
            term = pixel * weight
            weights = weight if weights is None else weights + weight
            totals = term if totals is None else totals + term
    assert weights is not None
    assert totals is not None
    return restored(saturate(totals / weights, tensor.dtype), tensor)

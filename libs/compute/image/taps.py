"""Which pixels of a line weigh how much in each pixel of a longer or shorter one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.compute.image import constants as c

Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Taps:
    """For each of several taps: which pixel it reads for each pixel of the result, and by how much.

    Attributes:
        places: int64 [taps, results].
        weights: float32 [taps, results]; they add up to 1.
    """

    places: Numbers
    weights: Numbers

    def fixed(self, bits: int) -> Numbers:
        """Return the weights as multiples of 2^-bits."""
        return np.rint(self.weights * np.float32(1 << bits)).astype(np.int64)


def nearest(size: int, count: int, scale: float) -> Numbers:
    """Return which pixel each of `count` takes; `scale` is how many pixels of the source one stands for."""
    return np.asarray(np.minimum(np.floor(np.arange(count) * scale).astype(np.int64), size - 1))


def nearest_exact(size: int, count: int) -> Numbers:
    """Return which pixel lies nearest to the middle of each of `count`."""
    return np.asarray((2 * np.arange(count, dtype=np.int64) + 1) * size // (2 * count))


def linear(size: int, count: int, scale: float, *, area: bool, rows: bool) -> Taps:
    """Return two taps; `area`: cells are met where they begin, as INTER_AREA enlarges.

    Beyond the first and last pixel, columns weigh one pixel whole, rows the same one twice: in fixed point
    these differ.
    """
    at = np.arange(count)
    if area:
        first = np.floor(at * scale).astype(np.int64)
        share = ((at + 1) - (first + 1) / scale).astype(np.float32)
        share = np.where(share <= 0, np.float32(0), share - np.floor(share)).astype(np.float32)
    else:
        middle = ((at + 0.5) * scale - 0.5).astype(np.float32)
        first = np.floor(middle).astype(np.int64)
        share = (middle - first).astype(np.float32)
    if not rows:
        share = np.where((first < 0) | (first >= size - 1), np.float32(0), share)
    places = np.clip(np.stack([first, first + 1]), 0, size - 1)
    return Taps(places, np.stack([np.float32(1) - share, share]))


def spline(size: int, count: int, scale: float, interpolation: int) -> Taps:
    """Return the four taps of INTER_CUBIC, or the eight of INTER_LANCZOS4."""
    middle = ((np.arange(count) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(middle).astype(np.int64)
    weights = spline_weights((middle - first).astype(np.float32), interpolation)
    start = 1 - len(weights) // 2
    places = first + np.arange(start, start + len(weights)).reshape(-1, 1)
    return Taps(np.clip(places, 0, size - 1), weights)


def spline_weights(share: Numbers, interpolation: int) -> Numbers:
    """Return [taps, …] weights of the pixels around places that lie at a share from 0 to 1 between two."""
    if interpolation == c.INTER_CUBIC:
        return cubic_weights(share)
    at = share.astype(np.float64)
    away = at + 3 - np.arange(8).reshape(8, *[1] * at.ndim)
    with np.errstate(all="ignore"):
        signs = np.where(np.arange(8) % 2, -1.0, 1.0).reshape(8, *[1] * at.ndim)
        weights = signs * np.sin(away * math.pi / 4) / away**2
        weights /= weights.sum(axis=0)
    alone = np.arange(8).reshape(8, *[1] * at.ndim) == 3
    on_pixel = at < np.finfo(np.float32).eps
    return np.asarray(np.where(on_pixel, alone, weights), np.float32)


_A = np.float32(-0.75)


def cubic_weights(share: Numbers) -> Numbers:
    """Return the four weights of a cubic convolution with a = -0.75 (Keys, 1981), in float32."""
    one, beside = np.float32(1), share + np.float32(1)
    rest = one - share
    first = ((_A * beside - 5 * _A) * beside + 8 * _A) * beside - 4 * _A
    second = ((_A + 2) * share - (_A + 3)) * share * share + one
    third = ((_A + 2) * rest - (_A + 3)) * rest * rest + one
    return np.asarray(np.stack([first, second, third, one - first - second - third]), np.float32)


def area(size: int, count: int, scale: float) -> Taps:
    """Return how much of each pixel lies in each of `count` cells of `scale` ≥ 1 pixels."""
    cells: list[list[tuple[int, float]]] = []
    for cell in range(count):
        start = cell * scale
        width = min(scale, size - start)
        stop = start + width
        first = math.ceil(start)
        last = min(math.floor(stop), size - 1)
        first = min(first, last)
        cells.append([])
        if first - start > 1e-3:
            cells[-1].append((first - 1, (first - start) / width))
        cells[-1].extend((place, 1.0 / width) for place in range(first, last))
        if stop - last > 1e-3:
            cells[-1].append((last, min(min(stop - last, 1.0), width) / width))
    most = max(len(cell) for cell in cells)
    places, weights = np.zeros((most, count), np.int64), np.zeros((most, count), np.float32)
    for number, members in enumerate(cells):
        for tap, (place, weight) in enumerate(members):
            places[tap, number], weights[tap, number] = place, weight
    return Taps(places, weights)

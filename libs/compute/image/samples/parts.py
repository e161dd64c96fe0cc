"""What calls of functions are made of."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from libs.compute.image import constants as c
from libs.compute.testing import Array

TYPES = ("uint8", "uint16", "int16", "float32", "float64")
BORDERS = (c.BORDER_CONSTANT, c.BORDER_REPLICATE, c.BORDER_REFLECT, c.BORDER_REFLECT_101)


@dataclass(frozen=True, slots=True)
class Case:
    """A call of a function.

    Attributes:
        within: how far results may be from OpenCV's: levels of integers; of floats, relative to the largest.
        share: of elements that may differ at all.
    """

    name: str
    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    within: float = 0.0
    share: float = 1.0

    def __str__(self) -> str:
        return self.name


class Maker:
    """Makes random pixels: always the same for a name."""

    def __init__(self, name: str) -> None:
        self.random = np.random.default_rng(zlib.crc32(name.encode()))

    def noise(self, dtype: str, channels: int = 0, height: int = 21, width: int = 26) -> Array:
        """Return random pixels of a type's whole range, about 100 for floats; no axis for 0 channels."""
        shape = (height, width, channels) if channels else (height, width)
        if dtype.startswith("float"):
            return np.asarray(self.random.normal(size=shape) * 100, dtype)
        limits = np.iinfo(dtype)
        return self.random.integers(limits.min, int(limits.max) + 1, shape).astype(dtype)

    def photo(self, channels: int = 0, height: int = 28, width: int = 33) -> Array:
        """Return uint8 pixels with slopes, edges and a little noise."""
        y, x = np.mgrid[:height, :width]
        round_ = 50 * ((x - 15) ** 2 + (y - 12) ** 2 < 64)
        light = 110 + 60 * np.sin(x / 7) * np.cos(y / 9) + round_ + self.random.normal(size=x.shape) * 5
        if channels:
            light = np.stack([np.roll(light, 3 * number, number % 2) for number in range(channels)], -1)
        return np.asarray(np.clip(light, 0, 255), np.uint8)

    def images(self, types: tuple[str, ...] = TYPES, channels: tuple[int, ...] = (0, 3)) -> Iterator[Array]:
        """Yield random pixels of each type, with each number of channels."""
        for dtype in types:
            for count in channels:
                yield self.noise(dtype, count)


MASK = (Maker("mask").noise("uint8") > 100).astype(np.uint8)
TURN = [[0.953, 0.317, 2.1], [-0.251, 1.13, 3.2]]
VIEW = [[1.113, 0.117, 2.1], [0.057, 0.919, 1.2], [0.0021, 0.0033, 1.0]]
BOXES = np.array(
    [[2, 2, 10, 10], [3, 3, 10, 10], [20, 5, 6, 8], [21, 6, 5, 8], [2, 3, 10, 9], [40, 40, 3, 3]], np.float32
)
SCORES = np.array([0.9, 0.8, 0.75, 0.95, 0.2, 0.5], np.float32)
OUTLINE = np.array([[4, 3], [20, 5], [23, 15], [11, 19], [2, 12]], np.int32)


def near(x: Array, whole: float = 0.0, real: float = 2e-6) -> float:
    """Return one tolerance for integers, and another for floats."""
    return real if x.dtype.kind == "f" else whole

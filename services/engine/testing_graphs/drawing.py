"""Where random graphs get their choices from: hypothesis in tests, a seed in long runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")


class Source(Protocol):
    """Gives whole numbers; smaller ones mean simpler graphs."""

    def integer(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`, both included."""
        ...


class Seeded:
    """Numbers by a seed."""

    def __init__(self, seed: int) -> None:
        self._numbers = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`, both included."""
        return int(self._numbers.integers(low, high + 1))


class Draw:
    """Choices of all kinds, made of a source's numbers."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def integer(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`, both included."""
        return self._source.integer(low, high)

    def integers(self, count: int, low: int, high: int) -> list[int]:
        """Return so many numbers."""
        return [self.integer(low, high) for _ in range(count)]

    def chance(self, one_in: int) -> bool:
        """Return True once in so many times."""
        return self._source.integer(0, one_in - 1) == one_in - 1

    def boolean(self) -> bool:
        """Return True or False."""
        return self.chance(2)

    def choice(self, items: Sequence[T]) -> T:
        """Return one of the items; simpler ones come first."""
        return items[self._source.integer(0, len(items) - 1)]

    def some(self, items: Sequence[T], least: int = 1) -> list[T]:
        """Return some of the items, each once, in any order."""
        left, taken = list(items), list[T]()
        for _ in range(self.integer(least, len(left))):
            taken.append(left.pop(self.integer(0, len(left) - 1)))
        return taken

    def permutation(self, count: int) -> list[int]:
        """Return the numbers below `count` in any order."""
        return self.some(range(count), count)

    def shape(self, least: int = 0, most: int = 4, size: int = 4) -> tuple[int, ...]:
        """Return sizes of so many axes, each from 1 to `size`."""
        return tuple(self.integers(self.integer(least, most), 1, size))

    def array(
        self, shape: Sequence[int], dtype: npt.DTypeLike, low: int = -4, high: int = 4
    ) -> npt.NDArray[Any]:
        """Return numbers from `low` to `high`: floats are multiples of 1/4, which sums keep exact."""
        numbers, kind = np.random.default_rng(self.integer(0, 1 << 16)), np.dtype(dtype)
        if kind == np.object_:
            words = np.array(["", "a", "b", "Ab", "ab", "a b", "ü"], np.object_)
            return np.asarray(words[numbers.integers(0, len(words), tuple(shape))], np.object_)
        if kind == np.bool_:
            return np.asarray(numbers.integers(0, 2, tuple(shape)), np.bool_)
        if kind.kind in "iu":
            low = 0 if kind.kind == "u" and low < 0 else low
            return np.asarray(numbers.integers(low, high + 1, tuple(shape))).astype(kind)
        return np.asarray(numbers.integers(low * 4, high * 4 + 1, tuple(shape)) / 4).astype(kind)

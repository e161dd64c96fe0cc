"""How much memory lives at each step."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from services.engine.domain.memory import ALIGNMENT

Life = tuple[int, int, int]
"""The step that writes a value, -1 for what is there before; the last that reads it; its bytes."""


def living_bytes(lives: Iterable[Life], steps: int) -> list[int]:
    """Return the bytes that live at each of so many steps; what outlives them all has any later number."""
    changes = [0] * (steps + 1)
    for birth, death, size in lives:
        changes[min(max(birth, 0), steps)] += size
        changes[min(death + 1, steps)] -= size
    return list(accumulate(changes[:steps]))


def unshared_bytes(lives: Iterable[Life]) -> int:
    """Return the memory that values take if each has a place of its own."""
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for _, _, size in lives)

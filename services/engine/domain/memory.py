"""Places in memory for values of symbolic size, shared by those that never live at the same time.

Sizes are grouped by what they depend on: each is a whole number c times a common unit such as 1, "batch" or
"batch*length". Each group is a buffer. Within one, a value takes c rounded up to 64 bytes, and places are
packed as plain numbers, largest first, each into the smallest gap among those it lives with (greedy by size:
Pisarchyk and Lee, 2020). An offset is a number times the unit, so that what doesn't overlap as numbers
doesn't at any size, and all offsets are multiples of 64. Values of different groups share nothing. A value
that may be written over another takes its place: a chain of such values is packed as one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from services.engine.domain.extents import Extent

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Span:
    """A value of `size` bytes that is written at instruction `birth` and last read at `death`.

    `over`: the value whose place it takes, of the same size and last read at its birth; it comes before.
    """

    value: int
    birth: int
    death: int
    size: Extent
    over: int | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """Sizes of buffers in bytes, and (buffer, offset in bytes) by value."""

    buffers: tuple[Extent, ...]
    places: dict[int, tuple[int, Extent]]


def place(spans: Sequence[Span]) -> Memory:
    """Return places in which no two values that live at the same instruction overlap, at any size.

    But one that may be written over another is in exactly its place, unless that takes more memory.
    """
    first = _first(spans)
    groups: dict[Extent, list[tuple[Span, int]]] = {}
    for span in spans:
        count, unit = _unit(span.size)
        rounded = max(1, -(-count // ALIGNMENT)) * ALIGNMENT
        groups.setdefault(unit, []).append((span, rounded))
    buffers: list[Extent] = []
    places: dict[int, tuple[int, Extent]] = {}
    for unit, members in groups.items():
        offsets, end = _pack(_chained(members, first))
        apart, end_apart = _pack(members)
        # Few long lives may be harder to pack than many short ones.
        if end_apart < end:
            offsets, end = apart, end_apart
        for span, _ in members:
            offset = offsets[span.value if offsets is apart else first[span.value]]
            places[span.value] = len(buffers), unit * offset
        buffers.append(unit * end)
    return Memory(tuple(buffers), places)


def _first(spans: Sequence[Span]) -> dict[int, int]:
    """Return, by value, the first of those that lie over one another."""
    first: dict[int, int] = {}
    for span in spans:
        first[span.value] = span.value if span.over is None else first[span.over]
    return first


def _chained(members: Sequence[tuple[Span, int]], first: Mapping[int, int]) -> list[tuple[Span, int]]:
    """Return one span for all that lie over one another."""
    chains: dict[int, tuple[Span, int]] = {}
    for span, size in members:
        start = first[span.value]
        chain, _ = chains.get(start, (span, size))
        chains[start] = replace(chain, death=span.death), size
    return list(chains.values())


def _unit(size: Extent) -> tuple[int, Extent]:
    """Return (c, unit) with size = c·unit, c the greatest number that divides all coefficients."""
    count = math.gcd(*(coefficient for _, coefficient in size.terms)) or 1
    if not size.terms:
        return 0, Extent.of(1)
    return count, Extent(tuple((monomial, coefficient // count) for monomial, coefficient in size.terms))


def _pack(members: Sequence[tuple[Span, int]]) -> tuple[dict[int, int], int]:
    """Return offsets by value, and where the last ends."""
    offsets: dict[int, int] = {}
    places: list[tuple[int, int]] = []
    births, deaths = (np.empty(len(members), np.int64) for _ in range(2))
    end = 0
    for span, size in sorted(members, key=lambda member: (-member[1], member[0].birth, member[0].value)):
        done = len(places)
        together = (births[:done] <= span.death) & (deaths[:done] >= span.birth)
        offset = _gap(sorted({places[other] for other in np.flatnonzero(together)}), size)
        offsets[span.value] = offset
        births[done], deaths[done] = span.birth, span.death
        places.append((offset, offset + size))
        end = max(end, offset + size)
    return offsets, end


def _gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Return the start of the smallest gap that holds `size` between taken places, in order; or their end."""
    best: tuple[int, int] | None = None
    cursor = 0
    for start, stop in taken:
        gap = start - cursor
        if gap >= size and (best is None or gap < best[0]):
            best = gap, cursor
        cursor = max(cursor, stop)
    return cursor if best is None else best[1]

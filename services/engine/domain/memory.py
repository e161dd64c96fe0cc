"""Places in memory for values of symbolic size, shared by those that never live at the same time.

Sizes are grouped by what they depend on: each is a whole number c times a common unit such as 1, "batch" or
"batch*length". Each group is a buffer. Within one, a value takes c rounded up to 64 bytes, and places are
packed as plain numbers, largest first, each into the smallest gap among those it lives with (greedy by size:
Pisarchyk and Lee, 2020). An offset is a number times the unit, so that what doesn't overlap as numbers
doesn't at any size, and all offsets are multiples of 64. Where c is small, rounding it costs more than that
saves: then values of one size take turns in slots, which are rounded as a whole. Values of different groups
share nothing. A value that may be written over another takes its place: a chain of such values lies as one.
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
    groups: dict[Extent, list[_Member]] = {}
    for span in spans:
        count, unit = _unit(span.size)
        groups.setdefault(unit, []).append(_Member(span, count))
    buffers: list[Extent] = []
    places: dict[int, tuple[int, Extent]] = {}
    for unit, members in groups.items():
        chains = _chained(members, first)
        # Few long lives may be harder to pack than many short ones, and rounding may cost more than it saves.
        ways = [_packed(chains, unit), _packed(members, unit), _in_slots(chains, unit)]
        best = min(ways, key=lambda way: way.count)
        for member in members:
            value = member.span.value
            own = value if best is ways[1] else first[value]
            places[value] = len(buffers), best.offsets[own]
        buffers.append(best.end)
    return Memory(tuple(buffers), places)


@dataclass(frozen=True, slots=True)
class _Member:
    """A value of a group: `count` times the group's unit."""

    span: Span
    count: int


@dataclass(frozen=True, slots=True)
class _Way:
    """How a group may lie: offsets by value, where the last ends, and how many units that is about."""

    offsets: Mapping[int, Extent]
    end: Extent
    count: int


def _first(spans: Sequence[Span]) -> dict[int, int]:
    """Return, by value, the first of those that lie over one another."""
    first: dict[int, int] = {}
    for span in spans:
        first[span.value] = span.value if span.over is None else first[span.over]
    return first


def _chained(members: Sequence[_Member], first: Mapping[int, int]) -> list[_Member]:
    """Return one span for all that lie over one another."""
    chains: dict[int, _Member] = {}
    for member in members:
        start = first[member.span.value]
        chain = chains.get(start, member)
        chains[start] = replace(chain, span=replace(chain.span, death=member.span.death))
    return list(chains.values())


def _unit(size: Extent) -> tuple[int, Extent]:
    """Return (c, unit) with size = c·unit, c the greatest number that divides all coefficients."""
    count = math.gcd(*(coefficient for _, coefficient in size.terms)) or 1
    if not size.terms:
        return 0, Extent.of(1)
    return count, Extent(tuple((monomial, coefficient // count) for monomial, coefficient in size.terms))


def _packed(members: Sequence[_Member], unit: Extent) -> _Way:
    """Return places as plain numbers times the unit: counts are rounded up, any may follow any other."""
    offsets: dict[int, Extent] = {}
    places: list[tuple[int, int]] = []
    births, deaths = (np.empty(len(members), np.int64) for _ in range(2))
    end = 0
    sizes = [(member.span, max(1, -(-member.count // ALIGNMENT)) * ALIGNMENT) for member in members]
    for span, size in sorted(sizes, key=lambda pair: (-pair[1], pair[0].birth, pair[0].value)):
        done = len(places)
        together = (births[:done] <= span.death) & (deaths[:done] >= span.birth)
        offset = _gap(sorted({places[other] for other in np.flatnonzero(together)}), size)
        offsets[span.value] = unit * offset
        births[done], deaths[done] = span.birth, span.death
        places.append((offset, offset + size))
        end = max(end, offset + size)
    return _Way(offsets, unit * end, end)


def _in_slots(members: Sequence[_Member], unit: Extent) -> _Way:
    """Return places in slots of one count each, rounded up to 64 bytes as a whole: for counts below 64."""
    offsets: dict[int, Extent] = {}
    end, total = Extent.of(0), 0
    slots: dict[int, list[tuple[int, Extent]]] = {}
    """By count: since when each is free, and where it is."""
    for member in sorted(members, key=lambda member: (member.span.birth, member.span.value)):
        span, count = member.span, member.count
        known = slots.setdefault(count, [])
        free = next((place for place, (death, _) in enumerate(known) if death < span.birth), None)
        if free is None:
            free = len(known)
            known.append((span.death, end))
            end = end + (unit * count + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT
            total += count if unit.constant is None else -(-count // ALIGNMENT) * ALIGNMENT
        offsets[span.value] = known[free][1]
        known[free] = span.death, known[free][1]
    return _Way(offsets, end, total)


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

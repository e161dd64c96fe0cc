"""Proves what holds of extents at all sizes of dimensions, and gives sizes to try what isn't proved.

`Bounds` answers from each dimension's range: an extent surely lies within `range`, and "not known" is never
told as "yes".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from services.engine.domain.extents import Extent, Term

_MOST_CORNER_ATOMS = 6
_MOST_SAMPLE_DIMENSIONS = 4


@dataclass(frozen=True)
class Bounds:
    """The range of each dimension, inclusive, for proofs; and which sizes to try where nothing is proved."""

    ranges: Mapping[str, tuple[int, int]]
    data: frozenset[str] = frozenset()
    """Dimensions that data decide: they hang together in ways that nobody knows here, so that no sizes of
    theirs can be tried."""
    equal: tuple[tuple[Extent, Extent], ...] = ()
    """Formulas that are equal in every call; sizes at which they aren't, aren't tried."""

    def range(self, extent: Extent | int) -> tuple[int, int]:
        """Return (low, high) that `extent` surely lies within; not always the tightest."""
        extent = Extent.of(extent)
        if extent.constant is not None:
            return extent.constant, extent.constant
        known = self._known.get(extent)
        if known is None:
            known = self._known[extent] = self._tightest(extent)
        return known

    @cached_property
    def _known(self) -> dict[Extent, tuple[int, int]]:
        """Ranges that were worked out before."""
        return {}

    def _tightest(self, extent: Extent) -> tuple[int, int]:
        low, high = self._range(extent)
        without_floors = _floors_as_remainders(extent)
        if without_floors != extent:
            other_low, other_high = self._range(without_floors)
            low, high = max(low, other_low), min(high, other_high)
        return low, high

    def _range(self, extent: Extent) -> tuple[int, int]:
        atoms = {atom for monomial, _ in extent.terms for atom in monomial}
        ranges = {atom: self.ranges[atom] if isinstance(atom, str) else self._term(atom) for atom in atoms}
        linear = all(len(set(monomial)) == len(monomial) for monomial, _ in extent.terms)
        if linear and len(atoms) <= _MOST_CORNER_ATOMS:
            # A polynomial that is linear in each atom takes its extremes at corners.
            totals = []
            for choice in itertools.product(*ranges.values()):
                sizes = dict(zip(ranges, choice, strict=True))
                totals.append(
                    sum(c * math.prod(sizes[atom] for atom in monomial) for monomial, c in extent.terms)
                )
            return min(totals), max(totals)
        # Otherwise over each atom's distance to its lowest value, where products of sizes have no negative
        # terms left: (n - 1)·(n - 1) is at least 0 where n is at least 1.
        shifted = Extent.of(0)
        for monomial, coefficient in extent.terms:
            part = Extent.of(coefficient)
            for atom in monomial:
                part = part * (Extent((((atom,), 1),)) + ranges[atom][0])
            shifted = shifted + part
        low = high = 0
        for monomial, coefficient in shifted.terms:
            largest = coefficient * math.prod(ranges[atom][1] - ranges[atom][0] for atom in monomial)
            low += largest if coefficient < 0 or not monomial else 0
            high += largest if coefficient > 0 or not monomial else 0
        return low, high

    def _term(self, term: Term) -> tuple[int, int]:
        a, b = self.range(term.left)
        c, d = self.range(term.right)
        if term.operator == "minimum":
            return min(a, c), min(b, d)
        if term.operator == "maximum":
            return max(a, c), max(b, d)
        if c <= 0:  # a divisor that may be 0 or negative: nothing is known but the sign's absence
            large = max(abs(a), abs(b), abs(c), abs(d))
            return -large, large
        if term.operator == "modulo":
            return 0, d - 1
        corners = (a // c, a // d, b // c, b // d)
        return min(corners), max(corners)

    def at_least(self, extent: Extent | int, value: Extent | int) -> bool:
        """Tell whether `extent` ≥ `value` for all sizes; False also means "not known"."""
        return self.range(Extent.of(extent) - value)[0] >= 0

    def positive(self, extent: Extent | int) -> bool:
        """Tell whether `extent` ≥ 1 for all sizes; False also means "not known"."""
        return self.at_least(extent, 1)

    def within(self, dimensions: Iterable[str]) -> Bounds:
        """Return what is known of some dimensions alone; those that hang together with data still do."""
        names = frozenset(dimensions)
        return Bounds(
            {name: self.ranges[name] for name in sorted(names)},
            names & self._linked(self.data),
            tuple(pair for pair in self.equal if pair[0].dimensions | pair[1].dimensions <= names),
        )

    def _linked(self, dimensions: Iterable[str]) -> set[str]:
        """Return dimensions and all that equalities tie them to, directly or through others."""
        linked, before = set(dimensions), -1
        while len(linked) != before:
            before = len(linked)
            for left, right in self.equal:
                if not linked.isdisjoint(left.dimensions | right.dimensions):
                    linked |= left.dimensions | right.dimensions
        return linked

    def samples(self, dimensions: Iterable[str]) -> Iterator[dict[str, int]]:
        """Yield sizes to try where nothing is proved: the corners of a few dimensions, and points inside."""
        wanted = self._linked(dimensions)
        if not wanted.isdisjoint(self.data):
            return
        for sizes in self._samples(sorted(wanted)):
            if (settled := self._settled(sizes)) is not None:
                yield settled

    def _settled(self, sizes: dict[str, int]) -> dict[str, int] | None:
        """Return sizes with those that must equal another set to it; None where that can't be had."""
        for left, right in self.equal:
            if not left.dimensions | right.dimensions <= sizes.keys():
                continue
            for one, other in ((left, right), (right, left)):
                name = next(iter(one.dimensions), None)
                if name is not None and one == Extent.dimension(name) and name not in other.dimensions:
                    size = other.evaluate(sizes)
                    low, high = self.ranges[name]
                    if not low <= size <= high:
                        return None
                    sizes = {**sizes, name: size}
                    break
        if any(
            left.evaluate(sizes) != right.evaluate(sizes)
            for left, right in self.equal
            if left.dimensions | right.dimensions <= sizes.keys()
        ):
            return None
        return sizes

    def _samples(self, names: list[str]) -> Iterator[dict[str, int]]:
        low = {name: self.ranges[name][0] for name in names}
        high = {name: self.ranges[name][1] for name in names}
        yield low
        yield high
        for step in (1, 2, 6):
            yield {name: min(high[name], low[name] + step) for name in names}
        for pick in itertools.product((False, True), repeat=min(len(names), _MOST_SAMPLE_DIMENSIONS)):
            yield {**low, **{name: high[name] for name, top in zip(names, pick, strict=False) if top}}

    def refute_at_least(self, extent: Extent | int, value: Extent | int) -> dict[str, int] | None:
        """Return sizes at which `extent` < `value`; None where it is proved or no sample shows any.

        Raises:
            ZeroDivisionError: when a divisor is 0 at a sample.
        """
        difference = Extent.of(extent) - value
        if self.at_least(difference, 0):
            return None
        for sizes in self.samples(difference.dimensions):
            if difference.evaluate(sizes) < 0:
                return sizes
        return None


def _floors_as_remainders(extent: Extent) -> Extent:
    """Return the extent with d * (x // d) written x - x % d where d is a number: its bounds are tighter."""
    if not any(isinstance(atom, Term) for monomial, _ in extent.terms for atom in monomial):
        return extent
    result = Extent.of(0)
    for monomial, coefficient in extent.terms:
        part = Extent(((monomial, coefficient),))
        for position, atom in enumerate(monomial):
            if isinstance(atom, Term) and atom.operator == "floor_divide":
                divisor = atom.right.constant
                if divisor is not None and divisor > 0 and coefficient % divisor == 0:
                    rest = Extent(
                        (((*monomial[:position], *monomial[position + 1 :]), coefficient // divisor),)
                    )
                    part = rest * (atom.left - atom.left % divisor)
                    break
        result = result + part
    return result

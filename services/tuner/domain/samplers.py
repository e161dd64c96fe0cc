"""How points are chosen: pure functions of what was tried, so that a restart goes on where it was.

A sampler keeps nothing. It is asked with every trial so far, in-flight ones included, and never gives a point
that one of them has. Exhaustion is None.
"""

import math
import random
from collections.abc import Sequence
from typing import Protocol

from services.tuner.domain.model import Parameter, Point, SamplerKind, Spec, Trial

Indices = tuple[int, ...]
"""A point by the positions of its values."""

_LISTED = 4096
"""Grids up to this size are listed; in larger ones a thousand trials rarely meet."""


class Sampler(Protocol):
    """Chooses the next point."""

    def next(self, spec: Spec, trials: Sequence[Trial]) -> Point | None:
        """Return a point that no trial has; None when there is none left. Computes: call it off the loop."""
        ...


def size(parameters: Sequence[Parameter]) -> int:
    """Return how many points there are."""
    return math.prod(len(parameter.values) for parameter in parameters)


def point_at(parameters: Sequence[Parameter], indices: Indices) -> Point:
    """Return the point of these positions."""
    return {p.name: p.values[index] for p, index in zip(parameters, indices, strict=True)}


def indices_of(parameters: Sequence[Parameter], point: Point) -> Indices:
    """Return a point's positions."""
    return tuple(parameter.values.index(point[parameter.name]) for parameter in parameters)


def tried(spec: Spec, trials: Sequence[Trial]) -> set[Indices]:
    """Return the positions of every point that a trial has."""
    return {indices_of(spec.parameters, trial.point) for trial in trials}


class GridSampler:
    """Every point, in order: the last parameter varies fastest."""

    def next(self, spec: Spec, trials: Sequence[Trial]) -> Point | None:
        """See `Sampler`."""
        seen = tried(spec, trials)
        for number in range(size(spec.parameters)):
            indices = _digits(spec.parameters, number)
            if indices not in seen:
                return point_at(spec.parameters, indices)
        return None


class RandomSampler:
    """Points by chance, each left one as likely as any other, none twice."""

    def next(self, spec: Spec, trials: Sequence[Trial]) -> Point | None:
        """See `Sampler`."""
        seen = tried(spec, trials)
        count = size(spec.parameters)
        if len(seen) >= count:
            return None
        chance = random.Random(f"{spec.seed}/{len(trials)}")
        if count <= _LISTED:
            left = [i for n in range(count) if (i := _digits(spec.parameters, n)) not in seen]
            return point_at(spec.parameters, chance.choice(left))
        while True:
            # At most a quarter of the points is taken, so this ends soon.
            indices = _digits(spec.parameters, chance.randrange(count))
            if indices not in seen:
                return point_at(spec.parameters, indices)


class Samplers:
    """A sampler of each kind."""

    def __init__(self, bayesian: Sampler) -> None:
        self._by_kind: dict[SamplerKind, Sampler] = {
            SamplerKind.GRID: GridSampler(),
            SamplerKind.RANDOM: RandomSampler(),
            SamplerKind.BAYESIAN: bayesian,
        }

    def next(self, spec: Spec, trials: Sequence[Trial]) -> Point | None:
        """See `Sampler`."""
        return self._by_kind[spec.sampler].next(spec, trials)


def _digits(parameters: Sequence[Parameter], number: int) -> Indices:
    digits = []
    for parameter in reversed(parameters):
        number, digit = divmod(number, len(parameter.values))
        digits.append(digit)
    return tuple(reversed(digits))

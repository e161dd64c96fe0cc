"""Which GPUs of a node to take: those that talk fastest to each other, and leave the rest worth most.

The slowest link of a set bounds collective operations over it, so that sets are ranked by their
bottleneck (as NVIDIA's allocator and Kueue's topology-aware scheduling do). A single GPU has no link: it
gets the one that the others would miss least, so that fast pairs stay whole.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from services.scheduler.domain.objects import Link

# Finding the best set is NP-hard in general; nodes have at most a few dozen GPUs and few classes of links.
_MOST_STEPS = 20_000
_MOST_SETS = 1_000


@dataclass(frozen=True, slots=True)
class Links:
    """Bandwidth between GPUs of a node, in GB/s; a pair that isn't listed has none."""

    by_pair: Mapping[tuple[int, int], float]
    # Choices that were made: the same question comes for many nodes and jobs.
    chosen: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @staticmethod
    def of(links: Iterable[Link]) -> "Links":
        """Return them by pair."""
        return Links({(link.first, link.second): link.bandwidth_gbps for link in links})

    def between(self, a: int, b: int) -> float:
        """Return the bandwidth between two GPUs."""
        return self.by_pair.get((a, b) if a < b else (b, a), 0.0)

    def bottleneck(self, gpus: Iterable[int]) -> float:
        """Return the least bandwidth between any two of these; infinite for fewer than two."""
        return min((self.between(a, b) for a, b in combinations(gpus, 2)), default=math.inf)

    def worth(self, gpus: Iterable[int]) -> float:
        """Return the sum of the bandwidths among these."""
        return sum(self.between(a, b) for a, b in combinations(gpus, 2))


def choose(free: Sequence[int], links: Links, count: int) -> tuple[int, ...] | None:
    """Return the `count` GPUs out of `free` to take, in ascending order; None when there are too few.

    Of the sets with the best bottleneck it is the one that leaves the rest worth most.
    """
    gpus = tuple(sorted(free))
    if count > len(gpus):
        return None
    if count in (0, len(gpus)):
        return gpus[:count]
    if (gpus, count) not in links.chosen:
        links.chosen[gpus, count] = _choose(gpus, links, count)
    return links.chosen[gpus, count]


def _choose(gpus: tuple[int, ...], links: Links, count: int) -> tuple[int, ...]:
    classes = sorted({links.between(a, b) for a, b in combinations(gpus, 2)}, reverse=True)
    if len(classes) == 1:
        return gpus[:count]
    if count == 1:
        return _best_rest([(gpu,) for gpu in gpus], gpus, links)
    low, high, sets = 0, len(classes) - 1, None
    while low < high:
        middle = (low + high) // 2
        if next(_cliques(gpus, links, classes[middle], count), None) is not None:
            high = middle
        else:
            low = middle + 1
    sets = []
    for found in _cliques(gpus, links, classes[low], count):
        sets.append(found)
        if len(sets) == _MOST_SETS:
            break
    return _best_rest(sets, gpus, links) if sets else gpus[:count]


def share_out(gpus: Sequence[int], links: Links, workers: int) -> list[tuple[int, ...]]:
    """Divide GPUs evenly among workers of one node, each a set that talks fast within itself."""
    each = len(gpus) // workers if workers else 0
    left, shares = list(gpus), []
    for _ in range(workers):
        share = choose(left, links, each) or ()
        shares.append(share)
        left = [gpu for gpu in left if gpu not in share]
    return shares


def _best_rest(sets: Sequence[tuple[int, ...]], gpus: Sequence[int], links: Links) -> tuple[int, ...]:
    def rest(taken: tuple[int, ...]) -> tuple[float, ...]:
        left = [gpu for gpu in gpus if gpu not in taken]
        fastest = max((links.between(a, b) for a, b in combinations(left, 2)), default=0.0)
        return fastest, links.worth(left), links.worth(taken)

    return max(sets, key=rest)


def _cliques(gpus: Sequence[int], links: Links, least: float, count: int) -> Iterator[tuple[int, ...]]:
    """Yield sets whose every pair has at least `least`, until the budget of steps is spent."""
    steps = _MOST_STEPS
    stack: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), tuple(gpus))]
    while stack and steps:
        steps -= 1
        taken, rest = stack.pop()
        if len(taken) == count:
            yield taken
            continue
        if len(taken) + len(rest) < count:
            continue
        for i in range(len(rest) - 1, -1, -1):
            near = tuple(gpu for gpu in rest[i + 1 :] if links.between(rest[i], gpu) >= least)
            if len(taken) + 1 + len(near) >= count:
                stack.append(((*taken, rest[i]), near))

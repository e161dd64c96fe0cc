"""Places the boxes of a graph in layers, so that edges go down and cross little.

After Sugiyama, Tagawa and Toda (1981): layers by the longest path; order within them by the mean of the
neighbours' places, swept up and down; then each layer's boxes as near below their neighbours as they fit,
which is isotonic regression (pool adjacent violators).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

GAP = 18.0
"""Between boxes of a layer."""
_BEND_WIDTH = 6.0
_MOST_BENDS = 8_000
"""Points at which edges are led past boxes; beyond, edges go straight."""
_LONGEST_LED = 24
"""Layers that an edge may cross to be led past boxes."""
_ORDER_SWEEPS = 6
_PLACE_SWEEPS = 8

Point = tuple[float, float]
"""The centre's x, and the layer from 0."""


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge, and the points at which it crosses the layers between."""

    source: int
    target: int
    bends: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """Boxes in their places; x is from 0 to `width`."""

    centres: tuple[float, ...]
    layers: tuple[int, ...]
    edges: tuple[Edge, ...]
    width: float
    depth: int
    """How many layers there are."""


def placed(reads: Sequence[Sequence[int]], widths: Sequence[float]) -> Placed:
    """Return places for boxes, each of which reads earlier ones.

    Args:
        reads: for each box the numbers of those it reads; edges to itself or to later ones are left out.
        widths: of the boxes.
    """
    above = [sorted({read for read in each if 0 <= read < box}) for box, each in enumerate(reads)]
    layers = _layers(above)
    graph = _Graph(above, layers, widths)
    graph.order()
    graph.place()
    return graph.result(len(above))


def _layers(above: Sequence[Sequence[int]]) -> list[int]:
    layers = [0] * len(above)
    for box, reads in enumerate(above):
        layers[box] = max((layers[read] + 1 for read in reads), default=0)
    # What reads nothing stands right above its first reader.
    nearest: dict[int, int] = {}
    for box, reads in enumerate(above):
        for read in reads:
            nearest[read] = min(nearest.get(read, layers[box]), layers[box])
    for box, reads in enumerate(above):
        if not reads and box in nearest:
            layers[box] = nearest[box] - 1
    return layers


class _Graph:
    """Boxes and bends, numbered together; bends come after the boxes."""

    def __init__(
        self, above: Sequence[Sequence[int]], layers: Sequence[int], widths: Sequence[float]
    ) -> None:
        self._layer = list(layers)
        self._width = list(widths)
        self._paths: list[list[int]] = []
        """Of each edge: its source, bends and target."""
        for target, reads in enumerate(above):
            for source in reads:
                self._lead(source, target, len(above))
        self._depth = max(self._layer, default=-1) + 1
        count = len(self._layer)
        self._above: list[list[int]] = [[] for _ in range(count)]
        self._below: list[list[int]] = [[] for _ in range(count)]
        for path in self._paths:
            for upper, lower in itertools.pairwise(path):
                self._above[lower].append(upper)
                self._below[upper].append(lower)
        self._rows: list[list[int]] = [[] for _ in range(self._depth)]
        for item, layer in enumerate(self._layer):
            self._rows[layer].append(item)
        self._x = [0.0] * count

    def _lead(self, source: int, target: int, boxes: int) -> None:
        path = [source]
        first, last = self._layer[source] + 1, self._layer[target]
        bends = last - first
        if bends <= _LONGEST_LED and len(self._layer) - boxes + bends <= _MOST_BENDS:
            for layer in range(first, last):
                path.append(len(self._layer))
                self._layer.append(layer)
                self._width.append(_BEND_WIDTH)
        self._paths.append([*path, target])

    def order(self) -> None:
        """Order each layer by where neighbours are."""
        place = [0.0] * len(self._layer)
        for row in self._rows:
            for at, item in enumerate(row):
                place[item] = float(at)
        for sweep in range(_ORDER_SWEEPS):
            down = sweep % 2 == 0
            for row in self._rows if down else reversed(self._rows):
                neighbours = self._above if down else self._below
                means = {item: _mean([place[n] for n in neighbours[item]], place[item]) for item in row}
                row.sort(key=means.__getitem__)
                for at, item in enumerate(row):
                    place[item] = float(at)

    def place(self) -> None:
        """Give everything its x."""
        for row in self._rows:
            self._set(row, [0.0] * len(row))
        for sweep in range(_PLACE_SWEEPS):
            down = sweep % 2 == 0
            # Towards the end both sides count, so that a graph doesn't drift to where it was last swept from.
            both = sweep >= _PLACE_SWEEPS // 2
            for row in self._rows if down else reversed(self._rows):
                wanted = [
                    _mean([self._x[n] for n in self._near(item, down, both)], self._x[item]) for item in row
                ]
                self._set(row, wanted)
        left = min((x - width / 2 for x, width in zip(self._x, self._width, strict=True)), default=0.0)
        self._x = [x - left for x in self._x]

    def _near(self, item: int, down: bool, both: bool) -> list[int]:
        if both:
            return self._above[item] + self._below[item]
        return self._above[item] if down else self._below[item]

    def _set(self, row: Sequence[int], wanted: Sequence[float]) -> None:
        """Put a layer's items as near to where they are wanted as they fit, in their order."""
        offsets: list[float] = []
        end = 0.0
        for item in row:
            offsets.append(end + self._width[item] / 2)
            end += self._width[item] + GAP
        free = isotonic([want - offset for want, offset in zip(wanted, offsets, strict=True)])
        for item, base, offset in zip(row, free, offsets, strict=True):
            self._x[item] = base + offset

    def result(self, boxes: int) -> Placed:
        """Return the boxes' places, and the edges'."""
        edges = tuple(
            Edge(path[0], path[-1], tuple((self._x[item], float(self._layer[item])) for item in path[1:-1]))
            for path in self._paths
        )
        right = max((x + width / 2 for x, width in zip(self._x, self._width, strict=True)), default=0.0)
        return Placed(tuple(self._x[:boxes]), tuple(self._layer[:boxes]), edges, right, self._depth)


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def isotonic(values: Sequence[float]) -> list[float]:
    """Return the ascending list that is nearest to `values` in the mean square."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] * count > total * pools[-1][1]:
            before, items = pools.pop()
            total, count = total + before, count + items
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]

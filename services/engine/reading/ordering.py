"""An order in which nodes can run: the file's own where that is one."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from services.engine.domain.graph import Node
from services.engine.reading.limits import shown

# Suggestions compare a name with each known one, so that they are for models of a size to be read by people.
_MOST_COMPARED = 5000


def sorted_nodes(
    nodes: Sequence[Node], given: Iterable[str], outputs: Iterable[str], *, alone: bool = True
) -> tuple[Node, ...]:
    """Return the nodes so that each comes after what it reads; `given` are inputs and constants.

    What the graphs in a node read of this one counts as read by the node. Without `alone` the graph is in
    another, which has the names that it doesn't know itself.

    Raises Invalid for a name that is written twice or by nobody, and for a cycle.
    """
    writer: dict[str, int] = dict.fromkeys(given, -1)
    for position, node in enumerate(nodes):
        for name in node.outputs:
            if not name:
                continue
            if name in writer:
                other = "an input or constant" if writer[name] < 0 else f"node {nodes[writer[name]].origin}"
                raise Invalid(
                    f"node {node.origin}: it writes {shown(name)}, which {other} already is or does"
                )
            writer[name] = position
    for name in outputs:
        if alone and name not in writer:
            raise Invalid(f"nothing writes the model's output {shown(name)}{_hint(name, writer)}")
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for position, node in enumerate(nodes):
        for name, reader in node.reads().items():
            if alone and name not in writer:
                hint = _hint(name, writer)
                raise Invalid(f"node {reader}: it reads {shown(name)}, which nothing writes{hint}")
            if writer.get(name, -1) >= 0:
                waiting[position] += 1
                readers[writer[name]].append(position)
    ready = [position for position, count in enumerate(waiting) if count == 0]
    result = []
    while ready:
        position = heapq.heappop(ready)
        result.append(nodes[position])
        for after in readers[position]:
            waiting[after] -= 1
            if waiting[after] == 0:
                heapq.heappush(ready, after)
    if len(result) < len(nodes):
        stuck = next(nodes[position].origin for position, count in enumerate(waiting) if count)
        raise Invalid(f"node {stuck} is on or behind a cycle: it waits for its own output")
    return tuple(result)


def _hint(name: str, known: dict[str, int]) -> str:
    return did_you_mean(name, known) if len(known) <= _MOST_COMPARED else ""

"""What is known of a model before merging: its nodes, what decomposition wrote for each, what that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from libs.runtime.plan import Block, Branch, Host, Loop
from services.engine.domain.explanation import MOST_NODES, Figures, NodeText, Origins
from services.engine.domain.extents import Extent
from services.engine.domain.graph import Graph, Node
from services.engine.domain.living import living_bytes, unshared_bytes
from services.engine.domain.lower import calculations, moved_bytes, spans_of
from services.engine.domain.memory import Memory, place
from services.engine.domain.partition import Partitioned
from services.engine.domain.program import Program, RasterInstruction

MOST_PLACED = 20_000
"""Values of a part whose places are looked for, which takes square time."""


def describe(graph: Graph, program: Program | Partitioned, sizes: Mapping[str, int]) -> Origins:
    """Return what is known of a graph and what decomposition made of it.

    `sizes` has every dimension that the program uses, those included that data decide.
    """
    parts = program.parts if isinstance(program, Partitioned) else (program,)
    blocks = program.blocks if isinstance(program, Partitioned) else ()
    before = _figures(parts, blocks, sizes)
    return Origins(
        operators=dict(sorted(Counter(node.operator for node in _all(graph.nodes)).items())),
        rasters=before.rasters,
        before=before,
        nodes=_nodes(graph, _written(parts, blocks)),
    )


def _all(nodes: tuple[Node, ...]) -> Iterator[Node]:
    for node in nodes:
        yield node
        for body in node.bodies:
            yield from _all(body.nodes)


# ---- nodes ----
def _nodes(graph: Graph, written: Mapping[str, int]) -> tuple[NodeText, ...]:
    texts: list[NodeText] = []

    def add(nodes: tuple[Node, ...], around: Mapping[str, int], inside: int | None) -> None:
        writers = dict(around)
        for node in nodes:
            if len(texts) >= MOST_NODES:
                return
            place = len(texts)
            reads = sorted({writers[name] for name in node.reads() if name in writers})
            # Steps name nodes as they are; what is shown may be shorter.
            texts.append(
                NodeText(node.name, node.operator, tuple(reads), written.get(node.origin, 0), inside)
            )
            for body in node.bodies:
                hidden = {each.name for each in body.inputs} | body.constants.keys()
                add(body.nodes, {name: at for name, at in writers.items() if name not in hidden}, place)
            writers.update(dict.fromkeys(filter(None, node.outputs), place))

    add(graph.nodes, {}, None)
    return tuple(texts)


def _written(parts: tuple[Program, ...], blocks: tuple[Block, ...]) -> Counter[str]:
    """Return how many steps each node's origin stands at."""
    origins = [instruction.origin for part in parts for instruction in part.instructions]
    origins += [
        action.origin
        for block in blocks
        for action in block.actions
        if isinstance(action.kind, Host | Branch | Loop)
    ]
    return Counter(one for origin in origins for one in origin.split(" + "))


# ---- figures ----
def _figures(parts: tuple[Program, ...], blocks: tuple[Block, ...], sizes: Mapping[str, int]) -> Figures:
    evaluator = _Evaluator(sizes)
    operators: Counter[str] = Counter()
    regions = moved = of_rasters = work = peak = planned = unshared = 0
    placed = all(len(part.values) <= MOST_PLACED for part in parts)
    for part in parts:
        for instruction in part.instructions:
            bytes_ = evaluator.at(moved_bytes(part, instruction))
            moved += bytes_
            if isinstance(instruction, RasterInstruction):
                operators["raster"] += 1
                regions += len(instruction.regions)
                of_rasters += bytes_
            else:
                operators[instruction.operator] += 1
                work += evaluator.at(calculations(part, instruction))
        spans = spans_of(part)
        memory = place(spans) if placed else Memory((), {})
        # What another is written over is gone by then.
        taken = {
            span.over
            for span in spans
            if span.over in memory.places and memory.places[span.over] == memory.places[span.value]
        }
        lives = [(span.birth, span.death - (span.value in taken), evaluator.at(span.size)) for span in spans]
        peak = max(peak, *living_bytes(lives, max(1, len(part.instructions))))
        unshared += unshared_bytes(lives)
        planned += sum(map(evaluator.at, memory.buffers))
    for block in blocks:
        for action in block.actions:
            if isinstance(action.kind, Host):
                operators[action.kind.operator] += 1
            elif isinstance(action.kind, Branch | Loop):
                operators[type(action.kind).__name__.lower()] += 1
    return Figures(dict(sorted(operators.items())), regions, moved, of_rasters, work, peak, planned, unshared)


class _Evaluator:
    """Values of formulas at sizes, each computed once."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._known: dict[Extent, int] = {}

    def at(self, extent: Extent) -> int:
        """Return the value; 0 for what no call can have, at sizes that were made up."""
        found = self._known.get(extent)
        if found is None:
            try:
                found = max(extent.evaluate(self._sizes), 0)
            except ZeroDivisionError:
                found = 0
            self._known[extent] = found
        return found

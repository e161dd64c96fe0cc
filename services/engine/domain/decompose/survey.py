"""Tries to take a whole graph apart, and notes every node that can't be, rather than ending at the first."""

from __future__ import annotations

from collections.abc import Mapping

from libs.common.errors import Invalid
from services.engine.domain.decompose.walk import Walk
from services.engine.domain.explanation import Fault
from services.engine.domain.graph import Body, Graph, Node
from services.engine.domain.held_types import Thing


def survey(graph: Graph) -> tuple[Fault, ...]:
    """Return why nodes can't be taken apart, in the order in which they run; () where all can.

    For what such a node would give stands something of the type that the model says it has. Nodes that read
    what has no known type aren't tried.
    """
    walk = _Survey(graph)
    walk.whole()
    return tuple(walk.faults)


class _Missing(Invalid):
    """Something that an earlier fault stands in the way of."""


class _Survey(Walk):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.faults: dict[Fault, None] = {}
        """In order; a loop's body is visited more than once."""
        self._types = graph.types
        self._count = 0
        self._is_missing = False

    def apply(self, node: Node, values: dict[str, Thing]) -> tuple[Thing, ...]:
        if any(name not in values for name in node.inputs if name):
            self._is_missing = True
            raise _Missing("it reads what isn't there")
        return super().apply(node, values)

    def results(self, body: Body, values: Mapping[str, Thing]) -> list[Thing]:
        if any(name not in values for name in body.outputs):
            self._is_missing = True
            raise _Missing("its graph gives what isn't there")
        return super().results(body, values)

    def refused(self, node: Node, error: Invalid) -> tuple[Thing, ...]:
        # On their way out of a body errors become others.
        if self._is_missing:
            self._is_missing = False
        else:
            self.faults[Fault(node.name, node.operator, str(error))] = None
        found: list[Thing] = []
        for name in node.outputs:
            type_ = self._types.get(name)
            if type_ is None:
                # Those before it may be read.
                break
            self._count += 1
            found.append(self.builder.input(f"{self._count}: {name}", type_))
        return tuple(found)

"""The walk over a graph that hands each node to its rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from libs.common.errors import Invalid
from libs.common.suggest import closest
from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.composed import Composed
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.graph import Body, Constant, Graph, Node
from services.engine.domain.held_types import Thing
from services.engine.domain.program import Program
from services.engine.domain.registry import REGISTRY
from services.engine.domain.values import FLOATS, STORED_FLOATS, Held, Value

MOST_VISITS = 1_000_000
"""Of nodes: those in a loop's body are visited again where sizes change from round to round."""
_NEAR = 0.8
"""How like names are of which one is the other misspelt: above what NonZero and OneHot share."""


def decompose(graph: Graph) -> Program | Composed:
    """Return the program of atomic operators and rasters that computes what the graph does.

    Every instruction of it reads whole values. Raises Invalid, with the node's name, for an operator that
    isn't supported, and inputs that it doesn't take.
    """
    walk = Walk(graph)
    values = walk.whole()
    return walk.builder.program([(name, values[name]) for name in graph.outputs])


class Walk:
    """Writes one graph's program."""

    def __init__(self, graph: Graph) -> None:
        self.builder = Builder(graph.bounds)
        self._graph = graph
        self._visits = 0

    def whole(self) -> dict[str, Thing]:
        """Write the whole graph; return everything that it names."""
        graph = self._graph
        values: dict[str, Thing] = {
            name: self.builder.input(name, type_) for name, type_ in graph.inputs.items()
        }
        self.constants(graph.constants, values)
        self.nodes(graph.nodes, values)
        self.builder.origin = ""
        return values

    def constants(self, constants: Mapping[str, Constant], values: dict[str, Thing]) -> None:
        """Add constants to what may be read."""
        for name, array in constants.items():
            values[name] = self.builder.constant(array)

    def nodes(self, nodes: Sequence[Node], values: dict[str, Thing]) -> None:
        """Write nodes; `values` has what they may read by name, and gets what they give."""
        for node in nodes:
            self._visits += 1
            if self._visits > MOST_VISITS:
                raise Invalid(f"loops of the model take more than {MOST_VISITS} visits of nodes to write")
            outer, self.builder.origin = self.builder.origin, node.origin
            try:
                results = self.apply(node, values)
            except Invalid as error:
                results = self.refused(node, error)
            self.builder.origin = outer
            values.update((name, result) for name, result in zip(node.outputs, results, strict=False) if name)

    def refused(self, node: Node, error: Invalid) -> tuple[Thing, ...]:
        """Return what stands for the outputs of a node that can't be written: nothing does, so it raises."""
        raise Invalid(f"node {node.origin}: {error}") from error

    def results(self, body: Body, values: Mapping[str, Thing]) -> list[Thing]:
        """Return what a body gives back, once its nodes are written."""
        return [values[name] for name in body.outputs]

    def apply(self, node: Node, values: dict[str, Thing]) -> tuple[Thing, ...]:
        """Write one node; raises Invalid where it can't be."""
        operator = REGISTRY.get(node.operator)
        if operator is None:
            raise Invalid(unsupported(node.operator))
        graph = self._graph
        if ":" not in node.operator and graph.opset < operator.since:
            raise Invalid(
                f"operator {node.operator} is new in opset {operator.since}; the model has {graph.opset}"
            )
        inputs = tuple(values[name] if name else None for name in node.inputs)
        if operator.family == "elementwise" and any(isinstance(x, Value) and x.rank for x in inputs):
            # Beside what has axes, a scalar and a vector of one are the same.
            inputs = tuple(x.flat or x if isinstance(x, Held) else x for x in inputs)
        call = Call(
            self.builder, node, graph.opset, inputs, graph.types, lambda body: _Inside(self, body, values)
        )
        results = _ruled(operator, call)
        for position, name in enumerate(node.outputs[len(results) :], len(results)):
            if name:
                raise Invalid(f"output {position} ({name!r}) is not supported")
        return results


_MOVING = frozenset({"transform", "static", "control"})


def _ruled(operator: Operator, call: Call) -> tuple[Thing, ...]:
    """Apply a rule; floats that are only stored are computed with as float32."""
    stored = [thing.type for thing in call.inputs if isinstance(thing, Value) and thing.type in STORED_FLOATS]
    if not stored or operator.keeps or operator.kind in _MOVING:
        found = operator.rule(call)
        return (found,) if isinstance(found, Value | Held) else found
    b = call.builder
    inputs = tuple(
        b.cast(thing, DataType.FLOAT32) if isinstance(thing, Value) and thing.type in STORED_FLOATS else thing
        for thing in call.inputs
    )
    found = operator.rule(replace(call, inputs=inputs))
    results = (found,) if isinstance(found, Value | Held) else found
    first = next(thing.type for thing in call.inputs if isinstance(thing, Value) and thing.type in _FLOATING)
    return tuple(
        _narrowed(call, position, thing, first) if isinstance(thing, Value) else thing
        for position, thing in enumerate(results)
    )


_FLOATING = FLOATS | STORED_FLOATS


def _narrowed(call: Call, position: int, result: Value, default: DataType) -> Value:
    """Return a result in the type that the model says it has; else in that of the first floating input."""
    if result.type is not DataType.FLOAT32 or not call.wants(position):
        return result
    declared = call.types.get(call.node.outputs[position])
    type_ = declared.type if declared is not None else default
    return call.builder.cast(result, type_) if type_ in STORED_FLOATS else result


@dataclass(frozen=True, slots=True)
class _Inside:
    """A body at its node: it reads what was there when the node came up."""

    walk: Walk
    body: Body
    around: Mapping[str, Thing]

    def run(self, inputs: Sequence[Thing]) -> list[Thing]:
        names = [parameter.name for parameter in self.body.inputs]
        if len(names) != len(inputs):
            raise Invalid(f"graph {self.body.name!r} takes {len(names)} inputs, not {len(inputs)}")
        values = {**self.around, **dict(zip(names, inputs, strict=True))}
        self.walk.constants(self.body.constants, values)
        self.walk.nodes(self.body.nodes, values)
        return self.walk.results(self.body, values)


def unsupported(operator: str) -> str:
    """Return what is said of an operator that has no rule."""
    return (
        f"operator {operator!r} is not supported{_misspelt(operator)}; "
        "`isthmus model operators` lists those that are"
    )


def _misspelt(name: str) -> str:
    near = closest(name, REGISTRY)
    if near is None or SequenceMatcher(None, name.casefold(), near.casefold()).ratio() < _NEAR:
        return ""
    return f"; did you mean {near!r}?"

"""The walk over a graph that hands each node to its rule."""

from __future__ import annotations

from difflib import SequenceMatcher

from libs.common.errors import Invalid
from libs.common.suggest import closest
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.operator import Call
from services.engine.domain.graph import Graph, Node
from services.engine.domain.program import Program
from services.engine.domain.registry import REGISTRY
from services.engine.domain.values import Value

_DATA_DECIDES = frozenset({"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})
_NEAR = 0.8
"""How like names are of which one is the other misspelt: above what NonZero and OneHot share."""


def decompose(graph: Graph) -> Program:
    """Return the program of atomic operators and rasters that computes what the graph does.

    Every instruction of it reads whole values. Raises Invalid, with the node's name, for an operator that
    isn't supported, inputs that it doesn't take, and what only data would decide.
    """
    builder = Builder(graph.bounds)
    values: dict[str, Value] = {name: builder.input(name, type_) for name, type_ in graph.inputs.items()}
    for name, array in graph.constants.items():
        values[name] = builder.constant(array)
    for node in graph.nodes:
        builder.origin = node.origin
        try:
            results = _apply(builder, graph.opset, node, values)
        except Invalid as error:
            raise Invalid(f"node {node.origin}: {error}") from error
        values.update(zip(node.outputs, results, strict=False))
    builder.origin = ""
    return builder.program([(name, values[name]) for name in graph.outputs])


def _misspelt(name: str) -> str:
    near = closest(name, REGISTRY)
    if near is None or SequenceMatcher(None, name.casefold(), near.casefold()).ratio() < _NEAR:
        return ""
    return f"; did you mean {near!r}?"


def _apply(builder: Builder, opset: int, node: Node, values: dict[str, Value]) -> tuple[Value, ...]:
    operator = REGISTRY.get(node.operator)
    if operator is None and node.operator in _DATA_DECIDES:
        raise Invalid(
            f"operator {node.operator!r} is not supported: its data decide the shape of what it gives, and "
            "a plan's shapes follow from those of the inputs; compute it outside the model"
        )
    if operator is None:
        raise Invalid(
            f"operator {node.operator!r} is not supported{_misspelt(node.operator)}; "
            "`isthmus model operators` lists those that are"
        )
    if opset < operator.since:
        raise Invalid(f"operator {node.operator} is new in opset {operator.since}; the model has {opset}")
    inputs = tuple(values[name] if name else None for name in node.inputs)
    found = operator.rule(Call(builder, node, opset, inputs))
    results = (found,) if isinstance(found, Value) else found
    for position, name in enumerate(node.outputs[len(results) :], len(results)):
        if name:
            raise Invalid(f"output {position} ({name!r}) is not supported")
    return results

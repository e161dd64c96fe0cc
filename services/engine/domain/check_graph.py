"""The specification of a `Graph`: what decomposition may rely on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from libs.common.errors import Invalid
from services.engine.domain.graph import Body, Constant, Graph, Node
from services.engine.domain.program import ValueType
from services.engine.domain.reference import data_type

OLDEST_OPSET = 7
MOST_AXES = 8
DEEPEST = 32


def check_graph(graph: Graph) -> None:
    """Check that each name is written once and before it is read, and that sizes use known dimensions.

    A body may read what is there when its node comes up, and its own names; its inputs and constants may
    have names of values around it, which they then hide, but its nodes must not write such names.

    Raises Invalid with the node or value at fault.
    """
    if graph.opset < OLDEST_OPSET:
        raise Invalid(f"a graph of opset {graph.opset}; the oldest is {OLDEST_OPSET}")
    if not graph.digest.startswith("sha256:"):
        raise Invalid(f"a graph's digest is {graph.digest[:80]!r}, not sha256:<hex>")
    for name, (low, high) in graph.bounds.ranges.items():
        if not 0 <= low < high:
            raise Invalid(f"dimension {name!r} is bounded by {low} and {high}")
    for name, type_ in graph.inputs.items():
        if not isinstance(type_, ValueType):
            continue
        if len(type_.shape) > MOST_AXES:
            raise Invalid(f"input {name!r} has {len(type_.shape)} axes; at most {MOST_AXES} are supported")
        unknown = {word for size in type_.shape for word in size.dimensions} - graph.bounds.ranges.keys()
        if unknown:
            raise Invalid(f"input {name!r} has sizes {', '.join(sorted(unknown))}, which have no bounds")
    _check_constants(graph.constants, graph.inputs)
    known = set(graph.inputs) | graph.constants.keys()
    _check_nodes(graph.nodes, graph.outputs, known, 0)


def _check_constants(constants: Mapping[str, Constant], inputs: Iterable[str]) -> None:
    for name in inputs:
        if name in constants:
            raise Invalid(f"{name!r} is an input and a constant")
    for array in constants.values():
        if array.dtype != np.object_:
            data_type(array.dtype)
        elif not all(isinstance(text, str) for text in array.flat):
            raise Invalid("an array of objects holds something else than strings")


def _check_nodes(nodes: Iterable[Node], outputs: Iterable[str], known: set[str], depth: int) -> list[str]:
    """Check nodes where `known` has the names that they may read; adds what they write, and returns it."""
    added: list[str] = []
    for node in nodes:
        for name in node.inputs:
            if name and name not in known:
                raise Invalid(f"node {node.origin} reads {name!r} before it is written")
        for body in node.bodies:
            _check_body(body, node, known, depth + 1)
        for name in node.outputs:
            if name in known:
                raise Invalid(f"node {node.origin} writes {name!r} once more")
            if name:
                known.add(name)
                added.append(name)
    for name in outputs:
        if name not in known:
            raise Invalid(f"nothing writes output {name!r}")
    return added


def _check_body(body: Body, node: Node, known: set[str], depth: int) -> None:
    """Check a body; `known` is as it was afterwards: copying it for each would take square time."""
    if depth > DEEPEST:
        raise Invalid(f"node {node.origin} holds graphs within graphs, more than {DEEPEST} deep")
    names = [parameter.name for parameter in body.inputs]
    if len(set(names)) != len(names):
        raise Invalid(f"node {node.origin}: two inputs of its graph {body.name[:80]!r} have one name")
    own = (set(names) | body.constants.keys()) - known
    known |= own
    try:
        _check_constants(body.constants, names)
        known.difference_update(_check_nodes(body.nodes, body.outputs, known, depth))
    except Invalid as error:
        raise Invalid(f"node {node.origin}: in its graph {body.name[:80]!r}: {error}") from error
    known -= own

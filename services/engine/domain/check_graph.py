"""The specification of a `Graph`: what decomposition may rely on."""

from __future__ import annotations

from libs.common.errors import Invalid
from services.engine.domain.graph import Graph
from services.engine.domain.reference import data_type

OLDEST_OPSET = 7
MOST_AXES = 8


def check_graph(graph: Graph) -> None:
    """Check that each name is written once and before it is read, and that sizes use known dimensions.

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
        if len(type_.shape) > MOST_AXES:
            raise Invalid(f"input {name!r} has {len(type_.shape)} axes; at most {MOST_AXES} are supported")
        unknown = {word for size in type_.shape for word in size.dimensions} - graph.bounds.ranges.keys()
        if unknown:
            raise Invalid(f"input {name!r} has sizes {', '.join(sorted(unknown))}, which have no bounds")
    for name, array in graph.constants.items():
        if name in graph.inputs:
            raise Invalid(f"{name!r} is an input and a constant")
        data_type(array.dtype)
    written = graph.inputs.keys() | graph.constants.keys()
    for node in graph.nodes:
        for name in node.inputs:
            if name and name not in written:
                raise Invalid(f"node {node.origin} reads {name!r} before it is written")
        for name in node.outputs:
            if name in written:
                raise Invalid(f"node {node.origin} writes {name!r} once more")
            if name:
                written.add(name)
    for name in graph.outputs:
        if name not in written:
            raise Invalid(f"nothing writes output {name!r}")

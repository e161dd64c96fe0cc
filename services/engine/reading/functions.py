"""Functions of a model: their bodies are put in place of their calls, in bodies of other nodes too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, inliner

from libs.common.errors import Invalid
from services.engine.reading.limits import DEEPEST, MOST_NODES, shown

Key = tuple[str, str, str]

_DEEPEST = 64


def inlined(model: ModelProto) -> ModelProto:
    """Return the model without functions of its own.

    Raises Invalid where they call themselves, nest too deep, or come to more nodes than a model may have.
    """
    if not model.functions:
        return model
    functions = {_key(function): function for function in model.functions}
    if len(functions) != len(model.functions):
        raise Invalid("the model defines a function twice")
    sizes: dict[Key, int] = {}
    for key in functions:
        _measure(key, functions, sizes, ())
    total = sum(sizes.get(_key(node), 1) for node in every_node(model.graph.node))
    if total > MOST_NODES:
        raise Invalid(f"with its functions put in place the model has {total} nodes, more than {MOST_NODES}")
    # Only functions of other opsets need converting, which loses what the converter doesn't know.
    versions = {item.domain: item.version for item in model.opset_import}
    foreign = any(
        versions.get(item.domain, item.version) != item.version
        for function in model.functions
        for item in function.opset_import
    )
    try:
        return inliner.inline_local_functions(model, convert_version=foreign)
    except Exception as error:  # whatever the C++ code says of a malformed body
        raise Invalid(f"the model's functions can't be put in place: {str(error)[:200]}") from error


def every_node(nodes: Iterable[NodeProto], depth: int = 0) -> Iterator[NodeProto]:
    """Yield nodes, and those of the graphs in them. Raises Invalid for graphs that nest too deep."""
    if depth > DEEPEST:
        raise Invalid(f"graphs within graphs, more than {DEEPEST} deep")
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in _graphs(attribute):
                yield from every_node(graph.node, depth + 1)


def _graphs(attribute: onnx.AttributeProto) -> list[GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _key(item: FunctionProto | NodeProto) -> Key:
    name = item.name if isinstance(item, FunctionProto) else item.op_type
    return item.domain, name, item.overload


def _measure(
    key: Key, functions: Mapping[Key, FunctionProto], sizes: dict[Key, int], path: tuple[Key, ...]
) -> None:
    """Fill in how many nodes a function comes to, and those that it calls."""
    if key in sizes:
        return
    if key in path:
        raise Invalid(f"function {shown(key[1])} of the model calls itself")
    if len(path) >= _DEEPEST:
        raise Invalid(f"functions of the model call one another more than {_DEEPEST} deep")
    total = 0
    for node in every_node(functions[key].node):
        called = _key(node)
        if called in functions:
            _measure(called, functions, sizes, (*path, key))
        total += sizes.get(called, 1)
    sizes[key] = total

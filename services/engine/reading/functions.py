"""Functions of a model, and operators that ONNX defines by others: bodies are put in place of their calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, inliner

from libs.common.errors import Invalid
from services.engine.domain.registry import REGISTRY
from services.engine.reading.limits import DEEPEST, MOST_NODES, shown
from services.engine.reading.nodes import DEFAULT, OTHERS

Key = tuple[str, str, str]

EXPANDED = tuple(
    sorted(
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if schema.domain == ""
        and schema.name not in REGISTRY
        and (schema.has_function or schema.has_context_dependent_function)
    )
)
"""Operators of the default domain that have no rule, and are read by the body that ONNX gives them."""

_DEEPEST = 64
_MOST_EXPANDED = 1000
"""Nodes that become bodies, of up to a hundred nodes each."""
_MOST_ROUNDS = 8
"""Of operators that are defined by others, which are defined by others …"""


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


def expanded(model: ModelProto, opsets: Mapping[str, int]) -> ModelProto:
    """Return the model without operators that have no rule and that ONNX defines by others.

    `opsets` are the versions of domains; the bodies are those of these versions. Raises Invalid for too many
    of them, and for one whose body depends on what can't be told, with its name.
    """
    for _ in range(_MOST_ROUNDS):
        found = [node for node in every_node(model.graph.node) if _is_by_body(node, opsets)]
        if not found:
            return model
        names = sorted({(node.domain, node.op_type) for node in found})
        what = ", ".join(sorted({node.op_type for node in found}))
        if len(found) > _MOST_EXPANDED:
            raise Invalid(
                f"the model has {len(found)} nodes of {what}, which are read by what ONNX defines them by; "
                f"at most {_MOST_EXPANDED} are"
            )
        count = len(found)
        try:
            model = inliner.inline_selected_functions(
                model, names, exclude=False, inline_schema_functions=True
            )
        except Exception as error:  # whatever the C++ code says of a malformed node
            raise Invalid(
                f"nodes of {what} can't be written as what ONNX defines them by: {str(error)[:200]}"
            ) from error
        left = [node for node in every_node(model.graph.node) if _is_by_body(node, opsets)]
        if len(left) == count and {(node.domain, node.op_type) for node in left} == set(names):
            return model  # their types aren't known, or a version has no body: the rules say what is missing
    return model


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


def _is_by_body(node: NodeProto, opsets: Mapping[str, int]) -> bool:
    domain = "" if node.domain in DEFAULT else node.domain
    if domain not in opsets or domain not in ("", *OTHERS):
        return False
    name = f"{domain}:{node.op_type}" if domain else node.op_type
    return name not in REGISTRY and by_body(domain, node.op_type, opsets[domain])


@cache
def by_body(domain: str, operator: str, version: int) -> bool:
    """Tell whether ONNX defines an operator by others in a version of its domain."""
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


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

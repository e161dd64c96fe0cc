"""Operators that ONNX defines by others, where we have no rule: the definition takes the node's place.

Each such node becomes a call of a function of its own, made of ONNX's definition for this node, and all of
them are then put in place as functions of the model are. ONNX has an inliner for its definitions too, but
that one knows neither attributes that are left out nor inputs that are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import onnx
from onnx import FunctionProto, ModelProto, NodeProto, TypeProto, inliner

from libs.common.errors import Invalid
from services.engine.domain.registry import REGISTRY
from services.engine.reading.functions import every_node
from services.engine.reading.inference import inferred_protos
from services.engine.reading.limits import MOST_NODES, shown
from services.engine.reading.nodes import DEFAULT, OTHERS, check_node


def _is_defined(schema: Any) -> bool:  # onnx's type of it says nothing of definitions
    return bool(schema.has_function or schema.has_context_dependent_function)


EXPANDED = tuple(
    sorted(
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if schema.domain == "" and schema.name not in REGISTRY and _is_defined(schema)
    )
)
"""Operators of the default domain that have no rule, and are read by what ONNX defines them by."""

_FLAG = range(2)
_CHOICES = {
    ("Attention", "is_causal"): _FLAG,
    ("Attention", "qk_matmul_output_mode"): range(4),
    ("RotaryEmbedding", "interleaved"): _FLAG,
}
"""What integers may be, which definitions are made of."""
_CAPS = frozenset((("Attention", "softcap"),))
_DOMAIN = "isthmus.definitions"
_MOST_EXPANDED = 1000
"""Nodes that become definitions, of up to some hundred nodes each."""
_MOST_ROUNDS = 8
"""Of operators that are defined by others, which are defined by others …"""


def expanded(model: ModelProto, opsets: Mapping[str, int]) -> ModelProto:
    """Return the model without operators that have no rule and that ONNX defines by others.

    `opsets` are the versions of domains: definitions are those of these versions.

    Raises Invalid for too many such nodes, and for one whose definition depends on what isn't known of its
    inputs, with its name.
    """
    for _ in range(_MOST_ROUNDS):
        found = [node for node in every_node(model.graph.node) if _is_by_definition(node, opsets)]
        if not found:
            return model
        model = _expanded_once(model, found, opsets)
    left = next((node for node in every_node(model.graph.node) if _is_by_definition(node, opsets)), None)
    if left is not None:
        raise Invalid(f"node {_origin(left)} is defined by operators that are defined by others, too deep")
    return model


def _expanded_once(model: ModelProto, found: list[NodeProto], opsets: Mapping[str, int]) -> ModelProto:
    if len(found) > _MOST_EXPANDED:
        names = ", ".join(sorted({node.op_type for node in found}))
        raise Invalid(
            f"the model has {len(found)} nodes of {names}, which are read by what ONNX defines them by; at "
            f"most {_MOST_EXPANDED} may be"
        )
    types = inferred_protos(model)
    changed = ModelProto()
    changed.CopyFrom(model)
    changed.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    total = 0
    # The copy has the same nodes in the same order.
    for number, node in enumerate(
        [node for node in every_node(changed.graph.node) if _is_by_definition(node, opsets)]
    ):
        function = _definition(node, types, opsets)
        total += len(function.node)
        function.domain, function.name = _DOMAIN, f"{node.op_type}_{number}"
        changed.functions.append(function)
        _add_defaults(node, opsets)
        node.domain, node.op_type = _DOMAIN, function.name
    if total > MOST_NODES:
        raise Invalid(
            f"operators that ONNX defines by others come to {total} nodes; at most {MOST_NODES} are allowed"
        )
    _declare(changed, types, (name for node in found for name in (*node.input, *node.output)))
    foreign = any(
        opsets.get(_plain(item.domain), item.version) != item.version
        for function in changed.functions
        for item in function.opset_import
    )
    try:
        return inliner.inline_local_functions(changed, convert_version=foreign)
    except Exception as error:  # whatever the C++ code says of a malformed node
        names = ", ".join(sorted({node.op_type for node in found}))
        raise Invalid(
            f"nodes of {names} can't be written as what ONNX defines them by: {_text(error)}"
        ) from error


def _declare(model: ModelProto, types: Mapping[str, TypeProto], names: Iterable[str]) -> None:
    """Write down types of values: the inliner knows neither constants' nor those in between."""
    graph = model.graph
    for output in graph.output:
        if output.type.WhichOneof("value") is None and output.name in types:
            output.type.CopyFrom(types[output.name])
    declared = {info.name for info in (*graph.input, *graph.output, *graph.value_info)}
    for name in sorted(set(names) & types.keys() - declared):
        graph.value_info.append(onnx.helper.make_value_info(name, types[name]))


def _definition(node: NodeProto, types: Mapping[str, TypeProto], opsets: Mapping[str, int]) -> FunctionProto:
    """Return what defines a node, in the model's versions where that is the same thing."""
    domain = _plain(node.domain)
    version = opsets[domain]
    schema: Any = onnx.defs.get_schema(node.op_type, version, domain)
    # The definition is made by C++ code, which takes anything.
    check_node(node, schema, f"node {_origin(node)}")
    _check_values(node)
    try:
        if schema.has_context_dependent_function:
            newest = max(
                (v for v in schema.context_dependent_function_opset_versions if v <= version), default=version
            )
            given = [types.get(name, TypeProto()).SerializeToString() for name in node.input]
            content = schema.get_context_dependent_function_with_opset_version(
                newest, node.SerializeToString(), given
            )
        else:
            newest = max((v for v in schema.function_opset_versions if v <= version), default=version)
            content = schema.get_function_with_opset_version(newest)
    except Exception as error:  # whatever the C++ code says of a malformed node
        raise Invalid(f"node {_origin(node)} is malformed: {_text(error)}") from error
    if not content:
        unknown = next((name for name in node.input if name and name not in types), None)
        why = (
            "its attributes" if unknown is None else f"the type of input {shown(unknown)}, which isn't known"
        )
        raise Invalid(
            f"node {_origin(node)} is read by what ONNX defines it by, which depends on {why}; declare the "
            "model's types and shapes (onnx.shape_inference)"
        )
    function = FunctionProto()
    function.ParseFromString(content)
    _settle(function, opsets)
    return function


def _check_values(node: NodeProto) -> None:
    """Refuse what a definition can't say no to."""
    for attribute in node.attribute:
        what = f"node {_origin(node)}: attribute {attribute.name!r} is"
        choices = _CHOICES.get((node.op_type, attribute.name))
        if choices is not None and attribute.i not in choices:
            raise Invalid(f"{what} {attribute.i}; use {choices[0]} to {choices[-1]}")
        if (node.op_type, attribute.name) in _CAPS and not 0 <= attribute.f < math.inf:
            raise Invalid(f"{what} {attribute.f:g}; it must be a number from 0 on")


def _settle(function: FunctionProto, opsets: Mapping[str, int]) -> None:
    """Give a definition the model's versions, if each of its operators means the same in them."""
    own = {_plain(item.domain): item.version for item in function.opset_import}
    for node in every_node(function.node):
        domain = _plain(node.domain)
        if domain in opsets and domain in own:
            then = _since(domain, node.op_type, own[domain])
            if then is None or then != _since(domain, node.op_type, opsets[domain]):
                return
    for item in function.opset_import:
        item.version = opsets.get(_plain(item.domain), item.version)


@cache
def _since(domain: str, operator: str, version: int) -> int | None:
    try:
        return int(onnx.defs.get_schema(operator, version, domain).since_version)
    except onnx.defs.SchemaError:
        return None


def _add_defaults(node: NodeProto, opsets: Mapping[str, int]) -> None:
    """Write out the attributes that a node leaves to ONNX's defaults: a function doesn't know them."""
    domain = _plain(node.domain)
    given = {attribute.name for attribute in node.attribute}
    for name, declared in onnx.defs.get_schema(node.op_type, opsets[domain], domain).attributes.items():
        if name not in given and declared.default_value.name:
            node.attribute.append(declared.default_value)


def _is_by_definition(node: NodeProto, opsets: Mapping[str, int]) -> bool:
    domain = _plain(node.domain)
    if domain not in opsets or domain not in ("", *OTHERS):
        return False
    name = f"{domain}:{node.op_type}" if domain else node.op_type
    return name not in REGISTRY and _has_definition(domain, node.op_type, opsets[domain])


@cache
def _has_definition(domain: str, operator: str, version: int) -> bool:
    try:
        return _is_defined(onnx.defs.get_schema(operator, version, domain))
    except onnx.defs.SchemaError:
        return False


def _plain(domain: str) -> str:
    return "" if domain in DEFAULT else domain


def _origin(node: NodeProto) -> str:
    return f"{shown(node.name)[1:-1] or 'without a name'} ({node.op_type[:80]})"


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:200]

"""Nodes: held against ONNX's own schema of their operator, their attributes made plain."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from services.engine.domain.graph import Attribute, Node
from services.engine.reading.limits import LONGEST_NAME, LONGEST_TEXT, MOST_ITEMS, shown
from services.engine.reading.tensors import read_tensor

DOMAINS = ("", "ai.onnx")


def read_nodes(nodes: Iterable[NodeProto], opset: int) -> list[Node]:
    """Return nodes in the order of the file. Raises Invalid, naming the node, for what ONNX doesn't allow."""
    known: dict[str, onnx.defs.OpSchema] = {}
    return [_node(node, position, opset, known) for position, node in enumerate(nodes)]


def _node(node: NodeProto, position: int, opset: int, known: dict[str, onnx.defs.OpSchema]) -> Node:
    name = node.name or f"#{position}"
    what = f"node {shown(name)[1:-1]} ({node.op_type[:80]})"
    for text in (node.name, node.op_type, *node.input, *node.output):
        if len(text) > LONGEST_NAME:
            raise Invalid(f"{what}: a name of {len(text)} characters; at most {LONGEST_NAME} are allowed")
    if node.domain not in DOMAINS:
        raise Invalid(
            f"{what}: operators of domain {shown(node.domain)} are not supported; export the model with "
            "operators of ONNX's default domain only"
        )
    if node.op_type not in known:
        known[node.op_type] = _schema(node.op_type, opset, what)
    schema = known[node.op_type]
    _check_counts(node, schema, what)
    attributes: dict[str, Attribute] = {}
    for attribute in node.attribute:
        if attribute.name in attributes:
            raise Invalid(f"{what}: attribute {shown(attribute.name)} is given twice")
        attributes[attribute.name] = _attribute(attribute, schema, what)
    for required, declared in schema.attributes.items():
        if declared.required and required not in attributes:
            raise Invalid(f"{what}: attribute {required!r} is missing")
    return Node(name, node.op_type, tuple(node.input), tuple(node.output), attributes)


def _schema(operator: str, opset: int, what: str) -> onnx.defs.OpSchema:
    try:
        schema = onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError:
        names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
        if operator in names:
            since = min(
                schema.since_version
                for schema in onnx.defs.get_all_schemas_with_history()
                if schema.name == operator and schema.domain == ""
            )
            raise Invalid(f"{what}: the operator is new in opset {since}; the model has {opset}") from None
        raise Invalid(f"{what}: ONNX has no operator of this name{did_you_mean(operator, names)}") from None
    if schema.deprecated:
        raise Invalid(f"{what}: the operator is deprecated since opset {schema.since_version}")
    return schema


def _check_counts(node: NodeProto, schema: onnx.defs.OpSchema, what: str) -> None:
    for kind, names, fewest, most in (
        ("inputs", node.input, schema.min_input, schema.max_input),
        ("outputs", node.output, schema.min_output, schema.max_output),
    ):
        if not fewest <= len(names) <= most:
            upper = f" to {most}" if most < 1 << 20 else " or more"
            raise Invalid(f"{what}: it has {len(names)} {kind}; {fewest}{upper} are allowed")


_KINDS = {
    AttributeProto.FLOAT: "FLOAT",
    AttributeProto.INT: "INT",
    AttributeProto.STRING: "STRING",
    AttributeProto.TENSOR: "TENSOR",
    AttributeProto.FLOATS: "FLOATS",
    AttributeProto.INTS: "INTS",
    AttributeProto.STRINGS: "STRINGS",
}


def _attribute(attribute: AttributeProto, schema: onnx.defs.OpSchema, what: str) -> Attribute:
    what = f"{what}: attribute {shown(attribute.name)}"
    declared = schema.attributes.get(attribute.name)
    if declared is None:
        raise Invalid(f"{what} is not one of the operator's{did_you_mean(attribute.name, schema.attributes)}")
    kind = _KINDS.get(attribute.type)
    if kind is None:
        held = AttributeProto.AttributeType.values()
        found = (
            AttributeProto.AttributeType.Name(attribute.type) if attribute.type in held else attribute.type
        )
        raise Invalid(f"{what} is of type {found}, which is not supported; control flow isn't either")
    wanted = str(declared.type).rpartition(".")[2]
    if wanted != kind:
        raise Invalid(f"{what} is of type {kind}; it must be of type {wanted}")
    return _value(attribute, kind, what)


def _value(attribute: AttributeProto, kind: str, what: str) -> Attribute:
    items = max(len(attribute.floats), len(attribute.ints), len(attribute.strings))
    if items > MOST_ITEMS:
        raise Invalid(f"{what} has {items} items; at most {MOST_ITEMS} are allowed")
    if kind == "TENSOR":
        tensor: np.ndarray[tuple[int, ...], np.dtype[np.generic]] = read_tensor(attribute.t, what)
        return tensor
    if kind == "STRING":
        return _text(attribute.s, what)
    if kind == "STRINGS":
        return tuple(_text(text, what) for text in attribute.strings)
    if kind in ("FLOAT", "INT"):
        return float(attribute.f) if kind == "FLOAT" else int(attribute.i)
    return tuple(attribute.floats) if kind == "FLOATS" else tuple(attribute.ints)


def _text(data: bytes, what: str) -> str:
    if len(data) > LONGEST_TEXT:
        raise Invalid(f"{what} is a text of {len(data)} bytes; at most {LONGEST_TEXT} are allowed")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid(f"{what} is not UTF-8") from None

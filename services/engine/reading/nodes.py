"""Nodes: held against ONNX's own schema of their operator; attributes made plain, graphs in them read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import onnx
from onnx import AttributeProto, GraphProto, NodeProto

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from services.engine.domain.graph import Attribute, Body, Node, Parameter
from services.engine.reading import limits
from services.engine.reading.contrib.operator import DOMAIN
from services.engine.reading.contrib.registry import contrib_names
from services.engine.reading.limits import LONGEST_NAME, LONGEST_TEXT, MOST_ITEMS, MOST_NODES, shown
from services.engine.reading.ordering import sorted_nodes
from services.engine.reading.tensors import Array, Tensors, tensor_name
from services.engine.reading.types import declared_type

DEFAULT = ("", "ai.onnx")
"""Names of ONNX's default domain."""
OTHERS = ("ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
"""Further domains that are read."""
LAYOUTS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")
"""Domains of what ONNX Runtime writes at ORT_ENABLE_ALL: layouts of data that a machine's kernels like."""
_OPTION = onnx.defs.OpSchema.FormalParameterOption
_LEFT_OUT = frozenset(("Resize",))
"""Operators whose required inputs exporters leave out: in opset 11, of scales and sizes one is enough."""
_KINDS = {
    AttributeProto.FLOAT: "FLOAT",
    AttributeProto.INT: "INT",
    AttributeProto.STRING: "STRING",
    AttributeProto.TENSOR: "TENSOR",
    AttributeProto.GRAPH: "GRAPH",
    AttributeProto.SPARSE_TENSOR: "SPARSE_TENSOR",
    AttributeProto.TYPE_PROTO: "TYPE_PROTO",
    AttributeProto.FLOATS: "FLOATS",
    AttributeProto.INTS: "INTS",
    AttributeProto.STRINGS: "STRINGS",
}
"""Those that operators of ONNX have."""


def constants(graph: GraphProto, tensors: Tensors) -> dict[str, Array]:
    """Return a graph's constants by name. Raises Invalid for what `Tensors` does, and names given twice."""
    count = len(graph.initializer) + len(graph.sparse_initializer)
    if count > limits.MOST_CONSTANTS:
        raise Invalid(f"the model has {count} constants; at most {limits.MOST_CONSTANTS} are allowed")
    check_names("constant", [tensor.name for tensor in graph.initializer])
    found = {tensor.name: tensors.dense(tensor, tensor_name(tensor.name)) for tensor in graph.initializer}
    check_names("constant", [*found, *(tensor.values.name for tensor in graph.sparse_initializer)])
    for sparse in graph.sparse_initializer:
        found[sparse.values.name] = tensors.sparse(sparse, tensor_name(sparse.values.name))
    return found


def check_names(kind: str, names: Iterable[str], where: str = "model") -> None:
    """Refuse names that are empty, too long, or given twice."""
    seen: set[str] = set()
    for name in names:
        if not name or len(name) > LONGEST_NAME:
            raise Invalid(
                f"the name of the {where}'s {kind} has {len(name)} characters; use 1 to {LONGEST_NAME}"
            )
        if name in seen:
            raise Invalid(f"{kind} {shown(name)} is there twice")
        seen.add(name)


class Nodes:
    """Reads the nodes of one model, those of its bodies included, and bounds how many there are."""

    def __init__(
        self,
        opsets: Mapping[str, int],
        tensors: Tensors,
        refused: Callable[[NodeProto, int, Invalid], None] | None = None,
    ) -> None:
        """`opsets` are the versions of domains by name, that of the default one under "".

        `refused` is told of nodes that can't be read, with their position, and they are left out; without
        it the first one ends it all.
        """
        self._refused = refused
        self._opsets = opsets
        self._tensors = tensors
        self._known: dict[tuple[str, str], onnx.defs.OpSchema] = {}
        self._count = 0

    def read(self, nodes: Iterable[NodeProto], depth: int = 0) -> list[Node]:
        """Return nodes in the file's order. Raises Invalid, naming the node, for what ONNX doesn't allow."""
        found = []
        for position, node in enumerate(nodes):
            try:
                found.append(self._node(node, position, depth))
            except Invalid as error:
                if self._refused is None:
                    raise
                self._refused(node, position, error)
        return found

    def _node(self, node: NodeProto, position: int, depth: int) -> Node:
        self._count += 1
        if self._count > MOST_NODES:
            raise Invalid(f"the model has more than {MOST_NODES} nodes, those of its bodies counted")
        name = node.name or f"#{position}"
        what = f"node {shown(name)[1:-1]} ({node.op_type[:80]})"
        for text in (node.name, node.op_type, *node.input, *node.output):
            if len(text) > LONGEST_NAME:
                raise Invalid(f"{what}: a name of {len(text)} characters; at most {LONGEST_NAME} are allowed")
        domain = "" if node.domain in DEFAULT else node.domain
        key = domain, node.op_type
        if key not in self._known:
            self._known[key] = self._schema(domain, node.op_type, what)
        attributes = self.attributes(node, self._known[key], what, depth)
        operator = f"{domain}:{node.op_type}" if domain else node.op_type
        return Node(name, operator, tuple(node.input), tuple(node.output), attributes)

    def attributes(
        self, node: NodeProto, schema: onnx.defs.OpSchema, what: str, depth: int = 0
    ) -> dict[str, Attribute]:
        """Return a node's attributes; `what` names it.

        Raises Invalid where it breaks its operator's schema.
        """
        check_node(node, schema, what)
        return {
            attribute.name: self._attribute(attribute, f"{what}: attribute {shown(attribute.name)}", depth)
            for attribute in node.attribute
        }

    def _schema(self, domain: str, operator: str, what: str) -> onnx.defs.OpSchema:
        if domain == DOMAIN:
            raise unknown_contrib(operator, what)
        if domain in LAYOUTS:
            raise Invalid(
                f"{what}: operators of domain {shown(domain)} are ONNX Runtime's for one kind of machine; "
                "save the optimised model at ORT_ENABLE_EXTENDED, not ORT_ENABLE_ALL"
            )
        if domain not in ("", *OTHERS):
            raise Invalid(
                f"{what}: operators of domain {shown(domain)} are not supported; export the model with "
                f"operators of ONNX's default domain, {', '.join((*OTHERS, DOMAIN))} only"
            )
        if domain not in self._opsets:
            raise Invalid(f"{what}: the model doesn't import the operators of domain {shown(domain)}")
        return schema_of(domain, operator, self._opsets[domain], what)

    def _attribute(self, attribute: AttributeProto, what: str, depth: int) -> Attribute:
        kind = _KINDS[attribute.type]
        if kind == "GRAPH":
            return self._body(attribute.g, what, depth + 1)
        return self._value(attribute, kind, what)

    def _value(self, attribute: AttributeProto, kind: str, what: str) -> Attribute:
        items = max(len(attribute.floats), len(attribute.ints), len(attribute.strings))
        if items > MOST_ITEMS:
            raise Invalid(f"{what} has {items} items; at most {MOST_ITEMS} are allowed")
        match kind:
            case "TENSOR":
                return self._tensors.dense(attribute.t, what)
            case "SPARSE_TENSOR":
                return self._tensors.sparse(attribute.sparse_tensor, what)
            case "TYPE_PROTO":
                declared = declared_type(attribute.tp, what)
                if declared is None:
                    raise Invalid(f"{what} is a type of nothing")
                return declared
            case "STRING":
                return _text(attribute.s, what)
            case "STRINGS":
                self._tensors.take_strings(items, what)
                return tuple(_text(text, what) for text in attribute.strings)
            case "FLOAT" | "INT":
                return float(attribute.f) if kind == "FLOAT" else int(attribute.i)
        return tuple(attribute.floats) if kind == "FLOATS" else tuple(attribute.ints)

    def _body(self, graph: GraphProto, what: str, depth: int) -> Body:
        if depth > limits.DEEPEST:
            raise Invalid(f"{what}: graphs within graphs, more than {limits.DEEPEST} deep")
        try:
            return self._read_body(graph, depth)
        except Invalid as error:
            raise Invalid(f"{what}: {error}") from error

    def _read_body(self, graph: GraphProto, depth: int) -> Body:
        for kind, ports in (("inputs", graph.input), ("outputs", graph.output)):
            if len(ports) > limits.MOST_PORTS:
                raise Invalid(f"the graph has {len(ports)} {kind}; at most {limits.MOST_PORTS} are allowed")
        check_names("input", [info.name for info in graph.input], "graph")
        parameters = tuple(
            Parameter(info.name, declared_type(info.type, f"input {shown(info.name)}"))
            for info in graph.input
        )
        found = constants(graph, self._tensors)
        both = next((each.name for each in parameters if each.name in found), None)
        if both is not None:
            raise Invalid(f"{shown(both)} is an input of the graph and a constant; bodies have no defaults")
        outputs = [info.name for info in graph.output]
        if any(not name or len(name) > LONGEST_NAME for name in outputs):
            raise Invalid(f"the name of an output of the graph is empty or longer than {LONGEST_NAME}")
        names = [each.name for each in parameters]
        nodes = sorted_nodes(self.read(graph.node, depth), [*names, *found], outputs, alone=False)
        return Body(graph.name[:LONGEST_NAME], parameters, tuple(outputs), found, nodes)


def unknown_contrib(operator: str, what: str) -> Invalid:
    """Return what is said of an operator of ONNX Runtime that isn't read."""
    return Invalid(
        f"{what}: operator {shown(operator)} of domain {DOMAIN!r} is not supported"
        f"{did_you_mean(operator, contrib_names())}; docs/engine-operators.md lists those that are"
    )


def schema_of(domain: str, operator: str, version: int, what: str) -> onnx.defs.OpSchema:
    """Return ONNX's schema of an operator. Raises Invalid where that version of the domain has none."""
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == domain}
        if operator in names:
            since = min(
                schema.since_version
                for schema in onnx.defs.get_all_schemas_with_history()
                if schema.name == operator and schema.domain == domain
            )
            kind = f"version {since} of {domain}" if domain else f"opset {since}"
            raise Invalid(f"{what}: the operator is new in {kind}; the model has {version}") from None
        raise Invalid(f"{what}: ONNX has no operator of this name{did_you_mean(operator, names)}") from None
    if schema.deprecated:
        raise Invalid(f"{what}: the operator is deprecated since opset {schema.since_version}")
    return schema


def check_node(node: NodeProto, schema: onnx.defs.OpSchema, what: str) -> None:
    """Refuse inputs, outputs and attributes other than an operator's schema says."""
    check_counts(node, schema, what)
    seen: set[str] = set()
    for attribute in node.attribute:
        if attribute.name in seen:
            raise Invalid(f"{what}: attribute {shown(attribute.name)} is given twice")
        seen.add(attribute.name)
        _check_attribute(attribute, schema, f"{what}: attribute {shown(attribute.name)}")
    for required, declared in schema.attributes.items():
        if declared.required and required not in seen:
            raise Invalid(f"{what}: attribute {required!r} is missing")


def _check_attribute(attribute: AttributeProto, schema: onnx.defs.OpSchema, what: str) -> None:
    declared = schema.attributes.get(attribute.name)
    if declared is None:
        raise Invalid(f"{what} is not one of the operator's{did_you_mean(attribute.name, schema.attributes)}")
    if attribute.ref_attr_name:
        raise Invalid(f"{what} refers to an attribute of a function, and is in none")
    wanted = str(declared.type).rpartition(".")[2]
    if _KINDS.get(attribute.type) != wanted:
        held = AttributeProto.AttributeType
        found = held.Name(attribute.type) if attribute.type in held.values() else attribute.type
        raise Invalid(f"{what} is of type {found}; it must be of type {wanted}")


def check_counts(node: NodeProto, schema: onnx.defs.OpSchema, what: str) -> None:
    """Refuse a node with too few or too many inputs or outputs, or without one that it must have."""
    for kind, names, fewest, most in (
        ("input", node.input, schema.min_input, schema.max_input),
        ("output", node.output, schema.min_output, schema.max_output),
    ):
        if not fewest <= len(names) <= most:
            count = f"{len(names)} {kind}{'' if len(names) == 1 else 's'}"
            raise Invalid(f"{what}: it has {count}; {_allowed(fewest, most)} allowed")
    for position, name in enumerate(node.input):
        declared = schema.inputs[min(position, len(schema.inputs) - 1)]
        # ONNX's shape inference, or ONNX Runtime, crashes on some that are left out.
        if not name and declared.option != _OPTION.Optional and schema.name not in _LEFT_OUT:
            raise Invalid(f"{what}: input {shown(declared.name)} is left out; it must be given")


def _allowed(fewest: int, most: int) -> str:
    if fewest == most:
        return f"{fewest} {'is' if fewest == 1 else 'are'}"
    return f"{fewest} to {most} are" if most < 1 << 20 else f"{fewest} or more are"


def _text(data: bytes, what: str) -> str:
    if len(data) > LONGEST_TEXT:
        raise Invalid(f"{what} is a text of {len(data)} bytes; at most {LONGEST_TEXT} are allowed")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid(f"{what} is not UTF-8") from None

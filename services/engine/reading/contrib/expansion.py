"""Operators of ONNX Runtime: a definition in ONNX's own operators takes the node's place.

The definition is written for this very node: what it leaves out, and what is known of its inputs, is settled
when it is written, so that nothing of that is left in the graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto
from onnx.defs import OpSchema

from libs.common.errors import Invalid
from services.engine.domain.graph import Attribute
from services.engine.reading.contrib.definition import Definition
from services.engine.reading.contrib.operator import DOMAIN, VERSION, Contrib
from services.engine.reading.contrib.registry import find
from services.engine.reading.contrib.scope import Scope
from services.engine.reading.external import ExternalFiles
from services.engine.reading.functions import every_node
from services.engine.reading.limits import MOST_NODES, shown
from services.engine.reading.nodes import DEFAULT, Nodes, unknown_contrib
from services.engine.reading.tensors import Tensors

Refused = Callable[[NodeProto, int, Invalid], None]
_MOST_DEFINED = 20_000
"""Nodes that become definitions."""


def without_contrib(
    model: ModelProto, opsets: Mapping[str, int], refused: Refused | None = None
) -> ModelProto:
    """Return the model without operators of ONNX Runtime that have a definition here.

    `opsets` are the versions of ONNX's domains. `refused` is told of nodes that can't be read, with their
    position, and they are left out; without it the first one ends it all.

    Raises Invalid, naming the node, for what the operator doesn't allow, for an opset that lacks what its
    definition takes, and for a definition that depends on what isn't known of its inputs.
    """
    opset = opsets.get("", VERSION)
    count = sum(_found(node, opset) is not None for node in every_node(model.graph.node))
    if not count:
        return model
    if count > _MOST_DEFINED:
        raise Invalid(
            f"the model has {count} nodes of ONNX Runtime's operators; at most {_MOST_DEFINED} are allowed"
        )
    changed = ModelProto()
    changed.CopyFrom(model)
    versions = [item.version for item in model.opset_import if item.domain == DOMAIN]
    _Expansion(changed, opsets, versions, refused).graph(changed.graph, None)
    return changed


def _found(node: NodeProto, opset: int) -> Contrib | None:
    return find("" if node.domain in DEFAULT else node.domain, node.op_type, opset)


class _Expansion:
    def __init__(
        self, model: ModelProto, opsets: Mapping[str, int], versions: list[int], refused: Refused | None
    ) -> None:
        self._opsets = opsets
        self._opset = opsets.get("", VERSION)
        self._versions = versions
        self._refused = refused
        self._nodes = Nodes(opsets, Tensors(ExternalFiles(None)))
        self._prefix = _unused(model)
        self._lost: set[str] = set()
        """What nodes that are refused would give, and what is made of it."""
        self._defined = 0
        self._total = 0

    def graph(self, graph: GraphProto, around: Scope | None) -> None:
        """Put definitions in place, in graphs within nodes too."""
        if not any(_found(node, self._opset) for node in every_node(graph.node)):
            return
        scope = Scope(graph, self._opsets, around)
        nodes: list[NodeProto] = []
        for position in _order(graph.node):
            node = graph.node[position]
            for attribute in node.attribute:
                for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                    self.graph(body, scope)
            # What comes later moves on, but keeps its name.
            node.name = node.name or f"#{position}"
            operator = _found(node, self._opset)
            try:
                added = self._read(node, operator, scope)
            except Invalid as error:
                if self._refused is None:
                    raise
                self._refused(node, position, error)
                added = []
            if not added:
                self._lost.update(filter(None, node.output))
            nodes += added
            scope.add(added)
        kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(kept)

    def _read(self, node: NodeProto, operator: Contrib | None, scope: Scope) -> list[NodeProto]:
        """Return what takes a node's place; nothing, where what it reads could not be read."""
        what = f"node {shown(node.name)[1:-1]} ({node.op_type[:80]})"
        lost = not self._lost.isdisjoint(node.input)
        if operator is not None:
            return self._definition(node, operator, scope, what, lost=lost)
        if node.domain == DOMAIN:
            raise unknown_contrib(node.op_type, what)
        if lost:
            self._lost.update(filter(None, node.output))
        return [node]

    def _definition(
        self, node: NodeProto, operator: Contrib, scope: Scope, what: str, *, lost: bool
    ) -> list[NodeProto]:
        if operator.domain == DOMAIN:
            self._check_version(what)
        if "" not in self._opsets:
            raise Invalid(f"{what}: the model imports no version of ONNX's default operators")
        if self._opset < operator.since:
            raise Invalid(
                f"{what}: it is read by operators of opset {operator.since}; the model has opset "
                f"{self._opset}: convert it (onnx.version_converter), or export it again"
            )
        attributes = self._attributes(node, operator, what)
        if lost:
            return []
        self._defined += 1
        definition = Definition(
            node,
            attributes,
            self._opset,
            scope,
            f"{self._prefix}{self._defined}.{node.op_type.lower()}.",
        )
        try:
            results = operator.define(definition)
        except Invalid as error:
            raise Invalid(f"{what}: {error}") from error
        for index, name in enumerate(node.output):
            if not name:
                continue
            result = results[index] if index < len(results) else None
            if result is None:
                raise Invalid(f"{what}: output {index} ({shown(name)}) is not supported")
            definition.add("Identity", [result], [name])
        self._total += len(definition.nodes)
        if self._total > MOST_NODES:
            raise Invalid(
                f"{what}: operators of ONNX Runtime come to more than {MOST_NODES} nodes of ONNX's own"
            )
        return definition.nodes

    def _attributes(self, node: NodeProto, operator: Contrib, what: str) -> dict[str, Attribute]:
        given = self._nodes.attributes(node, operator.schema, what)
        defaults = {
            name: default
            for name, default in operator.attributes.items()
            if not isinstance(default, OpSchema.AttrType)
        }
        return {**defaults, **given}

    def _check_version(self, what: str) -> None:
        # Without an import it is that version, as for ONNX Runtime.
        wrong = next((version for version in self._versions if version != VERSION), None)
        if wrong is not None:
            raise Invalid(f"{what}: the model has version {wrong} of {DOMAIN}; {VERSION} is supported")


def _order(nodes: Sequence[NodeProto]) -> list[int]:
    """Return positions so that each node comes after what it reads: ONNX Runtime writes files in any order.

    What is on a cycle comes last; that it is is said later.
    """
    writer = {name: position for position, node in enumerate(nodes) for name in node.output if name}
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for position, node in enumerate(nodes):
        names = {name for each in every_node([node]) for name in each.input}
        for before in {writer[name] for name in names if name in writer}:
            waiting[position] += 1
            readers[before].append(position)
    ready = [position for position, count in enumerate(waiting) if not count]
    found = []
    while ready:
        position = heapq.heappop(ready)
        found.append(position)
        for after in readers[position]:
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(ready, after)
    return found + [position for position, count in enumerate(waiting) if count]


def _unused(model: ModelProto) -> str:
    """Return how no name of the model starts."""
    prefix = "contrib"
    graphs = [model.graph]
    names: set[str] = set()
    for node in every_node(model.graph.node):
        names.update(node.input, node.output)
        graphs += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    for graph in graphs:
        names.update(info.name for info in (*graph.input, *graph.output))
        names.update(tensor.name for tensor in graph.initializer)
        names.update(sparse.values.name for sparse in graph.sparse_initializer)
    taken = {name for name in names if name.startswith(prefix)}
    while any(name.startswith(f"{prefix}.") for name in taken):
        prefix += "_"
    return f"{prefix}."

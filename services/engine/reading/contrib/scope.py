"""What is known of values' types as nodes are put in place, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto
from onnx.helper import make_opsetid

from libs.common.errors import Invalid
from services.engine.reading.functions import every_node
from services.engine.reading.inference import inferred_values, tensor_type
from services.engine.reading.nodes import DEFAULT, check_counts, schema_of

_LARGEST_KEPT = 1 << 10
"""Bytes of a constant that inference may look into: sizes and axes have far fewer."""


class Scope:
    """Types of the values of one graph by name, those around it included.

    Nodes are kept until somebody asks for what isn't known, and only then handed to ONNX's inference, so
    that each of them is once.
    """

    def __init__(self, graph: GraphProto, opsets: Mapping[str, int], around: Scope | None = None) -> None:
        """Begin with what the graph declares."""
        self._opsets = opsets
        self._around = around
        self._waiting: list[NodeProto] = []
        self._small: dict[str, TensorProto] = {}
        self._types: dict[str, TypeProto] = {
            info.name: info.type
            for info in (*graph.value_info, *graph.output, *graph.input)
            if info.type.WhichOneof("value") is not None
        }
        self._constants = {tensor.name for tensor in graph.initializer}
        for tensor in graph.initializer:
            self._types[tensor.name] = tensor_type(tensor.data_type, tensor.dims)
            if tensor.data_location == TensorProto.DEFAULT and tensor.ByteSize() <= _LARGEST_KEPT:
                self._small[tensor.name] = tensor
        for sparse in graph.sparse_initializer:
            self._types[sparse.values.name] = tensor_type(sparse.values.data_type, sparse.dims)

    def add(self, nodes: Iterable[NodeProto]) -> None:
        """Add nodes whose outputs may be asked for."""
        self._waiting.extend(nodes)

    def type(self, name: str) -> TypeProto | None:
        """Return what is known of a value."""
        found = self._known(name)
        if not _is_whole(found) and self._waiting:
            self._infer()
            found = self._known(name)
        return found

    def is_constant(self, name: str) -> bool:
        """Tell whether a value is a constant of a graph."""
        if name in self._types or self._around is None:
            return name in self._constants
        return self._around.is_constant(name)

    def _known(self, name: str) -> TypeProto | None:
        found = self._types.get(name)
        return found if found is not None or self._around is None else self._around.type(name)

    def _constant(self, name: str) -> TensorProto | None:
        if name in self._types or self._around is None:
            return self._small.get(name)
        return self._around._constant(name)

    def _infer(self) -> None:
        model = ModelProto(ir_version=8)
        model.opset_import.extend(make_opsetid(domain, version) for domain, version in self._opsets.items())
        model.graph.name = "part"
        waiting, self._waiting = self._waiting, []
        model.graph.node.extend(node for node in waiting if self._is_sound(node))
        nodes = list(every_node(model.graph.node))
        written = {name for node in model.graph.node for name in node.output}
        for name in dict.fromkeys(name for node in nodes for name in node.input if name):
            if name in written:
                continue
            if (tensor := self._constant(name)) is not None:
                model.graph.initializer.append(tensor)
            elif (type_ := self._known(name)) is not None:
                model.graph.input.add(name=name, type=type_)
        for name in written & self._types.keys():
            model.graph.value_info.add(name=name, type=self._types[name])
        self._types.update((name, type_) for name, type_ in inferred_values(model) if name in written)

    def _is_sound(self, node: NodeProto) -> bool:
        """Tell whether a node has the inputs that it must have: ONNX's code in C++ doesn't look first."""
        try:
            for each in every_node([node]):
                domain = "" if each.domain in DEFAULT else each.domain
                check_counts(each, schema_of(domain, each.op_type, self._opsets.get(domain, 1), ""), "")
        except Invalid:
            return False
        return True


def _is_whole(found: TypeProto | None) -> bool:
    """Tell whether a type says all that definitions ask for."""
    return found is not None and bool(found.tensor_type.elem_type) and found.tensor_type.HasField("shape")

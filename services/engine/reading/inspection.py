"""What is in an ONNX file, read or not: and everything that keeps it from being read, with its place."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from libs.common.errors import Invalid
from services.engine.domain.decompose.survey import survey
from services.engine.domain.decompose.walk import unsupported
from services.engine.domain.explanation import MOST_NODES, Fault, NodeText
from services.engine.domain.graph import Node
from services.engine.domain.registry import REGISTRY
from services.engine.reading.contrib.expansion import without_contrib
from services.engine.reading.expansion import expanded
from services.engine.reading.external import ExternalFiles
from services.engine.reading.functions import inlined
from services.engine.reading.limits import DEEPEST, OLDEST_OPSET
from services.engine.reading.model import parsed, read_model
from services.engine.reading.nodes import DEFAULT, Nodes
from services.engine.reading.shapes import read_inputs
from services.engine.reading.tensors import Tensors, tensor_name
from services.engine.reading.versions import modernised, opsets_of

T = TypeVar("T")
MOST_FAULTS = 200
_BITS: Mapping[int, int] = {
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.FLOAT4E2M1: 4,
    TensorProto.INT2: 2,
    TensorProto.UINT2: 2,
    TensorProto.INT16: 16,
    TensorProto.UINT16: 16,
    TensorProto.FLOAT16: 16,
    TensorProto.BFLOAT16: 16,
    TensorProto.INT32: 32,
    TensorProto.UINT32: 32,
    TensorProto.FLOAT: 32,
    TensorProto.INT64: 64,
    TensorProto.UINT64: 64,
    TensorProto.DOUBLE: 64,
    TensorProto.COMPLEX64: 64,
    TensorProto.COMPLEX128: 128,
}
"""Of an element; 8 of all others."""


@dataclass(frozen=True, slots=True)
class Declared:
    """An input or output as the file declares it.

    Attributes:
        name: of it.
        type: such as "float32" or "sequence of int64".
        shape: numbers, names of dimensions and "?"; None: not declared.
    """

    name: str
    type: str
    shape: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Control:
    """A node with graphs in it, and how many nodes each of those has."""

    node: str
    operator: str
    bodies: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is in a file.

    Attributes:
        ir_version: of the format.
        producer: who made it.
        opsets: versions of operators by domain, ONNX's own as "ai.onnx".
        inputs: what a call brings; constants among the inputs apart.
        outputs: what it gets.
        operators: how often each occurs, in graphs within nodes too, functions apart.
        nodes: the first ones, with what they read.
        functions: how many the model defines.
        parameters: elements of constants by type, those in nodes included.
        parameter_bytes: what they take as the file holds them.
        external_files: that hold some of them.
        control: nodes with graphs in them.
        deepest: graphs within graphs.
        faults: what keeps it from being read; at most 200.
        complete: whether every node was tried; otherwise there may be more faults behind these.
    """

    ir_version: int
    producer: str
    opsets: Mapping[str, int]
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    operators: Mapping[str, int]
    nodes: tuple[NodeText, ...]
    functions: int
    parameters: Mapping[str, int]
    parameter_bytes: int
    external_files: tuple[str, ...]
    control: tuple[Control, ...]
    deepest: int
    faults: tuple[Fault, ...]
    complete: bool


def inspect_model(data: bytes, bounds: Mapping[str, tuple[int, int]], folder: Path | None) -> Inspection:
    """Return what is in an ONNX file; `bounds` and `folder` as for `read_model`.

    Raises:
        Invalid: when it isn't an ONNX file at all.
    """
    model = parsed(data)
    faults, complete = _Faults(data, bounds, folder).found(model)
    graph = model.graph
    graphs = list(_graphs(graph, 0))
    tensors = [tensor for each, _ in graphs for tensor in _tensors(each)]
    constants = {tensor.name for tensor in _constants(graph)}
    nodes = [node for each, _ in graphs for node in each.node]
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[_type_name(tensor.data_type)] += math.prod(tensor.dims)
    return Inspection(
        ir_version=model.ir_version,
        producer=" ".join(filter(None, (model.producer_name, model.producer_version)))[:200],
        opsets={item.domain or DEFAULT[1]: item.version for item in model.opset_import},
        inputs=tuple(_declared(info) for info in graph.input if info.name not in constants),
        outputs=tuple(_declared(info) for info in graph.output),
        operators=dict(sorted(Counter(map(_operator, nodes)).items())),
        nodes=_node_texts(graph),
        functions=len(model.functions),
        parameters=dict(sorted(counts.items())),
        parameter_bytes=sum(map(_size, tensors)),
        external_files=tuple(sorted({path for each in tensors for path in _locations(each)})),
        control=tuple(_control(each) for each in nodes if list(_bodies(each))),
        deepest=max(depth for _, depth in graphs),
        faults=faults,
        complete=complete,
    )


# ---- what is there ----
def _graphs(graph: GraphProto, depth: int) -> Iterator[tuple[GraphProto, int]]:
    yield graph, depth
    if depth < DEEPEST:
        for node in graph.node:
            for _, body in _bodies(node):
                yield from _graphs(body, depth + 1)


def _bodies(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.name, attribute.g
        for body in attribute.graphs:
            yield attribute.name, body


def _constants(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield a graph's constants, those that are attributes of its nodes included."""
    yield from _constants(graph)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield attribute.sparse_tensor.values


def _locations(tensor: TensorProto) -> list[str]:
    if tensor.data_location != TensorProto.EXTERNAL:
        return []
    return [entry.value for entry in tensor.external_data if entry.key == "location"]


def _size(tensor: TensorProto) -> int:
    if tensor.data_type == TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    return -(-math.prod(tensor.dims) * _BITS.get(tensor.data_type, 8) // 8)


def _type_name(number: int) -> str:
    names: Mapping[int, str] = {TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64"}
    if number in names:
        return names[number]
    known = number in TensorProto.DataType.values()
    return TensorProto.DataType.Name(number).lower() if known else f"type {number}"


def _declared(info: ValueInfoProto) -> Declared:
    name, type_ = info.name, info.type
    kinds: list[str] = []
    for _ in range(DEEPEST):
        match type_.WhichOneof("value"):
            case "sequence_type":
                kinds.append("sequence of ")
                type_ = type_.sequence_type.elem_type
            case "optional_type":
                kinds.append("optional ")
                type_ = type_.optional_type.elem_type
            case _:
                break
    text, shape = _element(type_)
    return Declared(name, "".join(kinds) + text, shape)


def _element(type_: TypeProto) -> tuple[str, tuple[str, ...] | None]:
    kind = type_.WhichOneof("value")
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return (kind or "undeclared").removesuffix("_type"), None
    tensor = type_.tensor_type if kind == "tensor_type" else type_.sparse_tensor_type
    text = _type_name(tensor.elem_type)
    sizes = tuple(
        size.dim_param or (str(size.dim_value) if size.HasField("dim_value") else "?")
        for size in tensor.shape.dim
    )
    return text if kind == "tensor_type" else f"sparse {text}", sizes if tensor.HasField("shape") else None


def _operator(node: NodeProto) -> str:
    return node.op_type if node.domain in DEFAULT else f"{node.domain}:{node.op_type}"


def _control(node: NodeProto) -> Control:
    return Control(node.name, _operator(node), {name: len(body.node) for name, body in _bodies(node)})


def _node_texts(graph: GraphProto) -> tuple[NodeText, ...]:
    texts: list[NodeText] = []

    def add(inner: GraphProto, around: Mapping[str, int], inside: int | None, depth: int) -> None:
        # The file's own order need not be one in which nodes can run: only what comes before is drawn.
        writers = {name: at for name, at in around.items() if name not in {i.name for i in inner.input}}
        for position, node in enumerate(inner.node):
            if len(texts) >= MOST_NODES:
                return
            place = len(texts)
            reads = {writers[name] for name in node.input if name in writers}
            name = node.name or f"#{position}"
            texts.append(NodeText(name, _operator(node), tuple(sorted(reads)), 1, inside))
            if depth < DEEPEST:
                for _, body in _bodies(node):
                    add(body, writers, place, depth + 1)
            writers.update(dict.fromkeys(filter(None, node.output), place))

    add(graph, {}, None, 0)
    return tuple(texts)


# ---- what is wrong ----
class _Faults:
    def __init__(self, data: bytes, bounds: Mapping[str, tuple[int, int]], folder: Path | None) -> None:
        self._data = data
        self._bounds = bounds
        self._folder = folder
        self._faults: list[Fault] = []

    def found(self, model: ModelProto) -> tuple[tuple[Fault, ...], bool]:
        """Return what is wrong, and whether every node was tried to the end."""
        nodes = self._read(model)
        graph = None
        if not self._faults:
            graph = self._try(lambda: read_model(self._data, self._bounds, self._folder))
        if graph is not None:
            self._faults.extend(survey(graph))
        else:
            for node in nodes:
                if node.operator not in REGISTRY:
                    self._faults.append(Fault(node.name, node.operator, unsupported(node.operator)))
        return tuple(dict.fromkeys(self._faults))[:MOST_FAULTS], graph is not None

    def _try(self, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except Invalid as error:
            self._faults.append(Fault("", "", str(error)))
            return None

    def _read(self, model: ModelProto) -> list[Node]:
        """Read inputs, constants and nodes one by one, so that one's fault doesn't hide the next one's."""
        tensors = Tensors(ExternalFiles(self._folder))
        for tensor in model.graph.initializer:
            self._try(partial(tensors.dense, tensor, tensor_name(tensor.name)))
        constants = {tensor.name for tensor in _constants(model.graph)}
        inputs = [info for info in model.graph.input if info.name not in constants]
        if all([self._try(partial(read_inputs, [info], {})) for info in inputs]):
            self._try(lambda: read_inputs(inputs, self._bounds))
        ready = self._try(lambda: self._prepared(model))
        if ready is None:
            return []
        plain, opsets = ready
        nodes = Nodes(opsets, Tensors(ExternalFiles(self._folder)), self._refuse)
        return list(_with_bodies(nodes.read(plain.graph.node)))

    def _prepared(self, model: ModelProto) -> tuple[ModelProto, Mapping[str, int]]:
        plain = inlined(model)
        opsets = opsets_of(plain)
        if opsets.get("", OLDEST_OPSET) < OLDEST_OPSET:
            # What is old is changed in place.
            changed = ModelProto()
            changed.CopyFrom(plain)
            plain, opsets = changed, modernised(changed, opsets)
        return expanded(without_contrib(plain, opsets, self._refuse), opsets), opsets

    def _refuse(self, node: NodeProto, position: int, error: Invalid) -> None:
        name, text = node.name or f"#{position}", str(error)
        prefix = f"({node.op_type[:80]}): "
        reason = text.partition(prefix)[2] if text.startswith("node ") and prefix in text else text
        self._faults.append(Fault(name, _operator(node), reason))


def _with_bodies(nodes: Iterable[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        for body in node.bodies:
            yield from _with_bodies(body.nodes)

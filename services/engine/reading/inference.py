"""What ONNX's own inference of types and shapes says of a model's tensors: a help, never a condition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property

import onnx
from onnx import GraphProto, ModelProto, TensorProto, TypeProto

from services.engine.domain.graph import LooseTensor
from services.engine.reading.functions import every_node
from services.engine.reading.limits import DEEPEST
from services.engine.reading.types import inferred_tensor

_LARGEST_KEPT = 1 << 16
"""Bytes of a constant that inference may look into: only sizes, axes and the like matter to it."""
_MOST_BYTES = (1 << 31) - (1 << 20)
"""Of a message that can be handed to it."""

_MOST_COPIES = 50_000_000
"""Bodies times nodes; inference takes a second or two for as many."""


class InferredTypes(Mapping[str, LooseTensor]):
    """Types of tensors by name, in bodies too; names that mean several things are left out.

    ONNX is only asked once somebody asks this: most models never do, and its code in C++ crashes on some
    that are malformed, which others refuse before.
    """

    def __init__(self, model: ModelProto) -> None:
        """Keep what inference takes of the model: not its large constants."""
        self._model = _bare(model)

    @cached_property
    def _types(self) -> dict[str, LooseTensor]:
        found: dict[str, LooseTensor] = {}
        several: set[str] = set()
        for name, declared in inferred_values(self._model):
            type_ = inferred_tensor(declared)
            if type_ is not None and found.setdefault(name, type_) != type_:
                several.add(name)
        return {name: type_ for name, type_ in found.items() if name not in several}

    def __getitem__(self, name: str) -> LooseTensor:
        return self._types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)


def inferred_protos(model: ModelProto) -> dict[str, TypeProto]:
    """Return types of values as ONNX writes them, by name; of names that mean several things, the last."""
    return dict(inferred_values(_bare(model)))


def inferred_values(bare: ModelProto) -> Iterator[tuple[str, TypeProto]]:
    """Yield names and types of a model without large constants. Whatever fails yields nothing."""
    nodes = list(every_node(bare.graph.node))
    bodies = sum(attribute.HasField("g") for node in nodes for attribute in node.attribute)
    # It copies what is known so far into every body.
    if bare.ByteSize() > _MOST_BYTES or bodies * len(nodes) > _MOST_COPIES:
        return
    try:
        inferred = onnx.shape_inference.infer_shapes(
            bare, check_type=False, strict_mode=False, data_prop=True
        )
    except Exception:  # of whatever kind: what is wrong with the model others find, and say better
        return
    yield from _values(inferred.graph, 0)


def _values(graph: GraphProto, depth: int) -> Iterator[tuple[str, TypeProto]]:
    if depth > DEEPEST:
        return
    for info in itertools.chain(graph.input, graph.output, graph.value_info):
        if info.name and info.type.WhichOneof("value") is not None:
            yield info.name, info.type
    for tensor in graph.initializer:
        yield tensor.name, tensor_type(tensor.data_type, tensor.dims)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _values(attribute.g, depth + 1)


def _bare(model: ModelProto) -> ModelProto:
    """Return a copy in which large constants are inputs."""
    bare = ModelProto(ir_version=max(model.ir_version, 4))
    bare.opset_import.extend(model.opset_import)
    graph = model.graph
    bare.graph.name = graph.name
    bare.graph.node.extend(graph.node)
    bare.graph.input.extend(graph.input)
    bare.graph.output.extend(graph.output)
    bare.graph.value_info.extend(graph.value_info)
    given = {info.name for info in graph.input}
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.DEFAULT and tensor.ByteSize() <= _LARGEST_KEPT:
            bare.graph.initializer.append(tensor)
        elif tensor.name not in given:
            bare.graph.input.add(name=tensor.name, type=tensor_type(tensor.data_type, tensor.dims))
    for sparse in graph.sparse_initializer:
        if sparse.values.name not in given:
            declared = tensor_type(sparse.values.data_type, sparse.dims)
            bare.graph.input.add(name=sparse.values.name, type=declared)
    return bare


def tensor_type(number: int, dims: object) -> TypeProto:
    """Return the type of a constant."""
    return onnx.helper.make_tensor_type_proto(number, list(dims))  # type: ignore[call-overload]

"""The file: bytes to a `Graph`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import ModelProto

from libs.common.errors import Invalid
from libs.common.sizes import size_text
from services.engine.domain.check_graph import check_graph
from services.engine.domain.graph import Graph
from services.engine.reading import limits
from services.engine.reading.functions import expanded, inlined
from services.engine.reading.limits import shown
from services.engine.reading.nodes import DOMAINS, read_nodes
from services.engine.reading.ordering import sorted_nodes
from services.engine.reading.shapes import read_inputs
from services.engine.reading.tensors import read_tensor, tensor_name


def read_model(data: bytes, bounds: Mapping[str, tuple[int, int]] | None = None) -> Graph:
    """Return the typed graph of an ONNX file.

    Args:
        data: the whole file, at most 512 MiB.
        bounds: smallest and largest size of symbolic dimensions by name; equal ones fix a dimension. Others
            may be 1 to 4096.

    Raises:
        Invalid: it isn't ONNX, is damaged, breaks ONNX's rules, exceeds a limit, or uses what isn't
            supported: another opset or domain, data in other files, control flow, types that plans don't
            have. The message names the node or value.
    """
    model = _parsed(data)
    opset = _opset(model)
    model = expanded(inlined(model))
    graph = model.graph
    _check_sizes(graph)
    constants = _constants(graph)
    declared = [info for info in graph.input if info.name not in constants]
    _check_unique("input", [info.name for info in graph.input])
    outputs = [info.name for info in graph.output]
    _check_unique("output", outputs)
    inputs, ranges = read_inputs(declared, bounds or {})
    nodes = sorted_nodes(read_nodes(graph.node, opset), [*inputs, *constants], outputs)
    result = Graph(
        name=graph.name[: limits.LONGEST_NAME],
        opset=opset,
        digest=f"sha256:{hashlib.sha256(data).hexdigest()}",
        inputs=inputs,
        outputs=tuple(outputs),
        constants=constants,
        nodes=nodes,
        bounds=ranges,
    )
    check_graph(result)
    return result


def _parsed(data: bytes) -> ModelProto:
    if len(data) > limits.MOST_BYTES:
        raise Invalid(
            f"the file has {size_text(len(data))}; at most {size_text(limits.MOST_BYTES)} are allowed"
        )
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, RecursionError, ValueError) as error:
        raise Invalid("the file is not an ONNX model, or is damaged: it can't be parsed") from error
    _check_texts(model)
    if not model.HasField("graph") or not model.opset_import:
        missing = "graph" if not model.HasField("graph") else "opset"
        raise Invalid(f"the file is not an ONNX model, or is damaged: it has no {missing}")
    return model


def _check_texts(message: Message) -> None:
    """Refuse names that are no texts: this kind of message lets any bytes through where a text should be."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            items = (value,) if isinstance(value, str | bytes) else value
            wrong = next((item for item in items if not isinstance(item, str)), None)
            if wrong is not None:
                raise Invalid(f"the file is damaged: {field.full_name} is {wrong[:60]!r}, not UTF-8")
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in (value,) if isinstance(value, Message) else value:
                _check_texts(item)


def _opset(model: ModelProto) -> int:
    versions = {item.version for item in model.opset_import if item.domain in DOMAINS}
    if len(versions) != 1:
        raise Invalid(f"the model imports {len(versions)} versions of ONNX's default operators, not one")
    (version,) = versions
    newest = onnx.defs.onnx_opset_version()
    if not limits.OLDEST_OPSET <= version <= newest:
        raise Invalid(
            f"the model has opset {version}; {limits.OLDEST_OPSET} to {newest} are supported: convert it "
            "with onnx.version_converter, or export it again"
        )
    return version


def _check_sizes(graph: onnx.GraphProto) -> None:
    for what, count, most in (
        ("nodes", len(graph.node), limits.MOST_NODES),
        ("constants", len(graph.initializer), limits.MOST_CONSTANTS),
        ("inputs", len(graph.input) - len(graph.initializer), limits.MOST_PORTS),
        ("outputs", len(graph.output), limits.MOST_PORTS),
    ):
        if count > most:
            raise Invalid(f"the model has {count} {what}; at most {most} are allowed")
    if not graph.output:
        raise Invalid("the model has no outputs")
    if graph.sparse_initializer:
        raise Invalid("the model has sparse constants, which are not supported; make them dense")


def _constants(graph: onnx.GraphProto) -> dict[str, npt.NDArray[np.generic]]:
    _check_unique("constant", [tensor.name for tensor in graph.initializer])
    return {tensor.name: read_tensor(tensor, tensor_name(tensor.name)) for tensor in graph.initializer}


def _check_unique(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name or len(name) > limits.LONGEST_NAME:
            raise Invalid(f"the name of the model's {kind} has {len(name)} characters; use 1 to 4096")
        if name in seen:
            raise Invalid(f"{kind} {shown(name)} is there twice")
        seen.add(name)

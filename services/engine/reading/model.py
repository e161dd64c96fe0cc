"""The file: bytes to a `Graph`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import ModelProto

from libs.common.errors import Invalid
from libs.common.sizes import size_text
from services.engine.domain.check_graph import check_graph
from services.engine.domain.graph import Graph
from services.engine.reading import limits
from services.engine.reading.contrib.expansion import without_contrib
from services.engine.reading.expansion import expanded
from services.engine.reading.external import ExternalFiles
from services.engine.reading.functions import inlined
from services.engine.reading.inference import InferredTypes
from services.engine.reading.nodes import Nodes, check_names, constants
from services.engine.reading.ordering import sorted_nodes
from services.engine.reading.shapes import read_inputs
from services.engine.reading.tensors import Tensors
from services.engine.reading.versions import modernised, opsets_of


def read_model(
    data: bytes, bounds: Mapping[str, tuple[int, int]] | None = None, folder: Path | None = None
) -> Graph:
    """Return the typed graph of an ONNX file.

    Inputs that are also constants are constants: their value in the file isn't a default that callers
    replace.

    Args:
        data: the whole file, at most 512 MiB.
        bounds: smallest and largest size of symbolic dimensions by name; equal ones fix a dimension. Others
            may be 1 to 4096.
        folder: holds the files that the model keeps its data in; None where it may have none.

    Raises:
        Invalid: it isn't ONNX, is damaged, breaks ONNX's rules, exceeds a limit, or uses what isn't
            supported: a newer opset, another domain, maps or sparse tensors as inputs. The message names the
            node or value.
    """
    model = inlined(parsed(data))
    opsets = modernised(model, opsets_of(model))
    model = expanded(without_contrib(model, opsets), opsets)
    graph = model.graph
    _check_sizes(graph)
    tensors = Tensors(ExternalFiles(folder))
    found = constants(graph, tensors)
    declared = [info for info in graph.input if info.name not in found]
    check_names("input", [info.name for info in graph.input])
    outputs = [info.name for info in graph.output]
    check_names("output", outputs)
    inputs, ranges = read_inputs(declared, bounds or {})
    nodes = sorted_nodes(Nodes(opsets, tensors).read(graph.node), [*inputs, *found], outputs)
    result = Graph(
        name=graph.name[: limits.LONGEST_NAME],
        opset=opsets.get("", onnx.defs.onnx_opset_version()),
        digest=f"sha256:{hashlib.sha256(data).hexdigest()}",
        inputs=inputs,
        outputs=tuple(outputs),
        constants=found,
        nodes=nodes,
        bounds=ranges,
        types=InferredTypes(model),
        domains={domain: version for domain, version in opsets.items() if domain},
    )
    check_graph(result)
    return result


def parsed(data: bytes) -> ModelProto:
    """Return a file's message; raises Invalid for what is none, or lacks what every model has."""
    if not data:
        raise Invalid("the file is empty")
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

"""ONNX files, by ONNX Runtime in this process."""

from __future__ import annotations

import queue
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError

from libs.common.errors import Error, Exhausted, Invalid
from libs.common.names import shown
from libs.runtime.loading import load_plan
from services.serving.domain.tensors import BYTES, Array, Signature, TensorSpec, encoded

_TYPES: Mapping[str, str] = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": BYTES,
}
_SHOWN = 400
# "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Load model from the file failed:"
_PREFIX = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : "
    r"(?:Load model from the file failed: ?)?(?:This is an invalid model\. )?"
)
# "/onnxruntime_src/onnxruntime/core/providers/cpu/tensor/gather.cc:61 virtual Status …::Compute(…) const "
_SOURCE = re.compile(r"\S+\.(?:cc|h|cpp):\d+ (?:[^:]|::)*?\)(?: const)? ")
_MAX_DEPTH = 32


class OnnxBackend:
    """See `services.serving.domain.backend.Backend`. Nothing bounds its sizes but memory."""

    def __init__(self, path: Path, instances: int, threads: int) -> None:
        """Load a model for so many executions side by side, each with so many threads.

        Raises:
            Invalid: when it can't be loaded, refers to other files, or takes or gives what isn't a tensor.
            Exhausted: when memory doesn't suffice.
        """
        _check_self_contained(path)
        # With one thread a session has none of its own and takes any number of calls at once; with more they
        # would share its pool, and an execution would have fewer than it was promised.
        sessions = [_session(path, threads) for _ in range(1 if threads == 1 else instances)]
        self._sessions: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for index in range(instances):
            self._sessions.put(sessions[index % len(sessions)])
        self.signature = Signature(
            tuple(_spec(node, "input") for node in sessions[0].get_inputs()),
            tuple(_spec(node, "output") for node in sessions[0].get_outputs()),
        )
        self.sizes: Mapping[str, tuple[int, int]] = {}
        self._outputs = [spec.name for spec in self.signature.outputs]
        self._texts_in = [spec.name for spec in self.signature.inputs if spec.datatype == BYTES]
        self._texts_out = [spec.name for spec in self.signature.outputs if spec.datatype == BYTES]

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """See `Backend`; BYTES must be UTF-8, as ONNX's strings are."""
        feeds = dict(inputs)
        for name in self._texts_in:
            feeds[name] = _decoded(name, feeds[name])
        session = self._sessions.get()
        try:
            values = session.run(self._outputs, feeds)
        except MemoryError:
            raise
        except Exception as error:  # ONNX Runtime's classes have no other base
            raise _refusal(error, "model") from error
        finally:
            self._sessions.put(session)
        outputs = dict(zip(self._outputs, values, strict=True))
        for name in self._texts_out:
            outputs[name] = encoded(outputs[name])
        return outputs


def _session(path: Path, threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that spin for work take the cores from whatever else runs here.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        told = _refusal(error, "blob", str(path))
        if isinstance(told, Exhausted):
            raise told from error
        if _is_plan(path):
            raise _no_model(path) from error
        raise Invalid(f"blob: ONNX Runtime can't load it: {told.message}", reason="BAD_MODEL") from error


def _refusal(error: Exception, subject: str, path: str = "") -> Error:
    text = str(error)
    if path:
        text = text.replace(path, "the file")
    text = _first_sentence(" ".join(text.split()))
    if "bad_alloc" in text or "Failed to allocate" in text or "bad allocation" in text:
        return Exhausted("the model needs more memory than there is", reason="TOO_MUCH_MEMORY")
    return Invalid(f"{subject}: {text}" if not path else text, reason="MODEL_REFUSED_INPUT")


def _first_sentence(text: str) -> str:
    """Return what ONNX Runtime says without its codes, places in its source and what follows a sentence."""
    text = _PREFIX.sub("", text.partition("Status Message: ")[2] or text)
    text = re.split(r"(?<=[^.\s]{2})[.!] (?=[A-Z])", _SOURCE.sub("", text), maxsplit=1)[0]
    return text[:_SHOWN].rstrip(" .")


def _spec(node: Any, kind: str) -> TensorSpec:
    datatype = _TYPES.get(node.type)
    if datatype is None:
        raise Invalid(
            f"blob: its {kind} {shown(node.name)} is a {node.type}, which isn't served; use tensors of "
            "booleans, integers, strings or floats of 16, 32 or 64 bits",
            reason="UNSUPPORTED_TYPE",
        )
    return TensorSpec(
        node.name,
        datatype,
        tuple(
            dim if isinstance(dim, int) and dim >= 0 else "" if not isinstance(dim, str) else dim
            for dim in node.shape
        ),
    )


def _decoded(name: str, array: Array) -> Array:
    try:
        texts = [value.decode() for value in array.flat]
    except UnicodeDecodeError:
        raise Invalid(f"input {shown(name)}: its bytes aren't UTF-8", reason="BAD_INPUT") from None
    decoded = np.empty(array.size, object)
    decoded[:] = texts
    return decoded.reshape(array.shape)


def _check_self_contained(path: Path) -> None:
    """Raise Invalid for a model that names other files: they would be this machine's, or another tenant's."""
    try:
        model = onnx.load_model(str(path), load_external_data=False)
    except (DecodeError, ValueError):
        model = None
    if model is None or not model.HasField("graph"):
        raise _no_model(path)
    nodes = [node for function in model.functions for node in function.node]
    for tensor in (*_graph_tensors(model.graph, 0), *_node_tensors(nodes, 0)):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise Invalid(
                f"blob: its tensor {shown(tensor.name)} is in another file; save the model as one file",
                reason="EXTERNAL_DATA",
            )


def _no_model(path: Path) -> Invalid:
    """Return what is wrong with a file that holds no ONNX graph."""
    if not path.stat().st_size:
        text = "is empty; export the model again"
    elif _is_plan(path):
        text = "is a plan of the engine, not an ONNX model; deploy it as a plan (PLATFORM_PLAN, `--plan`)"
    else:
        text = "is no ONNX model, or it is damaged or cut off; export it again, or copy it anew"
    return Invalid(f"blob: it {text}", reason="BAD_MODEL")


def _is_plan(path: Path) -> bool:
    try:
        load_plan(path.read_bytes(), "blob")
    except Invalid:
        return False
    return True


def _graph_tensors(graph: Any, depth: int) -> Iterable[Any]:
    if depth > _MAX_DEPTH:
        raise Invalid(f"blob: its graphs are nested deeper than {_MAX_DEPTH}", reason="BAD_MODEL")
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node, depth)


def _node_tensors(nodes: Iterable[Any], depth: int) -> Iterable[Any]:
    for node in nodes:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for graph in (attribute.g, *attribute.graphs):
                yield from _graph_tensors(graph, depth + 1) if graph.node or graph.initializer else ()

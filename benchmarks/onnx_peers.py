"""Who can run the onnx package's backend suite: ourselves, ONNX Runtime, the package's own evaluator."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from libs.runtime.codec import decode, encode
from libs.runtime.program import Program
from services.engine.pipeline import Stages, compile_model

Answer = Callable[[Sequence[Any]], Sequence[Any]]
Peer = Callable[[onnx.ModelProto, Sequence[Sequence[Any]]], Answer]
"""Makes a model ready; it may look at the shapes of the inputs that will come, for bounds of dimensions."""
_NARROW = frozenset(
    type_
    for type_ in onnx.TensorProto.DataType.values()
    if type_ and helper.tensor_dtype_to_np_dtype(type_).isbuiltin != 1
)
"""Types that numpy has only with ml_dtypes."""


def decomposed(model: onnx.ModelProto, inputs: Sequence[Sequence[Any]]) -> Answer:
    """Our own path and nothing else: decomposed, merged, a plan as bytes, and back, run by the runtime."""
    plan = compile_model(
        model.SerializeToString(), _bounds(model, inputs), "the suite", Stages(lambda stage: None)
    ).plan
    program = Program(decode(encode(plan)))
    names, outputs = _inputs(model), [output.name for output in model.graph.output]

    def answer(given: Sequence[Any]) -> Sequence[Any]:
        got = program.run(dict(zip(names, given, strict=False)))
        return [got[name] for name in outputs]

    return answer


def _inputs(model: onnx.ModelProto) -> list[str]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return [port.name for port in model.graph.input if port.name not in constants]


def _bounds(model: onnx.ModelProto, inputs: Sequence[Sequence[Any]]) -> dict[str, tuple[int, int]]:
    """Return bounds for dimensions that cases give sizes beyond the default of 1 to 4,096."""
    wanted: dict[str, tuple[int, int]] = {}
    ports = {port.name: port for port in model.graph.input}
    for given in inputs:
        for name, array in zip(_inputs(model), given, strict=False):
            sizes = ports[name].type.tensor_type.shape.dim
            for size, length in zip(sizes, getattr(array, "shape", ()), strict=False):
                if size.dim_param and not 1 <= length <= 4096:
                    wanted[size.dim_param] = (min(length, 1), max(length, 4096))
    return wanted


def onnxruntime(model: onnx.ModelProto, inputs: Sequence[Sequence[Any]]) -> Answer:
    """Run with ONNX Runtime, as it comes; tensors that numpy has no type for go in and out as bytes."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    narrow = any(
        type_.tensor_type.elem_type in _NARROW
        for type_ in (port.type for port in (*model.graph.input, *model.graph.output))
    )

    def taken(value: Any) -> Any:
        proto = numpy_helper.from_array(np.asarray(value))
        if proto.data_type not in _NARROW:
            return ort.OrtValue.ortvalue_from_numpy(np.asarray(value))
        made = ort.OrtValue.ortvalue_from_shape_and_type(list(proto.dims), proto.data_type, "cpu")
        ctypes.memmove(made.data_ptr(), proto.raw_data, len(proto.raw_data))
        return made

    def given_back(value: Any) -> Any:
        if value.element_type() not in _NARROW:
            return value.numpy()
        raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
        proto = onnx.TensorProto(data_type=value.element_type(), dims=value.shape(), raw_data=raw)
        return numpy_helper.to_array(proto)

    def answer(given: Sequence[Any]) -> Sequence[Any]:
        feed = dict(zip(names, given, strict=False))
        if narrow:
            values = {name: taken(value) for name, value in feed.items()}
            return [given_back(value) for value in session.run_with_ort_values(None, values)]
        plain = {
            name: np.asarray(value) if isinstance(value, np.generic) else value
            for name, value in feed.items()
        }
        found: Sequence[Any] = session.run(None, plain)
        return found

    return answer


def reference(model: onnx.ModelProto, inputs: Sequence[Sequence[Any]]) -> Answer:
    """Run with the onnx package's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    evaluator, names = ReferenceEvaluator(model), _inputs(model)

    def answer(given: Sequence[Any]) -> Sequence[Any]:
        found: Any = evaluator.run(None, dict(zip(names, given, strict=False)))
        return list(found)

    return answer


PEERS: Mapping[str, Peer] = {
    "isthmus": decomposed,
    "onnxruntime": onnxruntime,
    "reference": reference,
}

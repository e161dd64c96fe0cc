"""Who a plan is compared with: ONNX Runtime, and for what that doesn't take the onnx package's own evaluator.

Both parse the file a second time, on their own. They run in the worker's process only: a hostile file may
crash them.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from libs.common.errors import Invalid

Feed = dict[str, Any]
"""Arrays by name, lists of them for sequences, None for an optional that holds nothing."""
Run = Callable[[Feed], Mapping[str, Any]]
ONNX_RUNTIME = "ONNX Runtime"
EVALUATOR = "onnx's reference evaluator"
_LONGEST_TEXT = 500
_PATH = re.compile(r"(?:/[\w.@+-]+){2,}")
_NARROW = re.compile(r"tensor\((bfloat16|float8e[45]\w+)\)")
"""Types that numpy has only with ml_dtypes, and that ONNX Runtime converts to as ONNX says."""
_GAPS = (
    "NOT_IMPLEMENTED",
    "Unexpected input data type",
    "Unable to handle",
    "under development",  # of a newer opset
    "converted to MLDataType",
    "No corresponding Numpy type",
)
"""What it says of what it lacks."""
_FILES = "session.model_external_initializers_file_folder_path"


class Peer:
    """A model in ONNX Runtime (one thread, no optimiser, no arena), or else in the evaluator."""

    def __init__(self, model: bytes, folder: Path | None = None) -> None:
        """Load the file's bytes; raises Invalid (PEER_FAILED) when neither can.

        `folder` holds the files that it keeps its data in.
        """
        self._model, self._folder = model, folder
        self.name = ONNX_RUNTIME
        """Whose answers count."""
        self._other: Run | None = None
        self.refusal: Invalid | None = None
        """Why ONNX Runtime doesn't take the model, where its answers don't."""
        try:
            self._run: Run = _session(model, folder)
        except Invalid as error:
            self._fall_back(error)

    def run(self, feed: Feed) -> Mapping[str, Any]:
        """Return the outputs by name; raises Invalid when the peer fails."""
        try:
            return self._run(feed)
        except Invalid as error:
            if self.name != ONNX_RUNTIME or not is_a_gap(error):
                raise
            self._fall_back(error)
            return self._run(feed)

    def second_opinion(self, feed: Feed) -> Mapping[str, Any]:
        """Return the outputs by who is asked besides ONNX Runtime; raises Invalid where there is nobody.

        ONNX Runtime's are wrong at times: without VNNI its quantised products overflow 16 bits, for one. So
        the evaluator is asked, or, of operators that it doesn't know, ONNX Runtime with wider products.
        """
        if self.name != ONNX_RUNTIME:
            raise Invalid(f"there is no other than {self.name}", reason="PEER_FAILED")
        if self._other is None:
            try:
                self._other = _evaluator(self._model, self._folder)
                return self._other(feed)
            except Invalid:
                self._other = _session(self._model, self._folder, wider=True)
        return self._other(feed)

    def _fall_back(self, error: Invalid) -> None:
        try:
            self._run = _evaluator(self._model, self._folder)
        except Invalid:
            raise error from None
        self.name, self.refusal = EVALUATOR, error


def is_a_gap(error: Invalid) -> bool:
    """Tell whether ONNX Runtime lacks something, rather than refusing these inputs."""
    return any(text in error.message for text in _GAPS)


def _session(model: bytes, folder: Path | None, *, wider: bool = False) -> Run:
    # It takes a while to import, and only workers need it.
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = 4
    if wider:
        # A pass of the optimiser sets them in.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.add_session_config_entry("session.x64quantprecision", "1")
    if folder is not None:
        options.add_session_config_entry(_FILES, str(folder))
    with _peer_errors(f"{ONNX_RUNTIME} can't load the model"):
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    narrow = any(_NARROW.fullmatch(port.type) for port in (*session.get_inputs(), *session.get_outputs()))

    def run(feed: Feed) -> Mapping[str, Any]:
        with _peer_errors(f"{ONNX_RUNTIME} can't run the model"):
            if not narrow:
                return dict(zip(names, session.run(names, feed), strict=True))
            values = {name: _taken(array) for name, array in feed.items()}
            found = session.run_with_ort_values(names, values)
            return {name: _given(value) for name, value in zip(names, found, strict=True)}

    return run


def _taken(array: Any) -> Any:
    """Return an array as ONNX Runtime holds it; one that numpy has no type for goes in as bytes."""
    import onnxruntime as ort

    if array.dtype.isbuiltin == 1:
        return ort.OrtValue.ortvalue_from_numpy(array)
    tensor = numpy_helper.from_array(array)
    made = ort.OrtValue.ortvalue_from_shape_and_type(list(tensor.dims), tensor.data_type, "cpu")
    ctypes.memmove(made.data_ptr(), tensor.raw_data, len(tensor.raw_data))
    return made


def _given(value: Any) -> Any:
    """Return an array from ONNX Runtime."""
    if not _NARROW.fullmatch(value.data_type()):
        return value.numpy()
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    tensor = onnx.TensorProto(data_type=value.element_type(), dims=value.shape(), raw_data=raw)
    return numpy_helper.to_array(tensor)


def _evaluator(model: bytes, folder: Path | None) -> Run:
    from onnx.reference import ReferenceEvaluator

    with _peer_errors(f"{EVALUATOR} can't load the model"):
        proto = onnx.ModelProto()
        proto.ParseFromString(model)
        if folder is not None:
            onnx.load_external_data_for_model(proto, str(folder))
        evaluator = ReferenceEvaluator(proto)
    names = [output.name for output in proto.graph.output]

    def run(feed: Feed) -> Mapping[str, Any]:
        with _peer_errors(f"{EVALUATOR} can't run the model"):
            return dict(zip(names, evaluator.run(None, feed), strict=True))

    return run


@contextlib.contextmanager
def _peer_errors(what: str) -> Iterator[None]:
    """Turn whatever a peer raises inside the block into Invalid with its text, without our paths."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # they have no class of their own for all of them
        text = _PATH.sub("…", " ".join(str(error).split()))[:_LONGEST_TEXT]
        raise Invalid(f"{what}: {text}", reason="PEER_FAILED") from error

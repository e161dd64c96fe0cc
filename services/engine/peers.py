"""Who a plan is compared with: ONNX Runtime, and for what that doesn't take the onnx package's own evaluator.

Both parse the file a second time, on their own. They run in the worker's process only: a hostile file may
crash them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx

from libs.common.errors import Invalid

Feed = dict[str, Any]
"""Arrays by name, lists of them for sequences, None for an optional that holds nothing."""
Run = Callable[[Feed], Mapping[str, Any]]
ONNX_RUNTIME = "ONNX Runtime"
EVALUATOR = "onnx's reference evaluator"
_LONGEST_TEXT = 500
_PATH = re.compile(r"(?:/[\w.@+-]+){2,}")
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
        try:
            self._run: Run = _session(model, folder)
        except Invalid as error:
            self._fall_back(error)

    def run(self, feed: Feed) -> Mapping[str, Any]:
        """Return the outputs by name; raises Invalid when the peer fails."""
        try:
            return self._run(feed)
        except Invalid as error:
            if self.name != ONNX_RUNTIME or not _is_a_gap(error):
                raise
            self._fall_back(error)
            return self._run(feed)

    def _fall_back(self, error: Invalid) -> None:
        try:
            self._run = _evaluator(self._model, self._folder)
        except Invalid:
            raise error from None
        self.name = EVALUATOR


def _is_a_gap(error: Invalid) -> bool:
    """Tell whether ONNX Runtime lacks something, rather than refusing these inputs."""
    return any(
        word in error.message
        for word in ("NOT_IMPLEMENTED", "Unexpected input data type", "Unable to handle")
    )


def _session(model: bytes, folder: Path | None) -> Run:
    # It takes a while to import, and only workers need it.
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = 4
    if folder is not None:
        options.add_session_config_entry(_FILES, str(folder))
    with _peer_errors(f"{ONNX_RUNTIME} can't load the model"):
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(feed: Feed) -> Mapping[str, Any]:
        with _peer_errors(f"{ONNX_RUNTIME} can't run the model"):
            return dict(zip(names, session.run(names, feed), strict=True))

    return run


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

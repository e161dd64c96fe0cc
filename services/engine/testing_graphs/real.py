"""Small real models, and whether what is nearly one of them is refused or does as its peers say."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx.backend.test.loader import load_model_tests

from libs.common.errors import Exhausted, Invalid, Precondition
from libs.runtime.codec import decode, encode
from services.engine import testing_models
from services.engine.peers import Feed, Peer, Run, is_a_gap
from services.engine.pipeline import Stages, compile_model
from services.engine.verify import verify

_KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
_MOST_BYTES = 1 << 15
KNOWN_DIFFERENCES = {
    ("QuantizeLinear", r"differs by"): "the evaluator leaves out the zero points of 8-bit floats",
    ("OneHot", r"bfloat16.*, by its peer"): "the evaluator rounds depths up",
}
"""Operators, and patterns of how their plans differ from what peers make of them that ONNX doesn't say."""


def real_models() -> list[onnx.ModelProto]:
    """Return the small ones of the onnx package's backend suite, and the networks that tests use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the cases divides by 0 on purpose
        cases = [case for kind in _KINDS for case in load_model_tests(kind=kind)]
        models = [case.model or onnx.load(Path(str(case.model_dir)) / "model.onnx") for case in cases]
    made = (
        testing_models.mlp,
        testing_models.conv_net,
        testing_models.attention,
        testing_models.embedding,
        testing_models.repeated,
    )
    networks = [onnx.load_from_string(make()) for make in made]
    return [model for model in models if model.ByteSize() <= _MOST_BYTES] + networks


def check_file(content: bytes, seed: int) -> str:
    """Return "equal" or why a file was refused, as the engine does for anybody's.

    Raises Precondition (PLAN_DISAGREES) where a plan does something else than its peer, but for
    `KNOWN_DIFFERENCES`.
    """
    try:
        plan = compile_model(content, {}, "a test", Stages(lambda stage: None)).plan
        run, second_opinion = _peers(content)
        verify(decode(encode(plan)), run, seed, second_opinion)
    except (Invalid, Exhausted) as error:
        return f"refused: {error.reason}: {error.message}"
    except Precondition as error:
        for (operator, pattern), reason in KNOWN_DIFFERENCES.items():
            if operator.encode() in content and re.search(pattern, error.message):
                return f"known: {operator}: {reason}"
        raise
    except MemoryError:  # which the worker refuses so
        return "refused: MODEL_TOO_LARGE: it takes too much memory"
    return "equal"


def _peers(content: bytes) -> tuple[Run, Run]:
    """Return what answers for a model, and who is asked besides.

    That is ONNX Runtime, the evaluator for what it lacks, or only refusals.
    Where ONNX Runtime says that it is no model, the evaluator's answers mean nothing. The plan is run all
    the same.
    """
    try:
        peer = Peer(content)
    except Invalid as error:
        return (_refusing(error),) * 2
    if peer.refusal is not None and not is_a_gap(peer.refusal):
        return (_refusing(peer.refusal),) * 2

    def run(feed: Feed) -> Mapping[str, Any]:
        try:
            return peer.run(feed)
        except MemoryError as error:
            raise Invalid(f"{peer.name} takes too much memory", reason="PEER_FAILED") from error

    return run, peer.second_opinion


def _refusing(reason: Invalid) -> Run:
    def refuse(feed: Feed) -> Mapping[str, Any]:
        raise reason

    return refuse

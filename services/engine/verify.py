"""Compares a plan with ONNX Runtime on random inputs; a plan that disagrees is refused.

ONNX Runtime parses the file a second time, on its own, without its optimiser: whatever both get wrong, they
get wrong independently. Runs in the worker's process only: a hostile file may crash it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.common.errors import Exhausted, Invalid, Precondition
from libs.common.names import shown
from libs.runtime.extents import evaluate
from libs.runtime.faults import BAD_INPUT
from libs.runtime.inputs import PortSpec
from libs.runtime.layout import MAX_BUFFER_BYTES, lay_out
from libs.runtime.plan import Plan
from libs.runtime.program import Program
from services.engine.domain.model import Verdict
from services.engine.rounding import explained_by_rounding

TOLERANCE = 1e-4
"""Largest difference allowed, relative to max(1, |expected|), but for what is rounding (`rounding`)."""
HALF_TOLERANCE = 5e-3
"""The same for outputs of 16-bit floats, whose own steps are 1e-3."""
MAX_MEMORY_BYTES = 256 * 1024**2
"""Sizes of dimensions that take more for a call aren't tried, but for the smallest."""
MAX_CALCULATIONS = 4_000_000_000
"""Sizes of dimensions that take more for a call aren't tried, but for the smallest."""
_LONGEST_TEXT = 500
_FILES = "session.model_external_initializers_file_folder_path"
_PATH = re.compile(r"(?:/[\w.@+-]+){2,}")

Array = npt.NDArray[Any]
Feed = dict[str, Array]
Run = Callable[[Feed], Mapping[str, Array]]


class Peer:
    """A model in ONNX Runtime: one thread, no optimiser, no arena."""

    def __init__(self, model: bytes, folder: Path | None = None) -> None:
        """Load the file's bytes; raises Invalid when ONNX Runtime can't.

        `folder` holds the files that it keeps its data in.
        """
        # It takes a while to import, and only workers need it.
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        options.log_severity_level = 4
        if folder is not None:
            options.add_session_config_entry(_FILES, str(folder))
        with _peer_errors("can't load the model"):
            self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._names = [output.name for output in self._session.get_outputs()]

    def run(self, feed: Feed) -> dict[str, Array]:
        """Return the outputs by name; raises Invalid when ONNX Runtime fails."""
        with _peer_errors("can't run the model"):
            return dict(zip(self._names, self._session.run(self._names, feed), strict=True))


@contextlib.contextmanager
def _peer_errors(what: str) -> Iterator[None]:
    """Turn whatever ONNX Runtime raises inside the block into Invalid with its text, without our paths."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # it has no class of its own for all of them
        text = _PATH.sub("…", " ".join(str(error).split()))[:_LONGEST_TEXT]
        raise Invalid(f"ONNX Runtime {what}: {text}", reason="PEER_FAILED") from error


def verify(plan: Plan, peer: Run, seed: int) -> Verdict:
    """Compare a plan with its peer at several sizes of its dimensions.

    Args:
        plan: what to check; sound.
        peer: runs the model.
        seed: of the random inputs.

    Raises:
        Precondition: PLAN_DISAGREES, naming output, error and sizes.
        Invalid: when the peer can't run the model, or the plan can't at any inputs that were tried.
    """
    program = Program(plan, max_bindings=1)
    randomness = np.random.default_rng(seed)
    worst, count = 0.0, 0
    for sizes in _sizes(plan):
        named = dict(zip((dimension.name for dimension in plan.dimensions), sizes, strict=True))
        shapes = {spec.name: _shape(plan, index, sizes) for index, spec in enumerate(program.inputs)}
        compared = 0
        for feed in _feeds(program.inputs, shapes, randomness):
            outcome = _both(program, peer, feed, named)
            if outcome is None:
                continue
            got, expected = outcome
            worst = max(worst, _compare(got, expected, named, _judge(plan, feed)))
            compared += 1
            if compared == 2:
                break
        if not compared:
            raise Invalid(
                f"no random inputs were found that the model takes{_at(named)}: it can't be compared with "
                "ONNX Runtime; are its integer inputs indices of a small table?",
                reason="NOT_COMPARED",
            )
        count += compared
    return Verdict(worst, count)


def _sizes(plan: Plan) -> list[tuple[int, ...]]:
    """Return the sizes to try: all smallest, then a little larger ones that differ, and more, while cheap."""
    lows = [dimension.minimum for dimension in plan.dimensions]
    highs = [dimension.maximum for dimension in plan.dimensions]
    tries = [tuple(lows)]
    for step in (1, 2, 16):
        sizes = zip(range(len(lows)), lows, highs, strict=True)
        tries.append(tuple(min(high, low + step + index) for index, low, high in sizes))
    kept: dict[tuple[int, ...], None] = {}
    for position, sizes_tried in enumerate(tries):
        if position and not _affordable(plan, sizes_tried):
            continue
        kept[sizes_tried] = None
    return list(kept)


def _affordable(plan: Plan, sizes: tuple[int, ...]) -> bool:
    try:
        layout = lay_out(plan, sizes, max_buffer_bytes=MAX_MEMORY_BYTES)
    except Exhausted:
        return False
    except Invalid:
        return True  # unsound there: whether that is right, the comparison says
    return layout.calculations <= MAX_CALCULATIONS


def _shape(plan: Plan, port: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    values = evaluate(plan.extents, sizes)
    return tuple(values[extent] for extent in plan.tensors[plan.inputs[port].tensor].shape)


_INTEGER_RANGES = ((-9, 10), (0, 10), (0, 3), (0, 1), (1, 2))


def _feeds(
    specs: tuple[PortSpec, ...], shapes: Mapping[str, tuple[int, ...]], randomness: np.random.Generator
) -> Iterator[Feed]:
    """Yield random inputs: integers that may be indices come from ever smaller ranges."""
    for low, high in _INTEGER_RANGES:
        for positive in (False, True):
            yield {
                spec.name: _random(spec, shapes[spec.name], low, high, positive, randomness) for spec in specs
            }


def _random(
    spec: PortSpec,
    shape: tuple[int, ...],
    low: int,
    high: int,
    positive: bool,
    randomness: np.random.Generator,
) -> Array:
    if spec.dtype == np.bool_:
        return randomness.integers(0, 2, shape).astype(np.bool_)
    if np.issubdtype(spec.dtype, np.integer):
        if np.issubdtype(spec.dtype, np.unsignedinteger):
            low = max(low, 0)
        return randomness.integers(low, high, shape).astype(spec.dtype)
    drawn = randomness.uniform(0.1, 2.0, shape) if positive else randomness.standard_normal(shape)
    return np.asarray(drawn, spec.dtype)


def _both(
    program: Program, peer: Run, feed: Feed, sizes: Mapping[str, int]
) -> tuple[Mapping[str, Array], Mapping[str, Array]] | None:
    """Return what both make of the inputs; None where both refuse them, as for an index out of range.

    Raises Precondition (PLAN_DISAGREES) where the plan is unsound at sizes that the peer takes.
    """
    refusal: Invalid | None = None
    got: Mapping[str, Array] = {}
    try:
        got = program.run(feed)
    except Invalid as error:
        refusal = error
    try:
        expected = peer(feed)
    except Invalid:
        if refusal is not None:
            return None
        raise
    if refusal is None:
        return got, expected
    if refusal.reason != BAD_INPUT:
        raise _disagrees(f"the plan can't be run: {refusal.message}", sizes)
    # ONNX Runtime gives something for a division by 0 and the like, where a plan refuses.
    return None


Judge = Callable[[str, Array, float], bool]
"""Tells whether an output that differs from what is expected by more than allowed does so by rounding."""


def _judge(plan: Plan, feed: Feed) -> Judge:
    def judge(name: str, expected: Array, allowed: float) -> bool:
        try:
            return explained_by_rounding(plan, feed, name, expected, allowed, MAX_BUFFER_BYTES)
        except Exhausted:
            return False

    return judge


def _compare(
    got: Mapping[str, Array], expected: Mapping[str, Array], sizes: Mapping[str, int], judge: Judge
) -> float:
    worst = 0.0
    for name, right in expected.items():
        if name not in got:
            raise _disagrees(f"output {shown(name)} is missing", sizes)
        left = got[name]
        if left.dtype != right.dtype or left.shape != right.shape:
            raise _disagrees(
                f"output {shown(name)} is {left.dtype}{list(left.shape)}, "
                f"by ONNX Runtime {right.dtype}{list(right.shape)}",
                sizes,
            )
        error = difference(left, right)
        allowed = HALF_TOLERANCE if right.dtype == np.float16 else TOLERANCE
        if not error <= allowed and not judge(name, right, allowed):
            peak = float(np.max(np.abs(right.astype(np.float64))))
            raise _disagrees(
                f"output {shown(name)}, whose values reach {peak:.3g}, differs by {error:.3g} from "
                f"ONNX Runtime's, more than {allowed:g} and more than rounding explains",
                sizes,
            )
        worst = max(worst, error)
    return worst


def difference(got: Array, expected: Array) -> float:
    """Return the largest |got - expected| / max(1, |expected|); infinite where only one isn't finite.

    What isn't floating must be equal: a large index that is off by one is another index.
    """
    if expected.size == 0:
        return 0.0
    if not np.issubdtype(expected.dtype, np.floating):
        return 0.0 if np.array_equal(got, expected) else float("inf")
    left, right = got.astype(np.float64), expected.astype(np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.where(same, 0.0, np.abs(left - right) / np.maximum(1.0, np.abs(right)))
    return float(np.max(np.where(np.isnan(errors), np.inf, errors)))


def _at(sizes: Mapping[str, int]) -> str:
    return f" at {', '.join(f'{name}={size}' for name, size in sizes.items())}" if sizes else ""


def _disagrees(text: str, sizes: Mapping[str, int]) -> Precondition:
    return Precondition(
        f"the plan disagrees with ONNX Runtime{_at(sizes)}: {text}; this is a fault of the engine, "
        "please report it with the model",
        reason="PLAN_DISAGREES",
    )

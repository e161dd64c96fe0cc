"""Compares a plan with a peer on random inputs; a plan that disagrees is refused.

The peer parses the file a second time, on its own: whatever both get wrong, they get wrong independently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.common.errors import Exhausted, Invalid, Precondition
from libs.common.names import shown
from libs.runtime.faults import BAD_INPUT
from libs.runtime.layout import MAX_BUFFER_BYTES, lay_out
from libs.runtime.plan import Host, Plan
from libs.runtime.program import Program
from services.engine.domain.model import Verdict
from services.engine.feeds import feeds, shapes_at, sizes_to_try
from services.engine.peers import Feed, Run
from services.engine.rounding import Losses, Rounding

TOLERANCE = 1e-4
"""Largest difference allowed, relative to max(1, |expected|), but for what is rounding (`rounding`)."""
HALF_TOLERANCE = 5e-3
"""The same for outputs of 16-bit floats, whose own steps are 1e-3."""
_STORED_TOLERANCE = {"bfloat16": 5e-2, "float8_e4m3fn": 0.3, "float8_e4m3fnuz": 0.3, "float8_e5m2": 0.6}
"""The same for narrower floats, two of whose own steps these are."""
MAX_MEMORY_BYTES = 256 * 1024**2
"""Sizes of dimensions that take more for a call aren't tried, but for the smallest."""
MAX_CALCULATIONS = 4_000_000_000
"""Sizes of dimensions that take more for a call aren't tried, but for the smallest."""
Array = npt.NDArray[Any]


def _no_opinion(feed: Feed) -> Mapping[str, Any]:
    raise Invalid("nobody else is asked")


def verify(plan: Plan, peer: Run, seed: int, second_opinion: Run = _no_opinion) -> Verdict:
    """Compare a plan with its peer at several sizes of its dimensions.

    Args:
        plan: what to check; sound.
        peer: runs the model.
        seed: of the random inputs.
        second_opinion: runs the model where the plan disagrees with the peer: what it agrees with is right,
            then the peer is wrong. Raises Invalid where it can't.

    Of a plan that draws random numbers only types and shapes are compared.

    Raises:
        Precondition: PLAN_DISAGREES, naming output, error and sizes.
        Invalid: when the peer can't run the model, or the plan can't at any inputs that were tried.
    """
    program, is_random = Program(plan, max_bindings=1), draws_random_numbers(plan)
    rounding = Rounding(plan, MAX_BUFFER_BYTES)
    randomness = np.random.default_rng(seed)
    worst, count, overruled = 0.0, 0, 0
    refused: Invalid | None = None
    for number, sizes in enumerate(sizes_to_try(plan)):
        if number and not _affordable(plan, sizes):
            continue
        named = dict(zip((dimension.name for dimension in plan.dimensions), sizes, strict=True))
        shapes = shapes_at(plan, program.inputs, sizes)
        compared = 0
        for feed in feeds(program.inputs, shapes, randomness):
            try:
                outcome = _both(program, peer, feed, named)
            except Invalid as error:
                refused = refused or error
                continue
            if outcome is None:
                continue
            got, expected = outcome
            judge = (lambda *_: True) if is_random else _judge(rounding.at(feed))
            try:
                worst = max(worst, _compare(got, expected, named, judge))
            except Precondition as error:
                try:
                    expected = second_opinion(feed)
                    worst = max(worst, _compare(got, expected, named, judge))
                except (Invalid, Precondition, MemoryError):
                    raise error from None
                overruled += 1
            compared += 1
            if compared == 2:
                break
        count += compared
    if not count:
        if refused is not None:
            raise refused
        raise Invalid(
            "no random inputs were found that the model takes: it can't be compared; are its "
            "integer inputs indices of a small table, or sizes that must fit?",
            reason="NOT_COMPARED",
        )
    return Verdict(0.0 if is_random else worst, count, overruled)


def _affordable(plan: Plan, sizes: tuple[int, ...]) -> bool:
    if plan.composition is not None:
        return True  # only data tell; the worker's bounds hold in any case
    try:
        layout = lay_out(plan, sizes, max_buffer_bytes=MAX_MEMORY_BYTES)
    except Exhausted:
        return False
    except Invalid:
        return True  # unsound there: whether that is right, the comparison says
    return layout.calculations <= MAX_CALCULATIONS


def _both(
    program: Program, peer: Run, feed: Feed, sizes: Mapping[str, int]
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return what both make of the inputs; None where the plan refuses them, as for an index out of range.

    Raises Invalid where the peer alone refuses them, and Precondition (PLAN_DISAGREES) where the plan is
    unsound at sizes that the peer takes.
    """
    refusal: Invalid | None = None
    got: Mapping[str, Any] = {}
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


def _judge(losses: Losses) -> Judge:
    def judge(name: str, expected: Array, allowed: float) -> bool:
        try:
            return losses.explain(name, expected, allowed)
        except Exhausted:
            return False

    return judge


def _compare(
    got: Mapping[str, Any], expected: Mapping[str, Any], sizes: Mapping[str, int], judge: Judge
) -> float:
    worst = 0.0
    for name, right in expected.items():
        if name not in got:
            raise _disagrees(f"output {shown(name)} is missing", sizes)
        worst = max(worst, _compare_one(name, got[name], right, sizes, judge))
    return worst


def _compare_one(name: str, left: Any, right: Any, sizes: Mapping[str, int], judge: Judge) -> float:
    if right is None or isinstance(right, list):
        same = left is None if right is None else isinstance(left, list) and len(left) == len(right)
        if not same:
            raise _disagrees(f"output {shown(name)} holds something else than by its peer", sizes)
        pairs = zip(left or (), right or (), strict=True)
        return max((_compare_one(name, one, other, sizes, judge) for one, other in pairs), default=0.0)
    right = np.asarray(right)
    if right.dtype.kind in "OUS":
        right = right.astype(np.object_)
    if left.dtype != right.dtype or left.shape != right.shape:
        raise _disagrees(
            f"output {shown(name)} is {left.dtype}{list(left.shape)}, "
            f"by its peer {right.dtype}{list(right.shape)}",
            sizes,
        )
    error = difference(left, right)
    allowed = _allowed(right.dtype)
    if not error <= allowed and not judge(name, right, allowed):
        if right.dtype == np.object_:
            raise _disagrees(f"output {shown(name)} has other strings than its peer's", sizes)
        peak = float(np.max(np.abs(right.astype(np.float64))))
        raise _disagrees(
            f"output {shown(name)}, whose values reach {peak:.3g}, differs by {error:.3g} from "
            f"its peer's, more than {allowed:g} and more than rounding explains",
            sizes,
        )
    return error


def _allowed(dtype: np.dtype[Any]) -> float:
    if dtype == np.float16:
        return HALF_TOLERANCE
    return _STORED_TOLERANCE.get(dtype.name, TOLERANCE)


def difference(got: Array, expected: Array) -> float:
    """Return the largest |got - expected| / max(1, |expected|); infinite where only one isn't finite.

    What isn't floating must be equal: a large index that is off by one is another index.
    """
    if expected.size == 0:
        return 0.0
    if not np.issubdtype(expected.dtype, np.floating) and "float" not in expected.dtype.name:
        return 0.0 if np.array_equal(got, expected) else float("inf")
    left, right = got.astype(np.float64), expected.astype(np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right)) | _masks(left, right, expected.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.where(same, 0.0, np.abs(left - right) / np.maximum(1.0, np.abs(right)))
    return float(np.max(np.where(np.isnan(errors), np.inf, errors)))


def _masks(one: Array, other: Array, dtype: np.dtype[Any]) -> Array:
    """Tell where one is infinite and the other a type's largest number: ONNX Runtime masks by those."""
    if dtype.isbuiltin != 1:
        return np.zeros(one.shape, np.bool_)
    return np.asarray(
        np.isinf(one) & (np.abs(other) == float(np.finfo(dtype).max)) & (np.sign(one) == np.sign(other))
    )


def draws_random_numbers(plan: Plan) -> bool:
    """Tell whether a plan gives other results in each call, or by a seed of its own."""
    blocks = () if plan.composition is None else plan.composition.blocks
    return any(
        isinstance(action.kind, Host) and action.kind.operator == "random_bits"
        for block in blocks
        for action in block.actions
    )


def _at(sizes: Mapping[str, int]) -> str:
    return f" at {', '.join(f'{name}={size}' for name, size in sizes.items())}" if sizes else ""


def _disagrees(text: str, sizes: Mapping[str, int]) -> Precondition:
    return Precondition(
        f"the plan disagrees with ONNX Runtime, or onnx's evaluator{_at(sizes)}: {text}; this is a fault of "
        "the engine, please report it with the model",
        reason="PLAN_DISAGREES",
    )

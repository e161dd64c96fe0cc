"""Two models or plans beside one another: each run on the same random inputs, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.common.names import shown
from libs.runtime.inputs import PortSpec
from libs.runtime.plan import Plan
from libs.runtime.program import Program
from services.engine.domain.explanation import Explanation
from services.engine.feeds import feeds, shapes_at
from services.engine.peers import Run
from services.engine.verify import difference, draws_random_numbers


@dataclass(frozen=True, slots=True)
class Side:
    """A model or plan: what runs it is ONNX Runtime for a model, the runtime for a plan."""

    plan: Plan
    explanation: Explanation
    run: Run


@dataclass(frozen=True, slots=True)
class Difference:
    """How an output differs: the largest |a - b| / max(1, |b|), infinite where types, shapes or texts do."""

    output: str
    largest: float
    text: str
    """What both are, for people."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How two sides differ on the same inputs."""

    differences: tuple[Difference, ...]
    is_random: bool
    """One of them draws random numbers, so that differing says nothing."""


def run_both(left: Side, right: Side, seed: int, sizes: Mapping[str, int]) -> Outcome:
    """Run both sides on random inputs of the left one's types, at sizes of its dimensions.

    Raises:
        Invalid: INPUTS_DIFFER where they don't take the same inputs; NOT_COMPARED where no random inputs were
            found that both take.
    """
    ours, theirs = _inputs(left.plan), _inputs(right.plan)
    if (text := _input_differences(ours, theirs)) is not None:
        raise Invalid(f"they can't be run on the same inputs: {text}", reason="INPUTS_DIFFER")
    shapes = shapes_at(left.plan, ours, [sizes[each.name] for each in left.plan.dimensions])
    refused = None
    for feed in feeds(ours, shapes, np.random.default_rng(seed)):
        try:
            first, second = left.run(feed), right.run(feed)
        except Invalid as error:
            refused = error
            continue
        names = [*first, *(name for name in second if name not in first)]
        return Outcome(
            tuple(_difference(name, first, second) for name in names),
            draws_random_numbers(left.plan) or draws_random_numbers(right.plan),
        )
    raise Invalid(
        f"no random inputs were found that both take; the last were refused: {refused}", reason="NOT_COMPARED"
    )


def _inputs(plan: Plan) -> tuple[PortSpec, ...]:
    return Program(plan, max_bindings=0).inputs


def _input_differences(ours: Sequence[PortSpec], theirs: Sequence[PortSpec]) -> str | None:
    left, right = ({spec.name: spec for spec in specs} for specs in (ours, theirs))
    for name in [*left, *right]:
        if name not in left or name not in right:
            return f"input {shown(name)} is of {'the second' if name in right else 'the first'} only"
        one, other = left[name], right[name]
        if (one.dtype, one.containers) != (other.dtype, other.containers):
            return f"input {shown(name)} is {one} of the first and {other} of the second"
    return None


def _difference(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Difference:
    for side, values in (("first", first), ("second", second)):
        if name not in values:
            return Difference(name, float("inf"), f"isn't an output of the {side}")
    one, other = first[name], second[name]
    texts = [_text(value) for value in (one, other)]
    return Difference(name, _largest(one, other), texts[0] if texts[0] == texts[1] else " and ".join(texts))


def _largest(one: Any, other: Any) -> float:
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    if isinstance(one, list) or isinstance(other, list):
        if not isinstance(one, list) or not isinstance(other, list) or len(one) != len(other):
            return float("inf")
        return max((_largest(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    left, right = (_plain(np.asarray(value)) for value in (one, other))
    if left.dtype != right.dtype or left.shape != right.shape:
        return float("inf")
    return difference(left, right)


def _plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(np.object_) if array.dtype.kind in "US" else array


def _text(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    array = _plain(np.asarray(value))
    return f"{'string' if array.dtype == np.object_ else array.dtype}{list(array.shape)}"

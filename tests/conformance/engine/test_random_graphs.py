"""Random graphs: plans agree with the onnx package or ONNX Runtime; spoilt numbers never crash.

Shapes, axes, slices and the like come as constants or, at random, as inputs that only a call brings; sizes
may be dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from libs.common.errors import Exhausted, Invalid
from libs.runtime.faults import BAD_INPUT
from libs.runtime.program import Program
from services.engine.peers import ONNX_RUNTIME, Peer
from services.engine.pipeline import Stages, compile_model
from services.engine.testing_graphs.model import Drawn, difference, draw_model, reference
from services.engine.testing_graphs.trials import RandomGraphs, run_all

pytestmark = pytest.mark.timeout(600)
COUNT = 400


class Numbers:
    """The numbers that hypothesis draws."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return int(self._draw(st.integers(low, high)))


@st.composite
def models(draw: Callable[..., Any]) -> Drawn:
    drawn = draw_model(Numbers(draw))
    assume(drawn is not None)
    assert drawn is not None
    return drawn


def test_plans_of_random_graphs_agree() -> None:
    trial = RandomGraphs()
    outcomes = list(run_all(trial, range(COUNT), timeout_s=60))
    wrong = [
        f"seed {outcome.seed}: {outcome.text}\n{trial.text(outcome.seed)}"
        for outcome in outcomes
        if not outcome.is_good
    ]
    assert not wrong, "\n".join(wrong)
    assert sum(outcome.text == "equal" for outcome in outcomes) > COUNT / 2


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), st.data())
def test_spoilt_numbers_are_refused_or_as_onnx_runtime_says(drawn: Drawn, data: st.DataObject) -> None:
    whole = [name for name, array in drawn.feed.items() if array.dtype.kind in "iu" and array.size]
    assume(whole)
    content = drawn.model.SerializeToString()
    try:
        program = Program(compile_model(content, {}, "a test", Stages(lambda stage: None)).plan)
    except Invalid:
        return
    name = data.draw(st.sampled_from(whole))
    spoilt = drawn.feed[name].copy()
    lowest = 0 if spoilt.dtype.kind == "u" else -9
    spoilt.reshape(-1)[data.draw(st.integers(0, spoilt.size - 1))] = data.draw(st.integers(lowest, 9))
    feed = {**drawn.feed, name: spoilt}
    try:
        found = program.run(feed)
    except Exhausted:
        return
    except Invalid as error:
        if error.reason != BAD_INPUT:
            raise
        return
    peer = Peer(content)
    try:
        expected = peer.run(feed)
    except Invalid:
        return  # ONNX Runtime is stricter
    if peer.name != ONNX_RUNTIME or difference(found, expected) is None:
        return  # the evaluator doesn't look at what numbers are
    what = f"{difference(found, expected)}\n{onnx.printer.to_text(drawn.model.graph)}\n{feed}"
    other = reference(drawn.model, feed)
    assert other is not None, what
    assert difference(found, other) is None, what

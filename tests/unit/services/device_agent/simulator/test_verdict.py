from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.task.testing import make_event
from services.device_agent.running import Made
from services.device_agent.simulator.recording import Recording
from services.device_agent.simulator.verdict import (
    MAX_MESSAGE,
    NOTHING_TRIGGERED,
    Verdict,
    failed,
    judge,
    percentile,
    verdict_from_json,
)
from services.device_agent.store.runs import Finished, Run
from services.device_agent.trial import Outcome, Tally

SOME = Recording(((make_event("rate"), 1),))
counts = st.integers(0, 2**62)
times = st.floats(0, 1e6)
verdicts = st.builds(
    Verdict,
    passed=st.booleans(),
    reason=st.text(max_size=20),
    message=st.text(max_size=20),
    event_count=counts,
    run_count=counts,
    failure_count=counts,
    frame_count=counts,
    frame_bytes=counts,
    refused_frame_count=counts,
    asked_count=counts,
    p50_s=times,
    p99_s=times,
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([])


def made(failure: str = "", message: str = "", time_s: float = 1000.0, wall_s: float = 0.5) -> Made:
    event = make_event("rate", time_s, user="u1")
    run = Run(1, "genres", "1.0.0", 1, time_s, time_s, (event,))
    return Made(run, Finished("", (), failure, message), wall_s=wall_s)


def outcome(*runs: Made, events: int = 10) -> Outcome:
    tally = Tally()
    for each in runs:
        tally.add(each)
    return Outcome(tally, events, 0, 0, False, ())


@given(verdicts)
def test_a_verdict_comes_back_from_its_json(verdict: Verdict) -> None:
    assert verdict_from_json(verdict.to_json()) == verdict


@given(verdicts, st.sampled_from(sorted(Verdict.__dataclass_fields__)), scalars)
def test_anything_else_is_refused(verdict: Verdict, name: str, value: Any) -> None:
    changed = verdict.to_json() | {name: value}
    try:
        found = verdict_from_json(changed)
    except ValueError:
        assert type(value) is not type(verdict.to_json()[name]) or not 0 <= value < 1 << 63
    else:
        assert getattr(found, name) == value


@pytest.mark.parametrize("change", [{"more": 1}, {"passed": 1}, {"run_count": -1}, {"p50_s": float("nan")}])
def test_other_fields_and_values_out_of_range_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        verdict_from_json(Verdict(passed=True).to_json() | change)
    with pytest.raises(ValueError, match="fields"):
        verdict_from_json({})


def test_the_first_failure_is_the_reason_and_its_line_is_named() -> None:
    recording = Recording(tuple((make_event("rate", 1000.0 + at, user="u1"), 7 + at) for at in range(3)))
    runs = made(), made("EXCEPTION", "boom", 1001.0), made("TIMEOUT", "late", 1002.0)
    verdict = judge(outcome(*runs), recording)
    assert (verdict.passed, verdict.reason) == (False, "EXCEPTION")
    assert verdict.message == "line 8 of the events ('rate' of user 'u1' at 1001.000): boom"
    assert (verdict.run_count, verdict.failure_count, verdict.event_count) == (3, 2, 10)


def test_a_failure_on_an_event_that_no_line_holds_is_told_all_the_same() -> None:
    verdict = judge(outcome(made("CRASH", "it died")), Recording(((make_event("other"), 1),)))
    assert verdict.message.startswith("an event ('rate' of user 'u1' at 1000.000): it died")


def test_events_must_trigger_something_and_no_events_need_not() -> None:
    verdict = judge(outcome(), SOME)
    assert (verdict.passed, verdict.reason) == (False, NOTHING_TRIGGERED)
    assert judge(outcome(events=0), None) == Verdict(passed=True)


def test_long_texts_are_cut() -> None:
    verdict = failed("R" * 100, "ü" * 5000)
    assert (len(verdict.reason), len(verdict.message), verdict.message[-1]) == (64, MAX_MESSAGE, "…")


@given(st.lists(times, min_size=1, max_size=50))
def test_percentiles_are_values_by_nearest_rank(values: list[float]) -> None:
    for share in (0.5, 0.99, 1.0):
        found = percentile(values, share)
        assert sum(value <= found for value in values) >= share * len(values)
        assert sum(value < found for value in values) < share * len(values)
    assert percentile([], 0.5) == 0.0


def test_times_are_of_the_runs() -> None:
    runs = [made(wall_s=wall_s) for wall_s in (0.1, 0.2, 0.9)]
    verdict = judge(outcome(*runs), SOME)
    assert (verdict.passed, verdict.p50_s, verdict.p99_s) == (True, 0.2, 0.9)

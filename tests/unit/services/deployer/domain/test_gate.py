from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.names import ReleaseName, VersionName
from libs.common.testing import START
from services.deployer.domain.gate import Advance, Decision, Hold, Pause, RollBack, Succeed, decide
from services.deployer.domain.model import Counts, FailureCount, Gate, Release, ReleaseState, StepStatus

SECOND = timedelta(seconds=1)


def release(*shares: int, opened: int = 1, gate: Gate | None = None) -> Release:
    shares = shares or (1000, 10_000)
    return Release(
        name=ReleaseName("acme", "r1"),
        version=VersionName("acme", "genres", "1.0.0"),
        policy_json="",
        shares=shares,
        gate=gate or Gate(),
        salt=b"0" * 16,
        create_time=START,
        creator="me",
        steps=tuple(StepStatus(share, START) for share in shares[:opened]),
    )


def at(
    counts: Counts, *, of: Release | None = None, selected: int = 100, fleet: int = 100, after_s: float = 0
) -> Decision:
    return decide(of or release(), counts, selected, fleet, START + timedelta(seconds=after_s))


def test_it_holds_until_enough_have_confirmed_and_says_the_figures() -> None:
    decision = at(Counts(targeted=20, confirmed=18, activated=2))
    assert isinstance(decision, Hold)
    assert decision.until == START + timedelta(hours=24)
    assert decision.reason == (
        "step 1 of 2 (10 % of the selected devices): 18 of 20 devices confirmed (90 %, the gate wants 95 %), "
        "0 failed"
    )


FAILED = (FailureCount("EXCEPTION", 2), FailureCount("TIMEOUT", 1))


def test_it_says_why_devices_failed_when_it_rolls_back() -> None:
    decision = at(Counts(targeted=20, confirmed=1, failed=3, failures=FAILED))
    assert decision == RollBack(
        "step 1 of 2 (10 % of the selected devices): 3 of 4 devices that confirmed or failed have failed "
        "(75 %), more than the 5 % that the gate allows; most often EXCEPTION (2 devices)"
    )


def test_it_says_why_devices_failed_while_it_holds_and_when_it_pauses() -> None:
    lenient = release(gate=Gate(failed_percent=90, step_timeout=timedelta(seconds=9)))
    counts = Counts(targeted=4, confirmed=1, failed=1, failures=FAILED[1:])
    holding, paused = at(counts, of=lenient), at(counts, of=lenient, after_s=9)
    assert isinstance(holding, Hold)
    assert holding.reason.endswith("1 failed, most often TIMEOUT (1 device)")
    assert isinstance(paused, Pause)
    assert "most often TIMEOUT (1 device); it hasn't met its gate within 9 s" in paused.reason


def test_reaching_the_percentage_exactly_opens_the_next_step() -> None:
    assert isinstance(at(Counts(targeted=20, confirmed=19)), Advance)


def test_the_last_step_ends_it() -> None:
    done = at(Counts(targeted=20, confirmed=20), of=release(1000, 10_000, opened=2))
    assert isinstance(done, Succeed)


@pytest.mark.parametrize(
    ("confirmed", "failed", "rolls_back"), [(95, 5, False), (94, 6, True), (0, 1, True), (19, 1, False)]
)
def test_failing_more_than_allowed_rolls_back(confirmed: int, failed: int, rolls_back: bool) -> None:
    decision = at(Counts(targeted=1000, confirmed=confirmed, failed=failed))
    assert isinstance(decision, RollBack) == rolls_back


def test_failures_are_judged_once_enough_have_reported_or_all_have() -> None:
    strict = release(gate=Gate(min_report_count=10))
    assert isinstance(at(Counts(targeted=20, failed=9), of=strict), Hold)
    assert isinstance(at(Counts(targeted=20, failed=10), of=strict), RollBack)
    assert isinstance(at(Counts(targeted=3, failed=3), of=strict), RollBack)


def test_it_rolls_back_even_when_enough_have_confirmed() -> None:
    lenient = release(gate=Gate(confirmed_percent=50))
    assert isinstance(at(Counts(targeted=100, confirmed=60, failed=10), of=lenient), RollBack)


def test_it_soaks_before_the_next_step_and_wakes_when_it_is_over() -> None:
    soaking = release(gate=Gate(soak_time=60 * SECOND))
    decision = at(Counts(targeted=1, confirmed=1), of=soaking, after_s=20)
    assert isinstance(decision, Hold)
    assert decision.until == START + 60 * SECOND
    assert "another 40 s of 60 s" in decision.reason
    assert isinstance(at(Counts(targeted=1, confirmed=1), of=soaking, after_s=60), Advance)


def test_a_step_that_takes_too_long_pauses_and_resuming_gives_it_as_long_again() -> None:
    timed = release(gate=Gate(step_timeout=100 * SECOND))
    assert isinstance(at(Counts(targeted=2, confirmed=1), of=timed, after_s=99), Hold)
    paused = at(Counts(targeted=2, confirmed=1), of=timed, after_s=100)
    assert isinstance(paused, Pause)
    assert "1 of 2 devices confirmed" in paused.reason
    assert "within 100 s" in paused.reason
    resumed = replace(timed, resume_time=START + 100 * SECOND)
    assert isinstance(at(Counts(targeted=2, confirmed=1), of=resumed, after_s=199), Hold)
    assert isinstance(at(Counts(targeted=2, confirmed=1), of=resumed, after_s=200), Pause)


@pytest.mark.parametrize(("fleet", "says"), [(0, "has no devices yet"), (7, "selects none of 7 devices")])
def test_selecting_no_device_holds_and_says_so(fleet: int, says: str) -> None:
    decision = at(Counts(), selected=0, fleet=fleet)
    assert isinstance(decision, Hold)
    assert says in decision.reason


def test_an_empty_share_of_a_fleet_that_is_selected_is_passed_over() -> None:
    decision = at(Counts(), selected=3)
    assert isinstance(decision, Advance)
    assert "none of the 3 devices selected falls into this share" in decision.reason


@pytest.mark.parametrize("state", [state for state in ReleaseState if state is not ReleaseState.RUNNING])
def test_only_a_running_release_is_moved(state: ReleaseState) -> None:
    other = replace(release(), state=state, state_reason="because")
    assert decide(other, Counts(targeted=1, failed=1), 1, 1, START) == Hold("because", None)


stages = st.integers(0, 50)


@given(stages, stages, stages, stages, st.floats(0, 100), st.floats(0, 100), st.integers(1, 60))
def test_it_never_goes_on_against_its_gate(
    waiting: int, activated: int, confirmed: int, failed: int, want: float, allow: float, least: int
) -> None:
    targeted = waiting + activated + confirmed + failed
    counts = Counts(targeted=targeted, activated=activated, confirmed=confirmed, failed=failed)
    gate = Gate(confirmed_percent=want, failed_percent=allow, min_report_count=least)
    decision = at(counts, of=release(gate=gate), selected=targeted + 1, fleet=targeted + 1)
    judged = confirmed + failed
    broken = failed and judged >= min(least, targeted) and 100 * failed / judged > allow
    assert isinstance(decision, RollBack) == bool(broken)
    if isinstance(decision, Advance) and targeted:
        assert 100 * confirmed / targeted >= want

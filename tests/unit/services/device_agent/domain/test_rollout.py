"""What becomes of versions.

        r1: v1            r2: v2             r3: v3
(none) ───────► v1 ──────────────► v2 ──────────────► v3
                ACTIVE             ACTIVE             ACTIVE
                CONFIRMED    v1 ─► PREVIOUS     v2 ─► PREVIOUS, v1 gone
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.task.manifest import CheckedHealth
from services.device_agent.domain.rollout import (
    Entry,
    State,
    Succession,
    Verdict,
    Version,
    after_run,
    idle_left,
    judge,
    needed_folders,
    plan_changes,
    succeed,
)

HEALTH = CheckedHealth(confirm_run_count=2, confirm_idle_s=60.0, max_failure_count=3)


def version(name, state, task="t", release="r1", digest="d", **counts):
    return Version(task, name, state, release, f"{digest}-{name}", **counts)


def entry(name, task="t", release="r1", digest="d"):
    return Entry(task, name, f"{digest}-{name}", release)


def test_an_empty_device_installs_everything():
    changes = plan_changes([], [entry("1"), entry("1", task="u")])
    assert changes.install == (entry("1"), entry("1", task="u"))
    assert changes.remove == changes.relabel == changes.failed == ()


@pytest.mark.parametrize("state", [State.ACTIVE, State.CONFIRMED])
def test_what_runs_stays(state):
    changes = plan_changes([version("1", state)], [entry("1")])
    assert changes == plan_changes([], [])


def test_what_runs_for_another_release_is_relabelled():
    assert plan_changes([version("1", State.CONFIRMED)], [entry("1", release="r2")]).relabel == (
        entry("1", release="r2"),
    )


@pytest.mark.parametrize("state", [State.STAGED, State.PREVIOUS])
def test_what_is_in_place_and_does_not_run_is_installed(state):
    assert plan_changes([version("1", state)], [entry("1")]).install == (entry("1"),)


def test_a_failed_version_is_left_alone_under_its_release_only():
    here = [version("1", State.FAILED)]
    assert plan_changes(here, [entry("1")]).failed == (entry("1"),)
    assert plan_changes(here, [entry("1", release="r2")]).install == (entry("1", release="r2"),)


def test_a_version_never_changes_its_manifest():
    other = entry("1", digest="other")
    assert plan_changes([version("1", State.CONFIRMED)], [other]).refused == (other,)
    # Nothing of a failed one is left that could be mixed up; a new release may bring another.
    again = entry("1", digest="other", release="r2")
    assert plan_changes([version("1", State.FAILED)], [again]).install == (again,)


def test_tasks_that_the_set_lacks_go_and_notes_of_failures_stay():
    here = [version("1", State.ACTIVE), version("1", State.FAILED, task="u")]
    assert plan_changes(here, []).remove == ("t",)


def test_what_was_staged_for_an_earlier_set_goes():
    here = [version("1", State.CONFIRMED), version("2", State.STAGED)]
    assert plan_changes(here, [entry("1")]).unstage == (here[1],)
    assert plan_changes(here, [entry("2")]).unstage == ()


def test_the_first_version_succeeds_nobody():
    assert succeed([version("1", State.STAGED)], entry("1")) == Succession(None, False, ())


def test_a_confirmed_version_is_kept_and_the_one_before_it_goes():
    here = [version("1", State.PREVIOUS), version("2", State.CONFIRMED), version("3", State.STAGED)]
    assert succeed(here, entry("3")) == Succession("2", True, ("1",))


def test_an_unconfirmed_version_is_not_kept_and_the_one_before_it_is():
    here = [version("1", State.PREVIOUS), version("2", State.ACTIVE), version("3", State.STAGED)]
    assert succeed(here, entry("3")) == Succession("2", False, ("2",))


@pytest.mark.parametrize("state", [State.ACTIVE, State.CONFIRMED])
def test_going_back_does_not_keep_what_was_withdrawn(state):
    here = [version("1", State.PREVIOUS), version("2", state)]
    assert succeed(here, entry("1")) == Succession("2", False, ("2",))


def test_other_tasks_and_failed_notes_are_left_alone():
    here = [version("1", State.CONFIRMED, task="u"), version("1", State.FAILED), version("2", State.STAGED)]
    assert succeed(here, entry("2")) == Succession(None, False, ())


def test_enough_successes_confirm():
    running, verdict = after_run(version("1", State.ACTIVE), HEALTH, ok=True)
    assert verdict is Verdict.NOTHING
    running, verdict = after_run(running, HEALTH, ok=True)
    assert verdict is Verdict.CONFIRM
    assert (running.success_count, running.failures_in_a_row) == (2, 0)


@pytest.mark.parametrize("state", [State.ACTIVE, State.CONFIRMED])
def test_failures_in_a_row_roll_back_also_after_the_confirmation(state):
    running = version("1", state)
    for expected in (Verdict.NOTHING, Verdict.NOTHING, Verdict.ROLL_BACK):
        running, verdict = after_run(running, HEALTH, ok=False)
        assert verdict is expected
    assert running.failure_count == 3


@pytest.mark.parametrize("state", [State.PREVIOUS, State.STAGED])
def test_late_runs_of_a_version_that_does_not_run_count_and_decide_nothing(state):
    late, verdict = after_run(version("1", state, failures_in_a_row=9), HEALTH, ok=False)
    assert verdict is Verdict.NOTHING
    assert late.failure_count == 1


def test_idle_time_confirms_unless_something_has_failed_since():
    idle = version("1", State.ACTIVE, idle_s=60.0)
    assert judge(idle, HEALTH) is Verdict.CONFIRM
    assert judge(replace(idle, failures_in_a_row=1), HEALTH) is Verdict.NOTHING
    assert judge(replace(idle, state=State.CONFIRMED), HEALTH) is Verdict.NOTHING
    assert idle_left(replace(idle, idle_s=45.0), HEALTH) == 15.0
    assert idle_left(replace(idle, idle_s=90.0), HEALTH) == 0.0


def test_folders_of_failed_versions_are_not_needed():
    here = [version("1", State.PREVIOUS), version("2", State.ACTIVE), version("3", State.FAILED)]
    assert needed_folders(here) == {"t": {"1", "2"}}


names = st.sampled_from(["1", "2", "3", "4"])


@given(st.lists(st.tuples(names, st.booleans(), st.booleans()), max_size=12))
def test_whatever_is_activated_at_most_one_version_runs_and_one_is_kept(steps):
    """Walks through activations, confirmations and roll-backs as the store carries them out."""
    here: dict[str, Version] = {}
    for name, confirms, fails in steps:
        runs = next((v for v in here.values() if v.state.runs), None)
        if runs is None or runs.version != name:
            if name not in here or here[name].state is State.FAILED:
                here[name] = version(name, State.STAGED)
            succession = succeed(here.values(), entry(name))
            for gone in succession.drop:
                del here[gone]
            if succession.running is not None and succession.keep_running_as_previous:
                here[succession.running] = replace(here[succession.running], state=State.PREVIOUS)
            here[name] = replace(here[name], state=State.ACTIVE)
        if confirms:
            here[name] = replace(here[name], state=State.CONFIRMED)
        if fails:
            here[name] = replace(here[name], state=State.FAILED)
            for v in list(here.values()):
                if v.state is State.PREVIOUS:
                    here[v.version] = replace(v, state=State.CONFIRMED)
        states = [v.state for v in here.values()]
        assert sum(state.runs for state in states) <= 1
        assert states.count(State.PREVIOUS) <= 1
        assert State.STAGED not in states
        assert here[name].state is (
            State.FAILED if fails else State.CONFIRMED if confirms else here[name].state
        )

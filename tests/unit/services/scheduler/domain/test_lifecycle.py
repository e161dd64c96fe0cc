"""What becomes of a job, by what its workers say."""

from dataclasses import replace
from datetime import timedelta

import pytest

from libs.common.names import JobName, NodeName
from libs.common.testing import FakeRandomness
from services.scheduler.domain import lifecycle
from services.scheduler.domain.lifecycle import Report
from services.scheduler.domain.objects import Artefact, Job, JobState, Worker, WorkerId, WorkerState
from services.scheduler.testing import BEGIN, make_job, make_node, make_queue
from services.scheduler.testing_world import World, world_of

NAME = JobName("acme", "j0")
NODE = NodeName("n0")


def running(workers: int = 1, **spec: object) -> World:
    """A world whose job runs."""
    made = world_of(make_node(), queues=(make_queue(),), jobs=(make_job(workers=workers, **spec),))  # type: ignore[arg-type]
    made.decide(BEGIN)
    for rank in range(workers):
        made.say(NAME, BEGIN, **{f"r{rank}": Worker(rank, NODE, WorkerState.RUNNING)})
    return made


def the(made: World) -> Job:
    return made.snapshot.jobs[NAME]


def exited(rank: int, code: int = 0, reason: str = "", after_s: float = 1) -> Worker:
    end = BEGIN + timedelta(seconds=after_s)
    return Worker(rank, NODE, WorkerState.EXITED, code, reason, end_time=end)


@pytest.mark.parametrize(
    ("worker", "state", "reason"),
    [
        pytest.param(exited(0), JobState.SUCCEEDED, "", id="well"),
        pytest.param(exited(0, 1), JobState.FAILED, "EXIT_CODE", id="exit code"),
        pytest.param(exited(0, 139), JobState.PENDING, "SIGNAL", id="signal"),
        pytest.param(exited(0, 137, "OUT_OF_MEMORY"), JobState.PENDING, "OUT_OF_MEMORY", id="memory"),
        pytest.param(exited(0, 143, "DEADLINE"), JobState.FAILED, "DEADLINE", id="deadline"),
        pytest.param(
            Worker(0, NODE, WorkerState.FAILED, 127, "START_FAILED"),
            JobState.FAILED,
            "START_FAILED",
            id="no program",
        ),
        pytest.param(
            Worker(0, NODE, WorkerState.FAILED, 0, "START_FAILED"),
            JobState.PENDING,
            "START_FAILED",
            id="no file",
        ),
        pytest.param(Worker(0, NODE, WorkerState.FAILED, 0, "LOST"), JobState.PENDING, "LOST", id="lost"),
        pytest.param(
            exited(0, 0, "ARTEFACT_MISSING"), JobState.FAILED, "ARTEFACT_MISSING", id="artefact missing"
        ),
    ],
)
def test_how_an_attempt_ends_with_a_retry_left(worker: Worker, state: JobState, reason: str) -> None:
    made = running(retry_count=1)
    made.say(NAME, BEGIN, r0=worker)
    status = the(made).status
    assert (status.state, status.reason) == (state, reason)
    assert status.reservation is None
    assert (status.retry_time is not None) == (state is JobState.PENDING)
    assert (status.end_time is not None) == state.ended
    made.check()


def test_a_job_runs_once_every_worker_does() -> None:
    made = world_of(make_node(), queues=(make_queue(),), jobs=(make_job(workers=2),))
    made.decide(BEGIN)
    made.say(NAME, BEGIN, r0=Worker(0, NODE, WorkerState.RUNNING))
    assert the(made).status.state is JobState.STARTING
    made.say(NAME, BEGIN, r1=Worker(1, NODE, WorkerState.RUNNING))
    assert the(made).status.state is JobState.RUNNING
    made.say(NAME, BEGIN, r0=exited(0))
    assert the(made).status.state is JobState.RUNNING, "the other goes on"


def test_the_first_failure_is_the_cause() -> None:
    made = running(3)
    made.say(NAME, BEGIN, r1=exited(1, 7, after_s=1))
    assert the(made).status.state is JobState.STOPPING
    assert lifecycle.stop_reason(the(made), BEGIN) == "SIBLING_FAILED"
    made.say(NAME, BEGIN, r0=exited(0, 143, "SIBLING_FAILED", after_s=0), r2=exited(2, 9, after_s=2))
    assert the(made).status.message == "worker 1 on nodes/n0 exited with 7"


def test_old_reports_change_nothing() -> None:
    made = running()
    before = made.snapshot
    made.say(NAME, BEGIN, r0=Worker(0, NODE, WorkerState.STARTING))
    assert made.snapshot is before
    job = the(made)
    ended = lifecycle.reported(job, [Report(WorkerId(NAME, job.meta.uid, 1, 0), exited(0))])
    again = lifecycle.reported(ended, [Report(WorkerId(NAME, job.meta.uid, 1, 0), exited(0, 5))])
    assert again == ended, "what has ended stays as it was"


@pytest.mark.parametrize(
    "worker",
    [
        WorkerId(NAME, "another", 1, 0),
        WorkerId(NAME, "uidj0", 2, 0),
        WorkerId(NAME, "uidj0", 0, 0),
        WorkerId(NAME, "uidj0", 1, 1),
    ],
)
def test_reports_of_others_are_none_of_a_job(worker: WorkerId) -> None:
    assert lifecycle.is_of(the(running()), WorkerId(NAME, "uidj0", 1, 0))
    assert not lifecycle.is_of(the(running()), worker)
    assert not lifecycle.is_of(None, worker)


def test_retries_are_counted_and_spread() -> None:
    made = running(retry_count=2)
    waits = []
    now = BEGIN
    for _ in range(2):
        made.say(NAME, now, r0=exited(0, 137))
        retry_time = the(made).status.retry_time
        assert retry_time is not None
        waits.append((retry_time - now).total_seconds())
        now = retry_time
        made.decide(now)
    made.say(NAME, now, r0=exited(0, 137))
    status = the(made).status
    assert (status.state, status.attempt) == (JobState.FAILED, 3)
    assert all(0.1 <= wait <= 4.1 for wait in waits)


def test_the_deadline_counts_over_attempts() -> None:
    made = running(retry_count=5, deadline=timedelta(seconds=60))
    made.say(NAME, BEGIN, r0=exited(0, 137))
    late = BEGIN + timedelta(seconds=61)
    made.say(NAME, late)
    status = the(made).status
    assert (status.state, status.reason) == (JobState.FAILED, "DEADLINE")


def test_a_late_job_is_stopped_and_fails_for_its_deadline() -> None:
    made = running(deadline=timedelta(seconds=60), retry_count=3)
    late = BEGIN + timedelta(seconds=60)
    assert lifecycle.next_time(the(made)) == late
    made.say(NAME, late)
    assert (the(made).status.state, the(made).status.reason) == (JobState.STOPPING, "DEADLINE")
    made.say(NAME, late, r0=exited(0, 143, "CANCELLED"))
    assert (the(made).status.state, the(made).status.reason) == (JobState.FAILED, "DEADLINE")


@pytest.mark.parametrize(
    ("span", "told"),
    [
        (timedelta(seconds=1), "1 s"),
        (timedelta(seconds=0.5), "0.5 s"),
        (timedelta(minutes=90), "1 h 30 min"),
        (timedelta(days=2, seconds=59), "2 d 59 s"),
    ],
)
def test_a_deadline_is_told_for_people(span: timedelta, told: str) -> None:
    made = running(deadline=span)
    made.say(NAME, BEGIN + span, r0=exited(0, 143, "DEADLINE"))
    assert the(made).status.message == f"its deadline of {told} has passed"


def test_a_cancelled_job_that_succeeds_first_has_succeeded() -> None:
    made = running()
    job = the(made)
    made.snapshot = replace(made.snapshot, jobs={NAME: replace(job, spec=replace(job.spec, cancelled=True))})
    made.say(NAME, BEGIN, r0=exited(0))
    assert the(made).status.state is JobState.SUCCEEDED


def test_a_missing_artefact_is_named() -> None:
    made = running(artefacts=(Artefact("model", "m.onnx"),))
    made.say(NAME, BEGIN, r0=exited(0))
    status = the(made).status
    assert (status.state, status.reason) == (JobState.FAILED, "ARTEFACT_MISSING")
    assert "model" in status.message


def test_nothing_is_written_for_a_job_that_stays_as_it_is() -> None:
    made = running()
    assert lifecycle.advance(the(made), made.snapshot, BEGIN, FakeRandomness()) is None


def test_what_runners_say_is_kept_short_and_printable() -> None:
    made = running(2)
    said = replace(exited(0, 3), message="bad\0\n" + "x" * 5000, reason="R" * 100)
    made.say(NAME, BEGIN, r0=said)
    worker = the(made).status.workers[0]
    assert worker.message.startswith("bad  xxx")
    assert worker.message.endswith("x…")
    assert len(worker.message) == 256
    assert len(worker.reason) == 64


def test_a_change_that_is_too_large_says_less() -> None:
    made = running(2)
    job = the(made)
    said = lifecycle.reported(
        job, [Report(WorkerId(NAME, job.meta.uid, 1, 0), replace(exited(0, 3), message="why"))]
    )
    change = lifecycle.advance(said, made.snapshot, BEGIN, FakeRandomness())
    assert change is not None
    (less,) = lifecycle.without_messages(change).puts
    assert isinstance(less, Job)
    assert [worker.message for worker in less.status.workers] == ["", ""]
    assert "why" in less.status.message

"""What is said of a job that somebody cancelled, before the scheduler has taken that up."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from libs.common.errors import Precondition
from libs.common.names import JobName
from libs.common.testing import FakeClock, FakeRandomness
from services.scheduler.domain.change import Change
from services.scheduler.domain.creates import Writer
from services.scheduler.domain.decisions import Decisions
from services.scheduler.domain.jobs import Jobs
from services.scheduler.domain.logs import Logs
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.objects import Job, JobState
from services.scheduler.log_files import SegmentedLogFiles
from services.scheduler.pins import NoPins
from services.scheduler.stores.memory import MemoryStore
from services.scheduler.testing import make_job, make_queue

NAME = JobName("acme", "j0")


@dataclass
class Parts:
    store: MemoryStore
    mirror: Mirror
    jobs: Jobs

    async def holds(self, state: JobState) -> None:
        """Store a job in a state; nothing moves it on."""
        job = make_job()
        assert job.name == NAME
        await self.write(replace(job, status=replace(job.status, state=state)))

    async def write(self, job: Job) -> None:
        """Store a job as it is."""
        revision = await self.store.commit(Change(puts=(job,)))
        assert revision is not None
        await self.mirror.reached(revision)


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    store, clock, randomness = MemoryStore(), FakeClock(), FakeRandomness()
    await store.commit(Change(puts=(make_queue(),)))
    mirror = Mirror(store, clock, randomness)
    following = asyncio.create_task(mirror.run())
    await mirror.reached(1)
    logs = Logs(SegmentedLogFiles(tmp_path, keep_bytes=1024), mirror, clock)
    decisions = Decisions(mirror, clock, lambda seconds: None)
    jobs = Jobs(Writer(store, mirror), mirror, decisions, logs, NoPins(), clock, randomness)
    yield Parts(store, mirror, jobs)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (JobState.PENDING, JobState.PENDING),
        (JobState.STARTING, JobState.STOPPING),
        (JobState.RUNNING, JobState.STOPPING),
        (JobState.STOPPING, JobState.STOPPING),
    ],
)
async def test_it_is_being_cancelled_at_once(parts: Parts, state: JobState, shown: JobState) -> None:
    await parts.holds(state)
    answer = await parts.jobs.cancel(NAME)
    for view in (answer, await parts.jobs.get(NAME), (await parts.jobs.list_jobs("acme", "", 9))[0]):
        status = view.job.status
        assert view.job.spec.cancelled
        assert (status.state, status.reason, status.message) == (shown, "CANCELLED", "being cancelled")
        assert view.pending == ()
    explained = await parts.jobs.explain(NAME)
    assert explained.view.pending == ()
    assert explained.summary.endswith("Being cancelled.")
    stored = parts.mirror.snapshot.jobs[NAME]
    assert stored.status.state is state, "only the leader moves it"


@pytest.mark.parametrize("state", [state for state in JobState if state.ended])
async def test_one_that_has_ended_stays_as_it_is(parts: Parts, state: JobState) -> None:
    await parts.holds(state)
    before = await parts.jobs.get(NAME)
    assert await parts.jobs.cancel(NAME) == before
    assert (before.job.status.state, before.job.status.message) == (state, "")


async def test_deleting_says_to_cancel_only_what_isnt_ending_yet(parts: Parts) -> None:
    await parts.holds(JobState.RUNNING)
    with pytest.raises(Precondition, match=r"is running; cancel it, and delete it when it has ended$"):
        await parts.jobs.delete(NAME, "")
    await parts.jobs.cancel(NAME)
    with pytest.raises(Precondition, match=r"is being cancelled; delete it when it has ended$"):
        await parts.jobs.delete(NAME, "")


async def test_deleting_what_stops_by_itself_says_to_wait(parts: Parts) -> None:
    await parts.holds(JobState.STOPPING)
    with pytest.raises(Precondition, match=r"is stopping; delete it when it has ended$"):
        await parts.jobs.delete(NAME, "")

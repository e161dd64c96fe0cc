"""Readers that follow a log end when nothing more can come, however much happens elsewhere."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from libs.common.testing import FakeClock, FakeRandomness
from services.scheduler.domain.change import Change
from services.scheduler.domain.logs import Logs
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.objects import Job, JobState, WorkerId, WorkerState
from services.scheduler.log_files import SegmentedLogFiles
from services.scheduler.stores.memory import MemoryStore
from services.scheduler.testing import hold, make_job, make_node, make_queue


@dataclass
class Following:
    """A job that runs, and its log."""

    store: MemoryStore
    mirror: Mirror
    clock: FakeClock
    logs: Logs
    job: Job

    async def commit(self, change: Change) -> None:
        await self.mirror.reached(await self.store.commit(change))

    async def follow(self) -> bytes:
        parts = self.logs.read(self.job.name, 0, 0, 0, follow=True)
        return b"".join([part.data async for part in parts])

    async def append(self, offset: int, data: bytes, *, last: bool = False) -> None:
        worker = WorkerId(self.job.name, self.job.meta.uid, 1, 0)
        await self.logs.append(worker, offset, data, last=last)

    async def end(self) -> None:
        """Have the job's worker exit."""
        job = self.mirror.snapshot.jobs[self.job.name]
        workers = tuple(replace(worker, state=WorkerState.EXITED) for worker in job.status.workers)
        await self.commit(
            Change(puts=(replace(job, status=replace(job.status, state=JobState.FAILED, workers=workers)),))
        )


@pytest.fixture
async def following(tmp_path: Path) -> AsyncIterator[Following]:
    store, clock = MemoryStore(), FakeClock()
    job, reservation, nodes = hold(make_job(), (make_node(), ()))
    await store.commit(Change(puts=(make_queue(), job, reservation, *nodes)))
    mirror = Mirror(store, clock, FakeRandomness())
    running = asyncio.create_task(mirror.run())
    await mirror.reached(1)
    logs = Logs(SegmentedLogFiles(tmp_path, keep_bytes=1024), mirror, clock)
    try:
        yield Following(store, mirror, clock, logs, job)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_log_that_is_complete_ends_its_readers(following: Following) -> None:
    reading = asyncio.create_task(following.follow())
    await following.append(0, b"one")
    await following.append(3, b"two", last=True)
    async with asyncio.timeout(60):
        assert await reading == b"onetwo"


async def test_last_words_are_waited_for_after_the_end(following: Following) -> None:
    await following.append(0, b"one")
    await following.end()
    reading = asyncio.create_task(following.follow())
    await following.clock.wait_for_sleepers()
    following.clock.advance(9.0)
    await following.append(3, b"two", last=True)
    async with asyncio.timeout(60):
        assert await reading == b"onetwo"


async def test_changes_elsewhere_do_not_put_off_the_end_of_a_reader(following: Following) -> None:
    await following.append(0, b"one")
    await following.end()
    reading = asyncio.create_task(following.follow())
    for i in range(3):
        await following.clock.wait_for_sleepers()
        following.clock.advance(4.0)
        if not reading.done():
            await following.commit(Change(puts=(make_job(f"other{i}"),)))
    async with asyncio.timeout(60):
        assert await reading == b"one"
    assert following.clock.monotonic() == 12.0

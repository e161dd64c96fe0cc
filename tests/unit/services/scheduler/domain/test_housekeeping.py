"""What is tidied up, and that one thing that can't be doesn't keep the others from it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libs.common.errors import Unavailable
from libs.common.testing import FakeClock, FakeRandomness
from services.scheduler.domain.change import Change
from services.scheduler.domain.creates import Writer
from services.scheduler.domain.decisions import Decisions
from services.scheduler.domain.housekeeping import REMEMBERED, Housekeeping
from services.scheduler.domain.jobs import Jobs
from services.scheduler.domain.logs import LogKey, Logs
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.objects import PastRequest
from services.scheduler.log_files import SegmentedLogFiles
from services.scheduler.pins import NoPins
from services.scheduler.store import Term
from services.scheduler.stores.memory import MemoryStore

ORPHAN = LogKey("acme", "gone", 1, 0)


class KeepsRequests(MemoryStore):
    """A store that refuses to remove requests."""

    refuses = False

    async def commit(self, change: Change, term: Term | None = None) -> int:
        if self.refuses and change.deletes:
            raise Unavailable("away")
        return await super().commit(change, term)


class Kept:
    """What a sweep is tried on."""

    def __init__(self, folder: Path) -> None:
        self.store, self.clock, self.leads = KeepsRequests(), FakeClock(), True
        self.mirror = Mirror(self.store, self.clock, FakeRandomness())
        self.files = SegmentedLogFiles(folder, keep_bytes=1024)
        logs = Logs(self.files, self.mirror, self.clock)
        decisions = Decisions(self.mirror, self.clock, lambda seconds: None)
        writer = Writer(self.store, self.mirror)
        jobs = Jobs(writer, self.mirror, decisions, logs, NoPins(), self.clock, FakeRandomness())
        self.housekeeping = Housekeeping(
            self.store, self.mirror, jobs, logs, self.clock, lambda: self.leads, interval_s=60.0
        )

    async def remember(self, *digests: str) -> None:
        """Put requests into the store, all of now."""
        requests = [PastRequest("acme", digest, "f", "r", self.clock.now()) for digest in digests]
        await self.mirror.reached(await self.store.commit(Change(puts=requests)))

    async def remembered(self) -> list[str]:
        events = (await self.store.load()).events
        return [event.value.digest for event in events if isinstance(event.value, PastRequest)]


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    made = Kept(tmp_path)
    made.files.append(ORPHAN, 0, b"old", last=True)
    async with running(made.mirror.run()):
        yield made


@asynccontextmanager
async def running(work: object) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)  # type: ignore[call-overload]
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_old_request_ids_go_and_younger_ones_stay(kept: Kept) -> None:
    await kept.remember("old", "older")
    kept.clock.advance(REMEMBERED.total_seconds() + 1)
    await kept.remember("young")
    await kept.housekeeping.sweep()
    assert await kept.remembered() == ["young"]
    assert kept.files.jobs() == []


async def test_only_the_leader_forgets_but_every_replica_removes_its_logs(kept: Kept) -> None:
    kept.leads = False
    await kept.remember("old")
    kept.clock.advance(REMEMBERED.total_seconds() + 1)
    await kept.housekeeping.sweep()
    assert await kept.remembered() == ["old"]
    assert kept.files.jobs() == []


async def test_a_store_that_is_away_keeps_nothing_else_from_going(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    await kept.remember("old")
    kept.clock.advance(REMEMBERED.total_seconds() + 1)
    kept.store.refuses = True
    async with running(kept.housekeeping.run()):
        await kept.clock.wait_for_sleepers()
        assert kept.files.jobs() == []
        assert await kept.remembered() == ["old"]
        kept.store.refuses = False
        kept.clock.advance(60.0)
        await kept.clock.wait_for_sleepers()
        assert await kept.remembered() == []
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.exc_info for record in told] == [None], "what is expected is told without a traceback"

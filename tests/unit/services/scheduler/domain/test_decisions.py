"""One decision for each state, however many ask."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest

from libs.common.testing import FakeClock, FakeRandomness, eventually
from services.scheduler.domain import decisions as module
from services.scheduler.domain.change import Change
from services.scheduler.domain.creates import Writer
from services.scheduler.domain.crowding import Fits
from services.scheduler.domain.decide import Decision, decide
from services.scheduler.domain.decisions import Decisions
from services.scheduler.domain.jobs import Jobs
from services.scheduler.domain.logs import Logs
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.reasons import Kind
from services.scheduler.domain.snapshot import Snapshot
from services.scheduler.log_files import SegmentedLogFiles
from services.scheduler.pins import NoPins
from services.scheduler.stores.memory import MemoryStore
from services.scheduler.testing import make_job, make_queue


@dataclass
class Deciding:
    """What stands for `decide`: each call waits to be let go on."""

    asked: list[int] = field(default_factory=list)
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __call__(self, snapshot: Snapshot, now: datetime, fits: Fits) -> Decision:
        self.asked.append(snapshot.revision)
        assert self.go.acquire(timeout=60)
        return decide(snapshot, now, fits)


@pytest.fixture
def deciding(monkeypatch: pytest.MonkeyPatch) -> Deciding:
    made = Deciding()
    monkeypatch.setattr(module, "decide", made)
    return made


@dataclass(frozen=True)
class Parts:
    store: MemoryStore
    mirror: Mirror
    decisions: Decisions

    async def move(self, name: str) -> int:
        """Submit a job and return the revision that the mirror has come to."""
        revision = await self.store.commit(Change(puts=(make_job(name),)))
        await self.mirror.reached(revision)
        return revision


@asynccontextmanager
async def parts() -> AsyncIterator[Parts]:
    store, clock = MemoryStore(), FakeClock()
    await store.commit(Change(puts=(make_queue(),)))
    mirror = Mirror(store, clock, FakeRandomness())
    following = asyncio.create_task(mirror.run())
    await mirror.reached(1)
    try:
        yield Parts(store, mirror, Decisions(mirror, clock, lambda seconds: None))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_state_is_decided_once(deciding: Deciding) -> None:
    deciding.go.release()
    async with parts() as made:
        first = await made.decisions.now()
        assert await made.decisions.now() is first
    assert len(deciding.asked) == 1


async def test_those_who_ask_while_one_is_made_share_the_next(deciding: Deciding) -> None:
    async with parts() as made:
        early = asyncio.create_task(made.decisions.now())
        await eventually(lambda: len(deciding.asked) == 1)
        moved = await made.move("a")
        late = [asyncio.create_task(made.decisions.now()) for _ in range(5)]
        await asyncio.sleep(0)  # they ask
        deciding.go.release()
        await eventually(lambda: len(deciding.asked) == 2)
        # The next one is out of date as well before it is made.
        await made.move("b")
        deciding.go.release()
        found = await asyncio.gather(*late)
        assert len(deciding.asked) == 2
        assert {id(decision) for decision in found} == {id(found[0])}
        assert found[0].snapshot.revision == moved
        assert (await early).snapshot.revision < moved
        deciding.go.release()
        assert (await made.decisions.now()).snapshot is made.mirror.snapshot


async def test_a_decision_that_was_given_up_is_made_again(deciding: Deciding) -> None:
    async with parts() as made:
        given_up = asyncio.create_task(made.decisions.now())
        await eventually(lambda: len(deciding.asked) == 1)
        waiting = asyncio.create_task(made.decisions.now())
        await asyncio.sleep(0)  # it asks
        given_up.cancel()
        deciding.go.release(2)
        assert (await waiting).snapshot is made.mirror.snapshot
        assert len(deciding.asked) == 2


async def test_a_list_of_jobs_takes_one_decision(deciding: Deciding, tmp_path: Path) -> None:
    async with parts() as made:
        for name in ("a", "b", "c"):
            await made.move(name)
        clock, randomness = FakeClock(), FakeRandomness()
        logs = Logs(SegmentedLogFiles(tmp_path, keep_bytes=1024), made.mirror, clock)
        writer = Writer(made.store, made.mirror)
        jobs = Jobs(writer, made.mirror, made.decisions, logs, NoPins(), clock, randomness)
        listing = asyncio.create_task(jobs.list_jobs("acme", "", 10))
        await eventually(lambda: len(deciding.asked) == 1)
        await made.move("d")
        deciding.go.release()
        views = await listing
        assert len(deciding.asked) == 1
        assert [view.job.name.job for view in views] == ["a", "b", "c"]
        assert {view.pending[0].kind for view in views} == {Kind.NO_NODE_FITS}

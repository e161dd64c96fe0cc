"""The state in memory follows the store: over its changes, its lost history and its absence."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest

from libs.common.errors import Unavailable
from libs.common.names import NodeName
from libs.common.testing import FakeClock, FakeRandomness
from services.scheduler.domain.change import Change
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.objects import NodeState
from services.scheduler.store import Batch, Leader
from services.scheduler.stores.memory import MemoryStore
from services.scheduler.testing import make_job, make_node, make_queue


class Flaky(MemoryStore):
    """A store that can't be loaded at first."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def load(self) -> Batch:
        if self.failures:
            self.failures -= 1
            raise Unavailable("away")
        return await super().load()


class Watched(MemoryStore):
    """A store that knows how many watches are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = 0

    async def watch(self, after: int) -> AsyncGenerator[Batch, None]:
        self.open += 1
        try:
            async with aclosing(super().watch(after)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self.open -= 1


class Pausing(FakeClock):
    """A clock that notes how many watches are open when somebody begins to wait."""

    def __init__(self, store: Watched) -> None:
        super().__init__()
        self.open: list[int] = []
        self._store = store

    async def sleep(self, seconds: float) -> None:
        self.open.append(self._store.open)
        await super().sleep(seconds)


@asynccontextmanager
async def following(mirror: Mirror) -> AsyncIterator[None]:
    task = asyncio.create_task(mirror.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_holds_what_the_store_holds() -> None:
    store = MemoryStore()
    await store.commit(Change(puts=(make_node(),)))
    mirror = Mirror(store, FakeClock(), FakeRandomness())
    async with following(mirror):
        revision = await store.commit(Change(puts=(make_queue(), make_job())))
        await mirror.reached(revision)
        first = mirror.snapshot
        assert first is mirror.snapshot
        assert (len(first.nodes), len(first.queues), len(first.jobs)) == (1, 1, 1)
        assert first.state_of(NodeName("n0")) is NodeState.LOST
        async with store.lead("here:1"), store.keep_alive(NodeName("n0")):
            await mirror.reached((await store.load()).revision)
            assert mirror.leader == Leader("here:1")
            assert mirror.snapshot.state_of(NodeName("n0")) is NodeState.READY
        assert first.ready == frozenset(), "a snapshot stays as it was"
        job = next(iter(first.jobs.values()))
        await mirror.reached(await store.commit(Change(deletes=(job,))))
        assert not mirror.snapshot.jobs


async def test_listeners_hear_each_change() -> None:
    store = MemoryStore()
    mirror = Mirror(store, FakeClock(), FakeRandomness())
    heard = []
    async with following(mirror):
        await mirror.reached(1)
        with mirror.listening(lambda: heard.append(mirror.revision)):
            revision = await store.commit(Change(puts=(make_queue(),)))
            await mirror.reached(revision)
        await mirror.reached(await store.commit(Change(puts=(make_job(),))))
    assert heard == [revision]


async def test_it_loads_anew_when_history_is_lost() -> None:
    store = MemoryStore()
    mirror = Mirror(store, FakeClock(), FakeRandomness())
    await store.commit(Change(puts=(make_queue("old"),)))
    async with following(mirror):
        await mirror.reached(1)
    old = mirror.snapshot.queues
    (queue,) = old.values()
    await store.commit(Change(puts=(make_node(),), deletes=(queue,)))
    revision = await store.commit(Change(puts=(make_job(),)))
    await store.compact()
    async with following(mirror):
        await mirror.reached(revision)
        assert not mirror.snapshot.queues
        assert set(mirror.snapshot.nodes) == {NodeName("n0")}


async def test_it_tries_until_the_store_is_there() -> None:
    store, clock = Flaky(2), FakeClock()
    mirror = Mirror(store, clock, FakeRandomness())
    async with following(mirror):
        for _ in range(2):
            await clock.wait_for_sleepers()
            clock.advance(2.0)
        await mirror.reached(1)


async def test_a_watch_that_is_left_is_closed_at_once() -> None:
    store = Watched()
    clock = Pausing(store)
    mirror = Mirror(store, clock, FakeRandomness())
    faults = [RuntimeError("a fault of ours")]

    def fail_once() -> None:
        if faults:
            raise faults.pop()

    async with following(mirror):
        await mirror.reached(1)
        with mirror.listening(fail_once):
            await store.commit(Change(puts=(make_queue(),)))
            await clock.wait_for_sleepers()
            assert clock.open == [0]
            clock.advance(1.0)
            await mirror.reached(await store.commit(Change(puts=(make_job(),))))
            assert store.open == 1
    assert store.open == 0


async def test_waiting_for_it_ends() -> None:
    mirror = Mirror(MemoryStore(), FakeClock(), FakeRandomness())
    with pytest.raises(Unavailable, match="can't be followed"):
        await mirror.reached(1, within_s=0.01)


async def test_what_cannot_be_read_stays_as_it_was_read_last() -> None:
    store = MemoryStore()
    node, queue = make_node(), make_queue()
    await store.commit(Change(puts=(node, queue)))
    await store.spoil(NodeName("unknown"))
    mirror = Mirror(store, FakeClock(), FakeRandomness())
    async with following(mirror):
        await mirror.reached(1)
        before = mirror.snapshot
        assert before.unreadable == {NodeName("unknown")}
        await store.spoil(node.name)
        await mirror.reached((await store.load()).revision)
        assert mirror.snapshot.nodes == before.nodes
        assert mirror.snapshot.unreadable == {NodeName("unknown"), node.name}
    await store.commit(Change(puts=(make_job(),)))
    await store.compact()
    async with following(mirror):  # loads anew
        await mirror.reached((await store.load()).revision)
        assert mirror.snapshot.nodes == before.nodes
        await store.mend(replace(node, cordoned=True))
        await mirror.reached((await store.load()).revision)
        assert mirror.snapshot.nodes[node.name].cordoned
        assert mirror.snapshot.unreadable == {NodeName("unknown")}

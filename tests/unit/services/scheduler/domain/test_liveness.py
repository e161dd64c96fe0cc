"""A node's key lives as long as its runner is heard of."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.common.errors import Unavailable
from libs.common.names import NodeName
from libs.common.testing import FakeClock, FakeRandomness, eventually
from services.scheduler.domain.liveness import Liveness
from services.scheduler.store import AliveKey
from services.scheduler.stores.memory import MemoryStore

NODE = NodeName("n0")


class Store(MemoryStore):
    """A store whose leases can be made to fail or end."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.leases: list[asyncio.Event] = []

    @asynccontextmanager
    async def keep_alive(self, node: NodeName) -> AsyncIterator[asyncio.Event]:
        if self.failures:
            self.failures -= 1
            raise Unavailable("away")
        async with super().keep_alive(node) as lost:
            self.leases.append(lost)
            yield lost

    def alive(self) -> bool:
        return AliveKey(NODE) in self._values


@asynccontextmanager
async def keeping(store: Store, clock: FakeClock) -> AsyncIterator[Liveness]:
    liveness = Liveness(store, clock, FakeRandomness(), 10.0)
    task = asyncio.create_task(liveness.run())
    try:
        yield liveness
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_ends_when_nothing_is_heard_and_begins_again() -> None:
    store, clock = Store(), FakeClock()
    async with keeping(store, clock) as liveness:
        liveness.heard(NODE)
        await eventually(store.alive)
        clock.advance(9)
        liveness.heard(NODE)
        await clock.wait_for_sleepers()
        clock.advance(9)
        await clock.wait_for_sleepers()
        assert store.alive()
        clock.advance(10)
        await eventually(lambda: not store.alive())
        liveness.heard(NODE)
        await eventually(store.alive)
    assert not store.alive()


async def test_a_lease_that_is_lost_is_taken_anew() -> None:
    store, clock = Store(), FakeClock()
    async with keeping(store, clock) as liveness:
        liveness.heard(NODE)
        await eventually(store.alive)
        store.leases[0].set()
        await eventually(lambda: len(store.leases) == 2 and store.alive())


async def test_a_store_that_is_away_is_asked_again() -> None:
    store, clock = Store(), FakeClock()
    store.failures = 2
    async with keeping(store, clock) as liveness:
        liveness.heard(NODE)
        for _ in range(2):
            await clock.wait_for_sleepers()
            clock.advance(1.0)
            liveness.heard(NODE)
        await eventually(store.alive)

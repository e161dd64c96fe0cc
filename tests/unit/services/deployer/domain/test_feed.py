"""The push index's log: what it keeps, and what a watcher sees of it."""

import asyncio
from contextlib import suppress

import pytest

from libs.common.errors import OutOfRange
from libs.common.names import DeviceName
from libs.common.testing import START, FakeClock
from services.deployer.domain.feed import Batch, Feed
from services.deployer.domain.model import Device
from services.deployer.domain.rollout import Books
from services.deployer.domain.signals import Signals
from services.deployer.stores.memory import MemoryStore


async def make(log_count: int = 10) -> tuple[Feed, Signals, MemoryStore]:
    store, signals = MemoryStore(), Signals()
    for index in range(20):
        name = DeviceName("acme", f"d{index}")
        await store.run(lambda tx, name=name: tx.add_device(Device(name, b"k", {}, START, START)))
    return Feed(store, Books(), signals, FakeClock(), log_count=log_count), signals, store


async def publish(feed: Feed, signals: Signals, *devices: int) -> None:
    before = feed.revision
    running = asyncio.create_task(feed.run())
    for device in devices:
        signals.device_changed(DeviceName("acme", f"d{device}"))
    await anext(feed.watch(before))
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_what_is_marked_together_is_told_together_and_once() -> None:
    feed, signals, _ = await make()
    start = feed.revision
    await publish(feed, signals, 1, 2, 1)
    batch = await anext(feed.watch(start))
    assert batch.revision == start + 1
    assert [change.device[-2:] for change in batch.changes] == ["d1", "d2"]


async def test_the_log_is_bounded_and_a_watcher_behind_it_is_told_so() -> None:
    feed, signals, _ = await make(log_count=10)
    start = feed.revision
    watcher = feed.watch(start)
    await publish(feed, signals, 0)
    assert (await anext(watcher)).revision == start + 1
    for _ in range(11):
        await publish(feed, signals, 1)
    with pytest.raises(OutOfRange):
        await anext(watcher)
    with pytest.raises(OutOfRange):
        await anext(feed.watch(start))
    recent = feed.watch(feed.revision - 10)
    assert [(await anext(recent)).revision for _ in range(10)] == list(
        range(feed.revision - 9, feed.revision + 1)
    )


async def test_one_batch_is_kept_however_large() -> None:
    feed, signals, _ = await make(log_count=1)
    start = feed.revision
    await publish(feed, signals, *range(20))
    assert len((await anext(feed.watch(start))).changes) == 20


async def test_a_snapshot_ends_with_its_revision() -> None:
    feed, _, _ = await make()
    assert await anext(feed.watch(0)) == Batch(feed.revision, ())


async def test_a_failing_store_loses_no_mark(caplog: pytest.LogCaptureFixture) -> None:
    feed, signals, store = await make()
    clock = feed._clock
    assert isinstance(clock, FakeClock)
    real, start = store.read, feed.revision

    async def broken(work: object) -> object:
        raise OSError("no")

    store.read = broken  # type: ignore[method-assign, assignment]
    running = asyncio.create_task(feed.run())
    signals.device_changed(DeviceName("acme", "d3"))
    await clock.wait_for_sleepers()
    store.read = real  # type: ignore[method-assign]
    clock.advance(60)
    batch = await anext(feed.watch(start))
    assert [change.device[-2:] for change in batch.changes] == ["d3"]
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running

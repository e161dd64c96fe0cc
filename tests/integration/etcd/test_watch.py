"""The watch: nothing lost, nothing twice, over everything that can happen to the server."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from libs.common.etcd import Compacted, Delete, EtcdClient, Event, Put, WatchBatch
from libs.common.etcd.testing import EtcdServer, etcd_client
from libs.common.etcd.trial import WatchTrial, watch_trial
from libs.common.testing import eventually


async def take(batches: AsyncGenerator[WatchBatch, None], count: int) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(60):
        while len(events) < count:
            events.extend((await anext(batches)).events)
    return events


async def test_puts_and_deletes_come_with_what_was_before(client: EtcdClient, prefix: str) -> None:
    start = await client.revision() + 1
    await client.put(prefix + "a", b"1")
    await client.put(prefix + "a", b"2")
    last = await client.put(prefix[:-1] + "0", b"beside the prefix")
    await client.delete(prefix + "a")
    async with aclosing(client.watch(prefix, start)) as batches:
        events = await take(batches, 3)
    assert [(event.kind, event.kv.value) for event in events] == [
        ("put", b"1"),
        ("put", b"2"),
        ("delete", b""),
    ]
    assert [event.previous.value if event.previous else None for event in events] == [None, b"1", b"2"]
    assert [event.kv.mod_revision for event in events] == [start, start + 1, last + 1]
    assert {event.kv.key for event in events} == {prefix + "a"}


async def test_a_watch_begins_at_its_revision(client: EtcdClient, prefix: str) -> None:
    await client.put(prefix + "a", b"1")
    listed = await client.range(prefix)
    later = await client.put(prefix + "b", b"2")
    async with aclosing(client.watch(prefix, listed.revision + 1)) as batches:
        (event,) = await take(batches, 1)
        assert (event.kv.key, event.kv.mod_revision) == (prefix + "b", later)
        live = await client.put(prefix + "c", b"3")
        (event,) = await take(batches, 1)
        assert (event.kv.key, event.kv.mod_revision) == (prefix + "c", live)


async def test_a_transaction_comes_whole_though_messages_are_cut(client: EtcdClient, prefix: str) -> None:
    # Some 12 MiB of history: etcd cuts it into messages of 1.5 MiB, in the middle of revisions.
    start = await client.revision() + 1
    sizes = [100, 37, 64, 120, 3, 90, 77, 110]
    for number, size in enumerate(sizes):
        value = bytes([number]) * (1_400_000 // size)
        await client.txn((), [Put(f"{prefix}{key:03d}", value) for key in range(size)])
    deleted = await client.txn((), [Delete(prefix, prefix=True)])
    batches: list[WatchBatch] = []
    async with asyncio.timeout(60), aclosing(client.watch(prefix, start)) as watch:
        async for batch in watch:
            batches.append(batch)
            if batch.revision >= deleted.revision:
                break
    assert len(batches) > 1
    revisions = [{event.kv.mod_revision for event in batch.events} for batch in batches]
    assert all(not one & other for one, other in itertools.pairwise(revisions))
    assert all(max(one) == batch.revision for one, batch in zip(revisions, batches, strict=True))
    events = [event for batch in batches for event in batch.events]
    by_revision = [sum(event.kv.mod_revision == start + n for event in events) for n in range(len(sizes))]
    assert by_revision == sizes
    assert sum(event.kind == "delete" for event in events) == max(sizes)


async def test_nothing_is_lost_or_repeated_over_restarts(own_server: EtcdServer) -> None:
    async with etcd_client(own_server) as client:
        trial = await watch_trial(own_server, client, events=1200, restarts=3)
    assert trial == WatchTrial(written=1200, received=1200, repeated=0, disordered=0, restarts=3)
    assert trial.lost == 0


async def test_a_compacted_start_is_told_and_a_list_goes_on_from_there(own_server: EtcdServer) -> None:
    async with etcd_client(own_server, timeout_s=30.0) as client:
        old = await client.put("/a", b"1")
        new = await client.put("/a", b"2")
        await own_server.compact(new)
        with pytest.raises(Compacted) as caught:
            async with aclosing(client.watch("/", old)) as batches:
                await take(batches, 1)
        assert caught.value.revision == new
        listed = await client.range("/")
        assert [kv.value for kv in listed.items] == [b"2"]
        await client.put("/a", b"3")
        async with aclosing(client.watch("/", listed.revision + 1)) as batches:
            assert [event.kv.value for event in await take(batches, 1)] == [b"3"]


async def test_what_is_compacted_while_the_watch_is_away_is_told(own_server: EtcdServer) -> None:
    async with etcd_client(own_server, timeout_s=30.0) as client, etcd_client(own_server) as other:
        start = await client.put("/a", b"1")
        async with aclosing(client.watch("/", start)) as batches:
            assert len(await take(batches, 1)) == 1
            own_server.kill()
            # Nobody asks the watch for more before its history is gone.
            await own_server.start()
            last = await other.put("/a", b"2")
            last = await other.put("/a", b"3")
            await own_server.compact(last)
            with pytest.raises(Compacted):
                await take(batches, 1)


async def test_a_store_that_was_made_anew_is_told(own_server: EtcdServer) -> None:
    async with etcd_client(own_server, timeout_s=30.0) as client:
        for number in range(20):
            last = await client.put("/a", str(number).encode())
        async with aclosing(client.watch("/", last)) as batches:
            assert len(await take(batches, 1)) == 1
            own_server.kill()
            own_server.wipe()
            await own_server.start()
            with pytest.raises(Compacted):
                await take(batches, 1)


async def test_a_watch_that_is_cancelled_leaves_nothing_behind(client: EtcdClient, prefix: str) -> None:
    start = await client.revision() + 1
    before = asyncio.all_tasks()

    async def watch() -> None:
        async with aclosing(client.watch(prefix, start)) as batches:
            await take(batches, 10**6)

    tasks = [asyncio.create_task(watch()) for _ in range(20)]
    await client.put(prefix + "a", b"")
    for task in tasks:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    await eventually(lambda: asyncio.all_tasks() == before)
    # The connection is as good as before.
    async with aclosing(client.watch(prefix, start)) as batches:
        assert len(await take(batches, 1)) == 1


async def test_a_watch_waits_for_a_server_that_is_not_there_yet(own_server: EtcdServer) -> None:
    async with etcd_client(own_server) as client:
        start = await client.put("/a", b"1")
        own_server.stop()
        async with aclosing(client.watch("/", start)) as batches:
            waiting = asyncio.create_task(take(batches, 1))
            await own_server.start()
            assert [event.kv.value for event in await waiting] == [b"1"]

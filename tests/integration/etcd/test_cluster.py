"""Three members: one is lost and comes back, quorum is lost and comes back; members that only hang."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio

from libs.common.clock import SystemClock
from libs.common.errors import Unavailable
from libs.common.etcd import OUTCOME_UNKNOWN, Compare, EtcdClient, Get, Put
from libs.common.etcd.testing import EtcdCluster, EtcdServer, etcd_client, free_ports
from libs.common.rand import SystemRandomness


@pytest_asyncio.fixture
async def cluster(etcd_server: EtcdServer, tmp_path: Path) -> AsyncIterator[EtcdCluster]:
    async with EtcdCluster(tmp_path) as cluster:
        yield cluster


async def create(client: EtcdClient, key: str) -> None:
    """Make the key once, whatever becomes of the first tries."""
    async with asyncio.timeout(60):
        while True:
            try:
                await client.txn([Compare.create_revision(key, 0)], [Put(key, b"")])
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                return


async def test_a_member_is_lost_and_comes_back_each_in_turn(cluster: EtcdCluster) -> None:
    async with etcd_client(cluster, timeout_s=30.0) as patient:
        start = await patient.revision() + 1
    async with etcd_client(cluster, timeout_s=2.0) as client:
        written: list[str] = []
        seen: list[str] = []
        complete = asyncio.Event()
        count = 3 * 60

        async def watch() -> None:
            async with aclosing(client.watch("/", start)) as batches:
                async for batch in batches:
                    seen.extend(event.kv.key for event in batch.events)
                    if len(seen) >= count:
                        complete.set()

        async def write(number: int) -> None:
            for one in range(30):
                written.append(f"/{number}/{one:02d}")
                await create(client, written[-1])

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            # Whichever leads, and whichever we are connected to, is among them.
            for number, member in enumerate(cluster.members):
                member.kill()
                await write(2 * number)
                await member.start()
                await write(2 * number + 1)
            async with asyncio.timeout(60):
                await complete.wait()
            watching.cancel()
    assert seen == written


async def test_without_quorum_calls_end_at_their_deadline_and_with_it_they_succeed(
    cluster: EtcdCluster,
) -> None:
    async with etcd_client(cluster, timeout_s=1.0) as client, etcd_client(cluster, timeout_s=60.0) as patient:
        await create(client, "/a")
        for member in cluster.members[:2]:
            member.kill()
        async with asyncio.timeout(60):
            with pytest.raises(Unavailable) as caught:
                await client.get("/a")
            assert caught.value.reason == "ETCD_UNAVAILABLE"
            assert all(endpoint in caught.value.message for endpoint in cluster.endpoints)
            with pytest.raises(Unavailable):
                await client.put("/b", b"")
        waiting = asyncio.create_task(patient.get("/a"))
        cluster.members[0].spawn()
        cluster.members[1].spawn()
        kv = await waiting
        assert kv is not None
        await create(client, "/c")


async def test_a_write_goes_to_another_member_when_one_is_not_there(
    etcd_server: EtcdServer, prefix: str
) -> None:
    endpoints = (f"127.0.0.1:{free_ports(1)[0]}", etcd_server.endpoint)
    for preferred in endpoints:
        client = EtcdClient(endpoints, clock=SystemClock(), randomness=SystemRandomness(), timeout_s=30.0)
        async with client:
            if client._members.preferred.endpoint != preferred:
                client._members.failed(client._members.preferred)
            await client.put(prefix + "a", b"")
            assert client._members.preferred.endpoint == etcd_server.endpoint


async def test_a_watch_leaves_a_member_that_hangs(cluster: EtcdCluster) -> None:
    async with etcd_client(cluster, timeout_s=30.0) as client, etcd_client(cluster) as other:
        start = await client.revision() + 1
        async with aclosing(client.watch("/", start)) as batches:
            await create(other, "/a")
            assert [event.kv.key for event in (await anext(batches)).events] == ["/a"]
            hanging = next(
                member for member in cluster.members if member.endpoint == client._members.preferred.endpoint
            )
            hanging.pause()
            try:
                await create(other, "/b")
                async with asyncio.timeout(60):
                    assert [event.kv.key for event in (await anext(batches)).events] == ["/b"]
            finally:
                hanging.resume()


async def test_reads_leave_a_member_that_hangs_and_writes_tell_that_they_may_be_done(
    own_server: EtcdServer, cluster: EtcdCluster
) -> None:
    async with etcd_client(own_server, timeout_s=0.5) as client:
        await create(client, "/a")  # connects
        own_server.pause()
        try:
            async with asyncio.timeout(60):
                with pytest.raises(Unavailable) as read:
                    await client.get("/a")
                with pytest.raises(Unavailable) as write:
                    await client.put("/a", b"2")
                with pytest.raises(Unavailable) as looked:
                    await client.txn([Compare.value("/a", b"")], [Get("/a")])
        finally:
            own_server.resume()
        assert read.value.reason == "ETCD_UNAVAILABLE"
        assert write.value.reason == OUTCOME_UNKNOWN
        assert looked.value.reason == "ETCD_UNAVAILABLE"
    async with etcd_client(cluster, timeout_s=6.0) as client:
        await create(client, "/a")
        hanging = next(
            member for member in cluster.members if member.endpoint == client._members.preferred.endpoint
        )
        hanging.pause()
        try:
            assert await client.get("/a") is not None
        finally:
            hanging.resume()


async def test_a_write_that_reached_nobody_is_not_called_unknown(own_server: EtcdServer) -> None:
    async with etcd_client(own_server, timeout_s=0.5) as client:
        await create(client, "/a")  # connects
        own_server.kill()
        reasons = []
        for _ in range(3):
            with pytest.raises(Unavailable) as caught:
                await client.put("/a", b"2")
            reasons.append(caught.value.reason)
        # The first may have found the connection still open.
        assert reasons[1:] == ["ETCD_UNAVAILABLE"] * 2

"""Leases against a real etcd: kept, lost, revoked."""

import asyncio
from contextlib import aclosing

import pytest
from etcd_stubs import rpc_pb2, rpc_pb2_grpc

from libs.common.clock import SystemClock
from libs.common.errors import Invalid
from libs.common.etcd import EtcdClient
from libs.common.etcd.testing import EtcdServer, etcd_client
from libs.common.rand import SystemRandomness
from libs.common.testing import FakeClock, eventually


async def wait_gone(client: EtcdClient, key: str, revision: int) -> None:
    async with asyncio.timeout(60), aclosing(client.watch(key, revision)) as batches:
        async for batch in batches:
            if any(event.kind == "delete" for event in batch.events):
                return


async def test_a_key_lives_as_long_as_its_lease_is_held(client: EtcdClient, prefix: str) -> None:
    key = prefix + "a"
    async with client.lease(3) as lease:
        first = lease._ends
        revision = await client.put(key, b"", lease=lease.id)
        # Longer than it would live without a renewal; etcd looks each half second.
        await eventually(lambda: client.clock.monotonic() > first + 1.0)
        assert not lease.lost.is_set()
        assert await client.get(key) is not None
    assert lease.lost.is_set()
    assert await client.get(key) is None
    await wait_gone(client, key, revision)


async def test_a_lease_that_nobody_renews_runs_out(client: EtcdClient, prefix: str) -> None:
    key = prefix + "a"
    lease = await client.grant(1)
    revision = await client.put(key, b"", lease=lease.id)
    await lease._stop()  # as a process that is killed: neither renewed nor revoked
    await wait_gone(client, key, revision)
    assert await client.get(key) is None


async def test_a_lease_that_was_revoked_is_lost(client: EtcdClient, etcd_server: EtcdServer) -> None:
    async with client.lease(3) as lease:
        channel = client._members.preferred.channel
        await rpc_pb2_grpc.LeaseStub(channel).LeaseRevoke(
            rpc_pb2.LeaseRevokeRequest(ID=lease.id), timeout=30.0
        )
        async with asyncio.timeout(60):
            await lease.lost.wait()


async def test_a_lease_is_lost_while_the_server_is_stalled(own_server: EtcdServer) -> None:
    async with etcd_client(own_server) as client, client.lease(1) as lease:
        own_server.pause()
        try:
            async with asyncio.timeout(60):
                await lease.lost.wait()
        finally:
            own_server.resume()


async def test_a_lease_outlives_a_server_that_is_killed_and_comes_back(own_server: EtcdServer) -> None:
    async with etcd_client(own_server) as client, client.lease(30) as lease:
        await client.put("/a", b"", lease=lease.id)
        own_server.kill()
        await own_server.start()
        kv = await client.get("/a")
        assert kv is not None
        assert kv.lease == lease.id
        assert not lease.lost.is_set()


async def test_the_wall_clock_does_not_matter(etcd_server: EtcdServer, prefix: str) -> None:
    clock = FakeClock()
    client = EtcdClient(etcd_server.endpoints, clock=clock, randomness=SystemRandomness(), timeout_s=30.0)
    async with client, client.lease(30) as lease:
        await client.put(prefix + "a", b"", lease=lease.id)
        clock.step(86_400)
        clock.step(-2 * 86_400)
        await clock.wait_for_sleepers(2)
        assert not lease.lost.is_set()
        assert await client.get(prefix + "a") is not None


async def test_a_lease_is_taken_for_lost_when_the_monotonic_clock_says_so(
    etcd_server: EtcdServer, prefix: str
) -> None:
    clock = FakeClock()
    client = EtcdClient(etcd_server.endpoints, clock=clock, randomness=SystemRandomness(), timeout_s=30.0)
    async with client, client.lease(30) as lease:
        await clock.wait_for_sleepers(2)
        clock.advance(10)  # it is renewed
        renewed = lease._ends
        await eventually(lambda: lease._ends > renewed)
        assert lease._ends == 40.0
        # A process that was stopped: no time to renew, and at etcd the key may be somebody else's.
        clock.advance(31)
        async with asyncio.timeout(60):
            await lease.lost.wait()


async def test_lengths_that_cannot_be_are_refused(client: EtcdClient) -> None:
    for ttl_s in (0, -1, 1e12, float("nan"), float("inf")):
        with pytest.raises(Invalid, match="ttl_s"):
            await client.grant(ttl_s)


async def test_a_block_that_fails_gives_its_lease_back(client: EtcdClient, prefix: str) -> None:
    class Oops(Exception):
        pass

    async def fail() -> None:
        async with client.lease(60) as lease:
            await client.put(prefix + "a", b"", lease=lease.id)
            raise Oops

    with pytest.raises(Oops):
        await fail()
    assert await client.get(prefix + "a") is None


def test_the_machines_clock_is_monotonic() -> None:
    clock = SystemClock()
    assert clock.monotonic() <= clock.monotonic()

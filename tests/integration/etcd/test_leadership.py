"""Leadership: one at a time, handed over, fenced."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import ClassVar

import pytest

from libs.common.clock import SystemClock
from libs.common.errors import Unavailable
from libs.common.etcd import (
    OUTCOME_UNKNOWN,
    Compacted,
    Compare,
    Delete,
    EtcdClient,
    Leadership,
    Op,
    Put,
    TxnResult,
    WatchBatch,
)
from libs.common.etcd.testing import EtcdServer, etcd_client
from libs.common.rand import SystemRandomness
from libs.common.testing import eventually

HOLDER = Path(__file__).with_name("holder.py")


async def start_holder(endpoint: str, key: str) -> tuple[asyncio.subprocess.Process, int]:
    """Return a process that leads, and its term."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HOLDER), endpoint, key, "other", "1", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        return process, int(await process.stdout.readline())


async def lead_once(client: EtcdClient, key: str) -> int:
    """Wait to lead, resign, and return the term."""
    async with Leadership(client, key, ttl_s=30, identity="me").hold() as term:
        return term.create_revision


async def test_one_leads_at_a_time_and_terms_grow(client: EtcdClient, prefix: str) -> None:
    leading: list[int] = []
    terms: list[int] = []

    async def candidate(number: int) -> None:
        async with Leadership(client, prefix + "leader", ttl_s=30, identity=str(number)).hold() as term:
            leading.append(number)
            assert leading == [number]
            kv = await client.get(prefix + "leader")
            assert kv is not None
            assert (kv.value, kv.create_revision) == (str(number).encode(), term.create_revision)
            terms.append(term.create_revision)
            leading.remove(number)

    async with asyncio.timeout(60):
        await asyncio.gather(*(candidate(number) for number in range(5)))
    assert len(terms) == 5
    assert terms == sorted(set(terms))
    assert await client.get(prefix + "leader") is None


async def test_a_killed_leader_is_succeeded_and_its_writes_are_fenced(
    client: EtcdClient, etcd_server: EtcdServer, prefix: str
) -> None:
    key = prefix + "leader"
    process, old = await start_holder(etcd_server.endpoint, key)
    try:
        kv = await client.get(key)
        assert kv is not None
        assert (kv.value, kv.create_revision) == (b"other", old)
        candidate = asyncio.create_task(lead_once(client, key))
        process.kill()
        async with asyncio.timeout(60):
            term = await candidate
        assert term > old
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_what_an_old_term_writes_is_refused(client: EtcdClient, prefix: str) -> None:
    key = prefix + "leader"
    async with Leadership(client, key, ttl_s=30, identity="old").hold() as old:
        assert (await client.txn([old.compare], [Put(prefix + "a", b"old")])).succeeded
    async with Leadership(client, key, ttl_s=30, identity="new").hold() as new:
        assert not (await client.txn([old.compare], [Put(prefix + "a", b"late")])).succeeded
        assert (await client.txn([new.compare], [Put(prefix + "a", b"new")])).succeeded
    kv = await client.get(prefix + "a")
    assert kv is not None
    assert kv.value == b"new"


@pytest.mark.parametrize("again", [False, True])
async def test_a_leader_whose_key_is_taken_away_hears_of_it(
    client: EtcdClient, prefix: str, again: bool
) -> None:
    key = prefix + "leader"
    async with Leadership(client, key, ttl_s=60, identity="me").hold() as term:
        await client.put(key + "-of-others", b"")
        await client.delete(key + "-of-others")
        assert not term.lost.is_set()
        await client.txn((), [Delete(key)])
        if again:
            await client.put(key, b"somebody else")
        async with asyncio.timeout(60):
            await term.lost.wait()


async def test_a_term_that_ends_is_lost_for_whoever_still_looks_at_it(
    client: EtcdClient, prefix: str
) -> None:
    async with Leadership(client, prefix + "leader", ttl_s=60, identity="me").hold() as term:
        assert not term.lost.is_set()
    assert term.lost.is_set()


async def test_a_candidate_waits_for_etcd_and_leads_after_restarts(own_server: EtcdServer) -> None:
    async with (
        etcd_client(own_server, timeout_s=1.0) as client,
        etcd_client(own_server, timeout_s=30.0) as patient,
    ):
        own_server.stop()
        leadership = Leadership(client, "/leader", ttl_s=30, identity="me")
        entered = asyncio.Event()

        async def lead() -> int:
            async with leadership.hold() as term:
                entered.set()
                await term.lost.wait()
                return term.create_revision

        leading = asyncio.create_task(lead())
        await own_server.start()
        async with asyncio.timeout(60):
            await entered.wait()
        own_server.kill()
        await own_server.start()
        # The lease outlived it; the leader still is one, and hears when it is no more.
        kv = await patient.get("/leader")
        assert kv is not None
        assert not leading.done()
        await patient.delete("/leader")
        async with asyncio.timeout(60):
            assert await leading == kv.create_revision


async def test_a_candidate_that_gives_up_leaves_nothing(client: EtcdClient, prefix: str) -> None:
    key = prefix + "leader"
    async with Leadership(client, key, ttl_s=30, identity="one").hold() as term:
        waiting = asyncio.create_task(lead_once(client, key))
        await asyncio.sleep(0.1)  # wherever it has come to by then
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not term.lost.is_set()
    assert await client.get(key) is None


async def test_a_candidate_whose_write_was_not_answered_finds_that_it_leads(
    etcd_server: EtcdServer, prefix: str
) -> None:
    class Unanswered(EtcdClient):
        failures = 2

        async def txn(
            self, compare: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op] = ()
        ) -> TxnResult:
            result = await super().txn(compare, success, failure)
            if self.failures:
                self.failures -= 1
                raise Unavailable("no answer", reason=OUTCOME_UNKNOWN)
            return result

    client = Unanswered(etcd_server.endpoints, clock=SystemClock(), randomness=SystemRandomness())
    async with client, Leadership(client, prefix + "a", ttl_s=30, identity="me").hold() as term:
        kv = await client.get(prefix + "a")
        assert kv is not None
        assert kv.create_revision == kv.mod_revision == term.create_revision
        assert not term.lost.is_set()


async def test_a_candidate_whose_history_was_compacted_looks_at_the_key_itself(
    etcd_server: EtcdServer, prefix: str
) -> None:
    class Forgetful(EtcdClient):
        asked: ClassVar[list[int]] = []

        async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
            self.asked.append(start_revision)
            if len(self.asked) == 1:
                raise Compacted(start_revision + 1)
            async with aclosing(super().watch(prefix, start_revision)) as batches:
                async for batch in batches:
                    yield batch

    client = Forgetful(etcd_server.endpoints, clock=SystemClock(), randomness=SystemRandomness())
    async with client:
        await client.put(prefix + "leader", b"somebody else")
        candidate = asyncio.create_task(lead_once(client, prefix + "leader"))
        await eventually(lambda: len(client.asked) == 2)
        assert not candidate.done()
        await client.delete(prefix + "leader")
        async with asyncio.timeout(60):
            assert await candidate > client.asked[1]

"""Several schedulers over one etcd: one leads, all serve users, and no two ever commit the same room."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from libs.common.clock import SystemClock
from libs.common.errors import Conflict, Unavailable
from libs.common.etcd.testing import EtcdServer
from libs.common.rand import SystemRandomness
from services.scheduler.domain import lifecycle
from services.scheduler.domain.change import Change
from services.scheduler.domain.decide import decide
from services.scheduler.domain.mirror import Mirror
from services.scheduler.testing import (
    BEGIN,
    Running,
    etcd_store,
    make_job,
    make_node,
    make_queue,
    running_scheduler,
)
from services.scheduler.testing_runner import FakeRunner, State

WITHIN_S = 60.0


@pytest.fixture
async def replicas(tmp_path: Path, etcd: EtcdServer) -> AsyncIterator[list[Running]]:
    """Two schedulers; the first leads."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                running_scheduler(tmp_path / f"s{i}", store=etcd_store(etcd.endpoints), lead=not i)
            )
            for i in range(2)
        ]


async def test_users_may_call_any_replica(replicas: list[Running]) -> None:
    leader, other = replicas
    assert leader.scheduler.controller.leads
    assert not other.scheduler.controller.leads
    runner = leader.runner()
    await runner.attach()
    client = other.client()
    await client.submit("job")
    await runner.run("job")
    await client.job_in("job", State.STATE_RUNNING)
    await client.cancel("job")
    assert (await runner.stopped("job")).reason == "CANCELLED"
    await runner.exit("job", code=143)
    assert (await client.ended("job")).status.state == State.STATE_CANCELLED
    await client.submit("wide", cpus=64)
    assert (await client.explain("wide")).nodes[0].reasons
    await runner.detach()


async def test_runners_are_sent_to_the_leader(replicas: list[Running]) -> None:
    leader, other = replicas
    with pytest.raises(Unavailable) as refused:
        await other.runner().attach()
    assert refused.value.reason == "NOT_LEADER"
    assert refused.value.metadata["address"] == leader.channel.target


async def test_the_next_leader_goes_on_where_the_last_one_was(tmp_path: Path, etcd: EtcdServer) -> None:
    async with AsyncExitStack() as stack:
        first_stack = AsyncExitStack()
        first = await first_stack.enter_async_context(
            running_scheduler(tmp_path / "s0", store=etcd_store(etcd.endpoints))
        )
        second = await stack.enter_async_context(
            running_scheduler(tmp_path / "s1", store=etcd_store(etcd.endpoints), lead=False)
        )
        runner = first.runner()
        await runner.attach()
        await second.client().submit("job", workers=2)
        await runner.run("job", 0)
        await runner.run("job", 1)
        await first_stack.aclose()
        moved = second.runner()
        moved.workers = runner.workers
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    await moved.attach()
                    break
                except Unavailable:
                    await asyncio.sleep(0.02)
        job = await second.client().job("job")
        assert job.status.state == State.STATE_RUNNING
        await moved.exit("job", 0)
        await moved.exit("job", 1)
        job = await second.client().ended("job")
        assert (job.status.state, job.status.attempt_count) == (State.STATE_SUCCEEDED, 1)
        assert not await second.client().reservations()
        await moved.detach()


async def test_two_schedulers_that_decide_the_same_never_both_win(etcd: EtcdServer) -> None:
    """Even without a leader: the nodes' revisions alone keep two gangs from the same room."""
    stores = [etcd_store(etcd.endpoints), etcd_store(etcd.endpoints)]
    await stores[0].commit(Change(puts=[make_queue(), *(make_node(f"n{i}", cpus=4) for i in range(2))]))
    won = []
    for turn in range(10):
        await stores[0].commit(Change(puts=[make_job(f"j{turn}-{i}", workers=6) for i in range(2)]))
        mirrors = [Mirror(store, SystemClock(), SystemRandomness()) for store in stores]
        tasks = [asyncio.create_task(mirror.run()) for mirror in mirrors]
        for mirror in mirrors:
            await mirror.reached(1)
        changes = []
        for i, mirror in enumerate(mirrors):
            snapshot = mirror.snapshot
            jobs = {name: job for name, job in snapshot.jobs.items() if name.job == f"j{turn}-{i}"}
            (start,) = decide(replace(snapshot, jobs=jobs, ready=frozenset(snapshot.nodes)), BEGIN).starts
            changes.append(lifecycle.start(start.job, start.placed, snapshot.nodes, 1, f"u{i}", BEGIN))
        done = await asyncio.gather(
            *(store.commit(change) for store, change in zip(stores, changes, strict=True)),
            return_exceptions=True,
        )
        assert sorted(type(each).__name__ for each in done) == ["Conflict", "int"]
        assert any(isinstance(each, Conflict) and each.reason == "STALE" for each in done)
        winner = next(i for i, each in enumerate(done) if isinstance(each, int))
        revision = done[winner]
        assert isinstance(revision, int)
        await mirrors[0].reached(revision)
        snapshot = mirrors[0].snapshot
        (reservation,) = snapshot.reservations.values()
        for node in snapshot.nodes.values():
            assert node.allocated.within(node.facts.capacity)
        won.append(winner)
        await stores[0].commit(Change(puts=lifecycle.freed(snapshot, reservation), deletes=(reservation,)))
        await stores[0].commit(Change(deletes=tuple(snapshot.jobs.values())))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for store in stores:
        await store.close()
    assert len(won) == 10


async def test_a_newer_connection_of_a_node_fences_the_older(running: Running) -> None:
    old, new = running.runner(), running.runner()
    await old.attach()
    await new.attach()
    await old.until(lambda: old.error is not None)
    assert isinstance(old.error, Unavailable)
    assert old.error.reason == "FENCED"
    client = running.client()
    await client.submit("job")
    await new.run("job")
    assert not old.start_count("job")
    await new.detach()


async def test_orders_reach_a_runner_that_hung_up_in_between(running: Running) -> None:
    runner = running.runner()
    await runner.attach()
    client = running.client()
    await client.submit("job")
    await runner.run("job")
    await runner.detach()
    await client.cancel("job")
    await client.job_in("job", State.STATE_STOPPING)
    await runner.attach()
    assert (await runner.stopped("job")).reason == "CANCELLED"
    await runner.exit("job", code=143)
    assert (await client.ended("job")).status.state == State.STATE_CANCELLED
    await runner.detach()


async def test_workers_that_nobody_wants_are_stopped_and_forgotten(running: Running) -> None:
    runner: FakeRunner = running.runner()
    await runner.attach()
    client = running.client()
    await client.submit("job")
    await runner.run("job")
    # The runner comes back with a worker of a job that the store doesn't know.
    stray = runner.workers["job", 1, 0]
    copy = type(stray)()
    copy.CopyFrom(stray)
    copy.id.job = "tenants/acme/jobs/gone"
    runner.workers["gone", 1, 0] = copy
    await runner.detach()
    await runner.attach()
    assert (await runner.stopped("gone")).reason == "CANCELLED"
    await runner.exit("gone", code=143)
    await runner.until(lambda: ("gone", 1, 0) not in runner.workers)
    assert (await client.job("job")).status.state == State.STATE_RUNNING
    await runner.detach()

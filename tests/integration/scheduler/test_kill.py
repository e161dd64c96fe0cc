"""kill -9 of the scheduler and of etcd in the middle of jobs: each ends once, and no slot leaks."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from isthmus.scheduler.v1 import object_pb2 as pb
from isthmus.scheduler.v1 import scheduler_pb2 as api
from libs.common.errors import Unavailable
from libs.common.etcd.testing import EtcdServer
from services.scheduler.testing_process import SchedulerProcess, scheduler_process
from services.scheduler.testing_runner import Client, FakeRunner, State, WorkerState


@pytest.fixture
async def process(tmp_path: Path, etcd: EtcdServer) -> AsyncIterator[SchedulerProcess]:
    async with scheduler_process(tmp_path / "scheduler", etcd.endpoints) as made:
        yield made


async def attached(runner: FakeRunner) -> None:
    """Attach a runner, as often as it takes: a new scheduler leads once the old one's lease is over."""
    async with asyncio.timeout(60):
        while True:
            try:
                await runner.attach()
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                return


async def no_slot_is_taken(client: Client, node: str = "n0") -> None:
    assert not await client.reservations()
    status = (await client.node(node)).status
    assert not status.holdings
    assert status.allocated.cpu_millis == 0


async def test_a_scheduler_killed_at_every_step_of_a_job(process: SchedulerProcess) -> None:
    runner = process.runner()
    await attached(runner)
    client = process.client()

    async def kill_and_start() -> None:
        await process.kill()
        await runner.detach()
        await process.start()
        await attached(runner)

    submitted = await client.submit("job", workers=2, request_id="one")
    await kill_and_start()  # right after it was acknowledged
    again = await client.submit("job", workers=2, request_id="one")
    assert again.metadata.uid == submitted.metadata.uid
    await runner.started("job", 0)
    await runner.started("job", 1)
    await kill_and_start()  # while workers start
    await runner.run("job", 0)
    await runner.run("job", 1)
    await client.job_in("job", State.STATE_RUNNING)
    await kill_and_start()  # while it runs
    job = await client.job("job")
    assert job.status.state == State.STATE_RUNNING, "running work isn't touched"
    await runner.report("job", 0, state=WorkerState.STATE_EXITED, durable=False)
    await kill_and_start()  # when a report is on its way
    await runner.exit("job", 1)
    job = await client.ended("job")
    assert job.status.state == State.STATE_SUCCEEDED
    assert job.status.attempt_count == 1
    assert runner.start_count("job", 0) >= 1
    await no_slot_is_taken(client)
    await runner.until(lambda: not runner.workers)
    await runner.detach()


async def test_an_etcd_killed_in_mid_job(process: SchedulerProcess, etcd: EtcdServer) -> None:
    runner = process.runner()
    await attached(runner)
    client = process.client()
    await client.submit("job")
    await runner.run("job")
    await client.job_in("job", State.STATE_RUNNING)
    etcd.kill()
    # Meanwhile the worker goes on and ends; that can't be durable yet.
    await runner.report("job", state=WorkerState.STATE_EXITED, durable=False)
    assert not any(sequence > 1 for sequence in runner.acknowledged.values())
    await etcd.start()
    async with asyncio.timeout(60):
        # The leader may have lost its lease and the runner its connection.
        while (await client.job("job")).status.state != State.STATE_SUCCEEDED:
            if runner.error is not None:
                await attached(runner)
            await asyncio.sleep(0.05)
    await no_slot_is_taken(client)
    assert (await client.job("job")).status.attempt_count == 1
    await runner.detach()


async def test_a_runner_that_comes_back_without_its_workers(process: SchedulerProcess) -> None:
    runner = process.runner()
    await attached(runner)
    client = process.client()
    await client.submit("ran")
    await runner.run("ran")
    await client.job_in("ran", State.STATE_RUNNING)
    await runner.detach()
    runner.workers.clear()
    await attached(runner)
    job = await client.ended("ran")
    assert (job.status.state, job.status.reason) == (State.STATE_FAILED, "LOST")
    await no_slot_is_taken(client)
    await runner.detach()


async def test_a_lost_node_keeps_its_work_until_it_is_deleted(process: SchedulerProcess) -> None:
    runner, other = process.runner("n0"), process.runner("n1")
    await attached(runner)
    client, operator = process.client(), process.client("default")
    await client.submit("job", retry_count=1)
    await runner.run("job")
    await runner.detach()
    await attached(other)
    async with asyncio.timeout(60):
        # There is no watch on nodes.
        while (await client.node("n0")).status.state != pb.NodeStatus.State.STATE_LOST:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    job = await client.job("job")
    assert job.status.state == State.STATE_RUNNING, "it may still run"
    assert (await client.node("n0")).status.holdings
    await operator.nodes.DeleteNode(api.DeleteNodeRequest(name="nodes/n0"))
    await other.run("job", attempt=2)
    await other.exit("job", attempt=2)
    job = await client.ended("job")
    assert (job.status.state, job.status.attempt_count) == (State.STATE_SUCCEEDED, 2)
    await no_slot_is_taken(client, "n1")
    await other.detach()

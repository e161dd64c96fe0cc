"""A leader that stands still for longer than its lease: another takes over, and the first does no harm."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from libs.common.errors import Unavailable
from libs.common.etcd.testing import EtcdServer
from services.scheduler.testing_process import SchedulerProcess, scheduler_process
from services.scheduler.testing_runner import FakeRunner, State

WITHIN_S = 60.0


@pytest.fixture
async def replicas(tmp_path: Path, etcd: EtcdServer) -> AsyncIterator[list[SchedulerProcess]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(scheduler_process(tmp_path / f"s{i}", etcd.endpoints))
            for i in range(2)
        ]


async def attached(runner: FakeRunner) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                return await runner.attach()
            except Unavailable:
                await asyncio.sleep(0.05)


async def named_by(replica: SchedulerProcess) -> str:
    """Return where a replica that doesn't lead sends runners, once it knows who does."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            with pytest.raises(Unavailable) as refused:
                await replica.runner().attach()
            if address := refused.value.metadata.get("address"):
                return address
            await asyncio.sleep(0.05)


async def test_a_stalled_leader_is_replaced_and_does_no_harm_afterwards(
    replicas: list[SchedulerProcess],
) -> None:
    first, second = replicas
    runner = first.runner()
    await attached(runner)
    await first.client().submit("job", workers=2)
    await runner.run("job", 0)
    await runner.run("job", 1)
    await first.client().job_in("job", State.STATE_RUNNING)

    first.signal(signal.SIGSTOP)
    moved = second.runner()
    moved.workers = {key: report for key, report in runner.workers.items()}
    await attached(moved)
    assert (await second.client().job("job")).status.state == State.STATE_RUNNING
    await second.client().submit("next", cpus=4)
    await moved.run("next")
    await moved.exit("job", 0)
    await moved.exit("job", 1)
    assert (await second.client().ended("job")).status.attempt_count == 1

    first.signal(signal.SIGCONT)
    # It finds its connection to the runner and its lease over, and follows the other one.
    async with asyncio.timeout(WITHIN_S):
        while (await first.client().job("job")).status.state != State.STATE_SUCCEEDED:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await runner.until(lambda: runner.error is not None)
    assert await named_by(first) == second.target
    await moved.exit("next")
    job = await first.client().ended("next")
    assert (job.status.state, job.status.attempt_count) == (State.STATE_SUCCEEDED, 1)
    assert not await first.client().reservations()
    assert not (await first.client().node()).status.holdings
    await moved.detach()
    await runner.detach()

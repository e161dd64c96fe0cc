"""A store that refuses some writes: the job that it concerns says so, and the others go on."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from libs.common.errors import Conflict, Invalid, Unavailable
from services.scheduler.domain.change import Change
from services.scheduler.domain.objects import Job, Reservation
from services.scheduler.store import Term
from services.scheduler.stores.memory import MemoryStore
from services.scheduler.testing import running_scheduler
from services.scheduler.testing_runner import State


class Refusing(MemoryStore):
    """Raises what `refuse` returns for a change, if anything."""

    def __init__(self, refuse: Callable[[Change], Exception | None]) -> None:
        super().__init__()
        self._refuse = refuse
        self.refused = 0

    async def commit(self, change: Change, term: Term | None = None) -> int:
        error = self._refuse(change)
        if error is not None:
            self.refused += 1
            raise error
        return await super().commit(change, term)

    def fits(self, change: Change) -> bool:
        return not isinstance(self._refuse(change), Invalid)


def starts(change: Change, job: str) -> bool:
    return any(isinstance(value, Reservation) and value.job.job == job for value in change.puts)


async def test_a_start_that_does_not_fit_a_transaction_ends_the_job(tmp_path: Path) -> None:
    store = Refusing(lambda change: Invalid("1.6 MiB") if starts(change, "huge") else None)
    async with running_scheduler(tmp_path, store=store) as running:
        client, runner = running.client(), running.runner()
        await runner.attach()
        await client.submit("huge")
        job = await client.ended("huge")
        assert (job.status.state, job.status.reason) == (State.STATE_FAILED, "TOO_LARGE")
        assert "use fewer or larger workers" in job.status.message
        await client.submit("next")
        await runner.run("next")
        await runner.detach()


@pytest.mark.parametrize(
    "error",
    [
        Conflict("stale", reason="STALE"),
        Unavailable("lost", reason="OUTCOME_UNKNOWN"),
        RuntimeError("a fault"),
    ],
    ids=["conflict", "unavailable", "fault"],
)
async def test_a_write_that_fails_a_few_times_is_made_in_the_end(tmp_path: Path, error: Exception) -> None:
    left = [3]

    def refuse(change: Change) -> Exception | None:
        if not starts(change, "job") or not left[0]:
            return None
        left[0] -= 1
        return error

    store = Refusing(refuse)
    async with running_scheduler(tmp_path, store=store) as running:
        client, runner = running.client(), running.runner()
        await runner.attach()
        await client.submit("job")
        await runner.run("job")
        await runner.exit("job")
        job = await client.ended("job")
        assert (job.status.state, job.status.attempt_count) == (State.STATE_SUCCEEDED, 1)
        assert store.refused == 3
        await runner.detach()


async def test_a_report_is_acknowledged_only_once_it_is_written(tmp_path: Path) -> None:
    blocked = asyncio.Event()
    blocked.set()

    def refuse(change: Change) -> Exception | None:
        running = any(isinstance(v, Job) and v.status.state.name == "RUNNING" for v in change.puts)
        return Conflict("stale", reason="STALE") if running and blocked.is_set() else None

    store = Refusing(refuse)
    async with running_scheduler(tmp_path, store=store) as running:
        client, runner, other = running.client(), running.runner(), running.runner("n1")
        await runner.attach()
        await client.submit("job")
        await runner.started("job")
        await runner.report("job", durable=False)
        # Others aren't kept waiting by it.
        await other.attach()
        assert not runner.acknowledged
        blocked.clear()
        await runner.until(lambda: bool(runner.acknowledged))
        assert (await client.job("job")).status.state == State.STATE_RUNNING
        await runner.detach()
        await other.detach()

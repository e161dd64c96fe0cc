"""Trying versions, over a simulator that waits."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from libs.common.errors import Exhausted
from libs.common.names import TaskName
from libs.common.testing import START, FakeClock, eventually
from services.deployer.domain.model import BlobRef, Preflight, PreflightState
from services.deployer.domain.preflight import Preflights
from services.deployer.metrics import Metrics
from services.deployer.stores.memory import MemoryStore

TASK = TaskName("acme", "genres")
EVENTS = BlobRef(f"sha256:{'0' * 64}", 7)


class Stalled:
    """A simulator that passes everything once `gate` is open, and says nothing of the events."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.tenants: list[str] = []

    async def simulate(self, task: TaskName, signed: bytes, events: BlobRef | None) -> Preflight:
        self.tenants.append(task.tenant)
        await self.gate.wait()
        return Preflight(state=PreflightState.PASSED, run_count=3)


@pytest.fixture
def simulator() -> Stalled:
    return Stalled()


@pytest.fixture
def preflights(simulator: Stalled) -> Preflights:
    return Preflights(MemoryStore(), simulator, Metrics(CollectorRegistry()), FakeClock())


async def test_a_verdict_is_kept_with_the_events_that_were_asked_for(simulator: Stalled) -> None:
    store = MemoryStore()
    await store.run(lambda tx: tx.put_blob("acme", EVENTS, START))
    simulator.gate.set()
    preflights = Preflights(store, simulator, Metrics(CollectorRegistry()), FakeClock())
    found = await preflights.run(TASK, "1", b"", EVENTS)
    assert found == Preflight(state=PreflightState.PASSED, run_count=3, events=EVENTS)


async def test_a_tenant_that_waits_for_a_stalled_simulator_leaves_places_to_others(
    simulator: Stalled, preflights: Preflights
) -> None:
    waiting = [asyncio.create_task(preflights.run(TASK, "1", b"", None)) for _ in range(16)]
    await eventually(lambda: len(simulator.tenants) == 16)
    with pytest.raises(Exhausted, match="16 versions of your tenant") as refused:
        await preflights.run(TASK, "1", b"", None)
    assert (refused.value.reason, refused.value.retry_after_s) == ("TOO_MANY_PREFLIGHTS", 5.0)
    other = asyncio.create_task(preflights.run(TaskName("rival", "genres"), "1", b"", None))
    await eventually(lambda: simulator.tenants[-1] == "rival")
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    simulator.gate.set()
    for each in (*waiting[1:], other):
        assert (await each).state is PreflightState.PASSED
    # Every place has been given back.
    again = await asyncio.gather(*(preflights.run(TASK, "1", b"", None) for _ in range(16)))
    assert len(again) == 16

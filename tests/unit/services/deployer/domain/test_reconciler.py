"""The controller, with a clock that stands still and a store that may fail."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from libs.common.errors import Conflict
from libs.common.names import DeviceName, ReleaseName, VersionName
from libs.common.testing import START, FakeClock
from services.deployer.domain.census import Census
from services.deployer.domain.model import (
    Counts,
    Device,
    DeviceStage,
    Gate,
    Release,
    ReleaseState,
    Stage,
    StepStatus,
)
from services.deployer.domain.reconciler import Reconciler
from services.deployer.domain.rollout import Books
from services.deployer.domain.signals import Signals
from services.deployer.stores.memory import MemoryStore


class QuietMeter:
    def __init__(self) -> None:
        self.decisions: list[str] = []

    def set_signed(self) -> None: ...

    def reported(self, stage: Stage) -> None: ...

    def blob_bytes(self, direction: str, count: int) -> None: ...

    def release_counts(self, name: ReleaseName, counts: Counts | None) -> None: ...

    def decided(self, decision: str) -> None:
        self.decisions.append(decision)


class World:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.signals = Signals()
        self.clock = FakeClock()
        self.meter = QuietMeter()
        self.census = Census(self.store, Books(), self.clock)
        self.reconciler = Reconciler(self.store, self.census, self.signals, self.meter, self.clock)

    async def add_device(self, index: int) -> None:
        device = Device(DeviceName("acme", f"d{index}"), b"k", {}, START, START)
        await self.store.run(lambda tx: tx.add_device(device))

    async def add_release(self, name: str = "r1", *, shares: tuple[int, ...] = (10_000,)) -> Release:
        release = Release(
            name=ReleaseName("acme", name),
            version=VersionName("acme", name, "1"),
            policy_json="",
            shares=shares,
            gate=Gate(),
            salt=b"s" * 16,
            create_time=START,
            creator="me",
            steps=(StepStatus(shares[0], START),),
        )
        return await self.store.run(lambda tx: tx.add_release(release))

    async def report(self, release: Release, device: int, stage: Stage) -> None:
        told = DeviceStage(
            DeviceName("acme", f"d{device}"), release.sequence, release.version.task, "1", stage
        )
        await self.store.run(lambda tx: tx.put_stage(told))
        self.signals.releases_changed([release.name])

    async def state(self, release: Release) -> ReleaseState:
        stored = await self.store.read(lambda tx: tx.get_release(release.name))
        assert stored is not None
        return stored.state

    async def until(self, release: Release, state: ReleaseState) -> None:
        """Let time pass until the release is in a state."""
        async with asyncio.timeout(30):
            while await self.state(release) is not state:
                await self.clock.wait_for_sleepers()
                self.clock.advance(0.1)
                for _ in range(5):
                    await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.reconciler.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_it_takes_up_releases_of_before_its_start_and_ends_them() -> None:
    world = World()
    await world.add_device(1)
    release = await world.add_release()
    async with world.running():
        await world.clock.wait_for_sleepers()
        assert await world.state(release) is ReleaseState.RUNNING
        await world.report(release, 1, Stage.CONFIRMED)
        await world.until(release, ReleaseState.SUCCEEDED)
    assert world.meter.decisions == ["succeed"]


async def test_a_release_that_cannot_be_looked_at_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    await world.add_device(1)
    bad, good = await world.add_release("bad"), await world.add_release("good")
    real, broken = world.census.of, [True]

    async def of(release: Release) -> object:
        if broken[0] and release.name == bad.name:
            raise OSError("broken")
        return await real(release)

    monkeypatch.setattr(world.census, "of", of)
    async with world.running():
        await world.report(bad, 1, Stage.CONFIRMED)
        await world.report(good, 1, Stage.CONFIRMED)
        await world.until(good, ReleaseState.SUCCEEDED)
        assert await world.state(bad) is ReleaseState.RUNNING
        assert "broken" in caplog.text
        broken[0] = False
        await world.until(bad, ReleaseState.SUCCEEDED)


async def test_a_decision_on_a_stale_release_is_dropped_and_made_anew() -> None:
    world = World()
    await world.add_device(1)
    release = await world.add_release()
    await world.report(release, 1, Stage.FAILED)
    real = world.store.run
    raced = []

    async def run(work: object) -> object:
        if not raced:
            raced.append(True)
            raise Conflict("somebody was faster")
        return await real(work)  # type: ignore[arg-type]

    async with world.running():
        world.store.run = run  # type: ignore[method-assign, assignment]
        await world.until(release, ReleaseState.ROLLED_BACK)
    assert raced
    assert world.meter.decisions == ["roll_back"]


async def test_it_never_polls_faster_than_it_must() -> None:
    world = World()
    await world.add_device(1)
    await world.add_release()
    reads = []
    real = world.store.read

    async def read(work: object) -> object:
        reads.append(world.clock.monotonic())
        return await real(work)  # type: ignore[arg-type]

    world.store.read = read  # type: ignore[method-assign, assignment]
    async with world.running():
        await world.clock.wait_for_sleepers()
        before = len(reads)
        for _ in range(90):
            world.clock.advance(0.1)
            for _ in range(5):
                await asyncio.sleep(0)
        assert len(reads) == before

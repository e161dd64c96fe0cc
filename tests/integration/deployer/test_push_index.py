"""The push index's source: snapshots, resumption, compaction, and what each change tells."""

import asyncio
from pathlib import Path

from isthmus.deployer.v1 import device_pb2, push_index_pb2, release_pb2
from libs.common.errors import OutOfRange
from libs.task.profile import profile_digest
from services.deployer.testing import Client, Index, Running, index_stub, refused, running_deployer

WANTED = profile_digest(["genres@1.0.0"])


class Gateway:
    """Follows the index as a gateway does."""

    def __init__(self, running: Running) -> None:
        self.index = Index()
        self._stub = index_stub(running.channel.acting_as)
        self._call = self._stub.Watch(push_index_pb2.WatchRequest(), timeout=120)

    def resume(self, revision: int) -> None:
        self._call.cancel()
        self._call = self._stub.Watch(push_index_pb2.WatchRequest(revision=revision), timeout=120)

    async def read(self) -> None:
        batch = await self._call.read()
        assert isinstance(batch, push_index_pb2.WatchResponse)
        self.index.apply(batch)

    async def until(self, digests: dict[str, bytes], revoked: set[str] | None = None) -> None:
        async with asyncio.timeout(60):
            while self.index.digests != digests or self.index.revoked != (revoked or set()):
                await self.read()

    async def snapshot(self) -> None:
        while not self.index.revision:
            await self.read()

    def close(self) -> None:
        self._call.cancel()


async def test_a_snapshot_holds_just_those_that_differ_and_the_revoked(
    running: Running, client: Client
) -> None:
    await client.publish()
    devices = await client.enrol_many(3)
    await client.release()
    await devices[0].follow()
    await client.devices.RevokeDevice(device_pb2.RevokeDeviceRequest(name=devices[2].name))
    gateway = Gateway(running)
    await gateway.snapshot()
    assert gateway.index.digests == {devices[1].name: WANTED}
    assert gateway.index.revoked == {devices[2].name}
    gateway.close()


async def test_failing_rolling_back_and_late_joining_are_told(running: Running, client: Client) -> None:
    await client.publish()
    await client.publish(version="2.0.0")
    devices = await client.enrol_many(4)
    names = [device.name for device in devices]
    gateway = Gateway(running)
    first = await client.release()
    await gateway.until(dict.fromkeys(names, WANTED))
    for device in devices:
        await device.follow()
    await gateway.until({})
    await client.release_when(first.name, lambda r: r.state == r.STATE_SUCCEEDED)
    second = await client.release("2.0.0", failed_percent=100, min_report_count=100)
    newer = profile_digest(["genres@2.0.0"])
    await gateway.until(dict.fromkeys(names, newer))
    await devices[0].follow(failing=["genres@2.0.0"])  # stays on 1.0.0, as it should from now on
    await devices[1].follow()
    await gateway.until(dict.fromkeys(names[2:], newer))
    late = await client.enrol("late")
    await gateway.until({**dict.fromkeys(names[2:], newer), late.name: newer})
    await client.releases.RollBackRelease(release_pb2.RollBackReleaseRequest(name=second.name))
    await gateway.until({names[1]: WANTED, late.name: WANTED})
    gateway.close()


async def test_a_step_tells_only_those_it_adds(running: Running, client: Client) -> None:
    await client.publish()
    devices = await client.enrol_many(20)
    release = await client.release(steps=[30, 100], soak_s=3600)
    gateway = Gateway(running)
    await gateway.snapshot()
    assert len(gateway.index.digests) == release.counts.targeted_count < len(devices)
    gateway.close()


async def test_a_watcher_resumes_from_its_revision(running: Running, client: Client) -> None:
    await client.publish()
    device = await client.enrol("d1")
    gateway = Gateway(running)
    await gateway.snapshot()
    await client.release()
    await gateway.until({device.name: WANTED})
    seen = gateway.index.revision
    await device.follow()
    gateway.resume(seen)
    await gateway.until({})
    assert gateway.index.revision > seen
    gateway.close()


async def test_revisions_of_before_a_restart_or_the_future_are_out_of_range(tmp_path: Path) -> None:
    async with running_deployer(tmp_path) as running:
        gateway = Gateway(running)
        await gateway.snapshot()
        old = gateway.index.revision
        gateway.resume(old + 1000)
        with refused(OutOfRange, "start again from 0"):
            await gateway.read()
    async with running_deployer(tmp_path) as running:
        gateway = Gateway(running)
        gateway.resume(old)
        with refused(OutOfRange, "start again from 0"):
            await gateway.read()

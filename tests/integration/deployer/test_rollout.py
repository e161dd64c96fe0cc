"""A version from the author to the devices, over real gRPC."""

import asyncio
from pathlib import Path

from isthmus.deployer.v1 import push_index_pb2, release_pb2
from libs.task.profile import profile_digest
from services.deployer.testing import Index, index_stub, running_deployer

State = release_pb2.Release.State


async def test_a_release_reaches_every_device_step_by_step(tmp_path: Path) -> None:
    async with running_deployer(tmp_path) as running:
        client = running.client()
        await client.install_root()
        await client.create_task()
        await client.publish()
        devices = await client.enrol_many(12)
        release = await client.release(steps=[25, 50, 100])
        assert release.state == State.STATE_RUNNING
        async with asyncio.timeout(60):
            while (await client.get_release(release.name)).state == State.STATE_RUNNING:
                for device in devices:
                    await device.follow()
        done = await client.get_release(release.name)
        assert done.state == State.STATE_SUCCEEDED, done.state_reason
        assert done.counts.targeted_count == done.counts.confirmed_count == 12
        assert [step.percent for step in done.steps] == [25, 50, 100]
        assert {frozenset(device.profile) for device in devices} == {frozenset({"genres@1.0.0"})}
        assert [action for actor, action in await client.actions(release.name)] == [
            "release.create",
            "release.step",
            "release.step",
            "release.succeed",
        ]


async def test_a_bad_version_rolls_back_by_itself_and_devices_return_to_the_one_before(
    tmp_path: Path,
) -> None:
    async with running_deployer(tmp_path) as running:
        client = running.client()
        await client.install_root()
        await client.create_task()
        await client.publish()
        devices = await client.enrol_many(8)
        first = await client.release()
        for device in devices:
            await device.follow()
        await client.release_when(first.name, lambda r: r.state == State.STATE_SUCCEEDED)
        await client.publish(version="2.0.0")
        bad = await client.release("2.0.0")
        for device in devices:
            await device.follow(failing=["genres@2.0.0"])
        ended = await client.release_when(bad.name, lambda r: r.state == State.STATE_ROLLED_BACK)
        assert "most often EXCEPTION (" in ended.state_reason
        assert [failure.reason for failure in ended.failures] == ["EXCEPTION"]
        assert ended.failures[0].device_count == ended.counts.failed_count > 0
        last = (await client.audited(bad.name))[-1]
        assert (last.action, last.detail) == ("release.roll_back", ended.state_reason)
        for device in devices:
            assert await device.follow() == {"genres@1.0.0"}


async def test_the_push_index_knows_who_has_something_to_pull(tmp_path: Path) -> None:
    async with running_deployer(tmp_path) as running:
        client = running.client()
        await client.install_root()
        await client.create_task()
        await client.publish()
        devices = await client.enrol_many(5)
        index = Index()
        call = index_stub(running.channel.acting_as).Watch(push_index_pb2.WatchRequest(), timeout=60)
        index.apply(await call.read())
        assert index.revision
        assert not index.digests
        await client.release()
        wanted = profile_digest(["genres@1.0.0"])
        async with asyncio.timeout(30):
            while index.digests != {device.name: wanted for device in devices}:
                index.apply(await call.read())
            for device in devices:
                await device.follow()
            while index.digests:
                index.apply(await call.read())
        call.cancel()

"""Two replicas over one PostgreSQL: whichever is called, and however both decide, each thing happens once."""

import asyncio
from pathlib import Path

from isthmus.deployer.v1 import release_pb2
from libs.common.sql import open_database
from services.deployer.app import MIGRATIONS
from services.deployer.stores.sql import SqlStore
from services.deployer.testing import running_deployer

State = release_pb2.Release.State


async def test_a_release_through_two_replicas_takes_each_step_once(
    postgresql_url: str, tmp_path: Path
) -> None:
    async def replica() -> SqlStore:
        return SqlStore(await open_database(postgresql_url, script_location=MIGRATIONS))

    async with (
        running_deployer(tmp_path, store=await replica()) as one,
        running_deployer(tmp_path, store=await replica()) as other,
    ):
        client = one.client()
        await client.install_root()
        await client.create_task()
        await client.publish()
        devices = await client.enrol_many(9)
        for device in devices[::2]:
            device.acting_as = other.channel.acting_as
        release = await client.release(steps=[30, 60, 100])
        async with asyncio.timeout(100):
            while (await client.get_release(release.name)).state == State.STATE_RUNNING:
                await asyncio.gather(*(device.follow() for device in devices))
        done = await other.client().get_release(release.name)
        assert done.state == State.STATE_SUCCEEDED, done.state_reason
        assert done.counts.targeted_count == done.counts.confirmed_count == 9
        assert [action for actor, action in await client.actions(release.name)] == [
            "release.create",
            "release.step",
            "release.step",
            "release.succeed",
        ]

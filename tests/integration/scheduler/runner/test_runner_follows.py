"""A runner goes to whichever scheduler leads, and keeps no connection to those that did."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from libs.common.blobs import BlobClient
from libs.common.client import Channel
from libs.common.clock import SystemClock
from libs.common.rand import SystemRandomness
from libs.common.testing import ServerChannel, eventually
from libs.common.testing_blobs import MemoryBlobService
from services.scheduler.domain.objects import Facts, Resources
from services.scheduler.runner import convert
from services.scheduler.runner.attachment import Attachment
from services.scheduler.runner.folder import Folders
from services.scheduler.runner.life import Tools
from services.scheduler.runner.testing import NODE, FakeScheduler, fake_services
from services.scheduler.runner.workers import Workers


class Dialled(Channel):
    """A test's channel that notes when it is let go of, instead of being closed."""

    def __init__(self, channel: ServerChannel) -> None:
        super().__init__(channel._raw, channel._adders, channel._deadline_s)
        self.closed = False

    async def close(self, grace: float | None = None) -> None:
        self.closed = True


@asynccontextmanager
async def attaching(
    folder: Path, first: ServerChannel, *others: ServerChannel
) -> AsyncIterator[list[tuple[str, Dialled]]]:
    """Keep a runner attached that knows the first scheduler only; yield whom it dialled."""
    servers = {channel.target: channel for channel in (first, *others)}
    dialled: list[tuple[str, Dialled]] = []

    def dial(target: str) -> Channel:
        dialled.append((target, Dialled(servers[target])))
        return dialled[-1][1]

    clock, randomness = SystemClock(), SystemRandomness()
    facts = Facts(Resources(4000, 2**30))
    attachment = Attachment(NODE, facts, [first.target], dial, clock=clock, randomness=randomness)
    blobs = BlobClient(first)
    tools = Tools(blobs, blobs, clock, {}, 4096, 4096.0, 16)
    workers = Workers(NODE, Folders(folder), tools, attachment.append_log, read=convert.stored_assignment)
    task = asyncio.create_task(attachment.run(workers))
    try:
        yield dialled
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await workers.close()


async def test_a_runner_follows_the_leader_and_comes_back(tmp_path: Path) -> None:
    standby, leader = FakeScheduler(), FakeScheduler()
    async with (
        fake_services(standby, MemoryBlobService()) as first,
        fake_services(leader, MemoryBlobService()) as second,
    ):
        standby.leader = second.target
        async with attaching(tmp_path, first, second) as dialled:
            await leader.until(lambda: len(leader.hellos) == 1)
            assert [target for target, _ in dialled] == [first.target, second.target]
            # Now the one that it knows leads, and the other is gone.
            standby.leader = ""
            leader.refuse = 1_000_000
            leader.hang_up()
            await standby.until(lambda: len(standby.hellos) == 1)
            await eventually(lambda: dialled[1][1].closed)
            assert not dialled[0][1].closed
            assert [target for target, _ in dialled] == [first.target, second.target]
        assert all(channel.closed for _, channel in dialled)

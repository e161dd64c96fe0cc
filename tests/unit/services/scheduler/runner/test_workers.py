"""What earlier runners left is taken over, also where the disk has spoilt some of it."""

from pathlib import Path

import grpc
import pytest

from libs.common.blobs import BlobClient
from libs.common.clock import SystemClock
from libs.common.names import NodeName
from services.scheduler.domain.objects import WorkerId
from services.scheduler.runner import convert
from services.scheduler.runner.folder import Folders
from services.scheduler.runner.life import Tools
from services.scheduler.runner.users import Users
from services.scheduler.runner.workers import Workers


async def unused(worker: WorkerId, offset: int, data: bytes, last: bool) -> int:
    raise AssertionError("no log is sent here")


@pytest.mark.parametrize("spoilt", ["start", "uid"])
async def test_a_folder_that_cannot_be_read_stops_nothing_and_its_user_stays_taken(
    tmp_path: Path, spoilt: str
) -> None:
    folders, users = Folders(tmp_path), Users(2000, 2002)
    for i in range(2):
        folders.make(f"uid-1-{i}", b"not a message", user_id=2000 + i)
    (tmp_path / "uid-1-0" / spoilt).write_bytes(b"")
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        blobs = BlobClient(channel)
        tools = Tools(blobs, blobs, SystemClock(), {}, 4096, 4096.0, 16)
        workers = Workers(NodeName("n1"), folders, tools, unused, read=convert.stored_assignment, users=users)
        await workers.adopt()
        assert workers.running_count == 0
        free = {2002} if spoilt == "start" else {2000, 2002}
        assert {users.take() for _ in free} == free
        await workers.close()

"""Downloads break, disks fill up and files change: installing goes on from there, whole or not at all."""

import asyncio
import errno
import io
import json
import threading

import pytest

from libs.common.errors import Unavailable
from libs.task.manifest import Blob
from libs.trust.digests import sha256_of
from services.device_agent.app import Agent
from services.device_agent.files import VersionFiles
from services.device_agent.testing.app import running, states
from services.device_agent.testing.tasks import ECHO, task

V2 = 'def run(context):\n    return {"v": 2}\n'


async def test_a_download_is_resumed_where_it_broke(cloud, agent_config):
    big = bytes(range(256)) * 1024
    cloud.publish(task(resources={"data/big.bin": big}))
    await cloud.want("d1", {"hello": "1"})
    broke = []

    def breaks_once(digest, data):
        if digest == sha256_of(big) and not broke:
            broke.append(digest)
            return data[: 100 * 1024]
        return data

    cloud.blob = breaks_once
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
    assert cloud.offsets.count(100 * 1024) == 1


async def test_failing_calls_are_tried_again(cloud, agent_config):
    cloud.publish(task())
    await cloud.want("d1", {"hello": "1"})
    for method in ("Enrol", "Plan", "ReadBlob", "Report", "Watch"):
        cloud.fail[method] = [Unavailable("down"), Unavailable("still down")]
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await cloud.until(lambda: "ACTIVATED" in cloud.stages("hello@1"))


class _Full(io.RawIOBase):
    """A file on a disk that is full after so many bytes."""

    def __init__(self, file, disk):
        self._file, self._disk = file, disk

    def write(self, data):
        if len(data) > self._disk["left"]:
            raise OSError(errno.ENOSPC, "no space left")
        self._disk["left"] -= len(data)
        return self._file.write(data)

    def fileno(self):
        return self._file.fileno()

    def writable(self):
        return True

    def close(self):
        self._file.close()
        super().close()


@pytest.mark.parametrize("left", [0, 1000, 70_000, 140_000])
async def test_a_full_disk_installs_nothing_and_goes_on_when_there_is_room(
    cloud, agent_config, tmp_path, left
):
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2", source=V2, resources={"big": bytes(100_000)}))
    await cloud.want("d1", {"hello": "1"})
    disk = {"left": 10**9}

    def opener(path, mode):
        return _Full(path.open(mode, buffering=0), disk)

    agent = Agent(agent_config(), files=lambda state, reserve: VersionFiles(state, reserve, opener))
    async with running(agent) as app:
        await app.until_state("hello@1", "ACTIVE")
        disk["left"] = left
        await cloud.want("d1", {"hello": "2"}, "r2")
        status = await app.until_problem("disk is full")
        assert states(status) == {"hello@1": "ACTIVE"}
        assert not (tmp_path / "state" / "versions" / "hello" / "2").exists()
        assert list((tmp_path / "state" / "staging").iterdir()) == []
        disk["left"] = 10**9
        await app.until_state("hello@2", "ACTIVE")
        assert "FAILED" not in cloud.stages("hello@2")


async def test_a_download_that_is_cancelled_while_its_file_opens_leaves_none_open(cloud, tmp_path):
    asked, opens, opened = threading.Event(), threading.Event(), []

    def slow(path, mode):
        asked.set()
        opens.wait()
        opened.append(path.open(mode, buffering=0))
        return opened[0]

    files = VersionFiles(tmp_path, 0, slow)
    files.prepare()
    fetching = asyncio.create_task(files.fetch(cloud, Blob(sha256_of(b"data"), 4)))
    await asyncio.to_thread(asked.wait)
    fetching.cancel()
    await asyncio.sleep(0)
    opens.set()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    async with asyncio.timeout(60.0):
        while not (opened and opened[0].closed):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_download_that_is_cancelled_closes_its_file_after_what_is_being_written(cloud, tmp_path):
    writes, goes_on, closed_meanwhile = threading.Event(), threading.Event(), []

    class Slow(io.FileIO):
        def write(self, data):
            writes.set()
            goes_on.wait()
            closed_meanwhile.append(self.closed)
            return super().write(data)

    class Origin:
        async def read_blob(self, digest, offset, size):
            yield b"data"

    files = VersionFiles(tmp_path, 0, lambda path, mode: Slow(path, mode))
    files.prepare()
    digest = sha256_of(b"data")
    fetching = asyncio.create_task(files.fetch(Origin(), Blob(digest, 4)))
    await asyncio.to_thread(writes.wait)
    for _ in range(2):
        fetching.cancel()
        await asyncio.sleep(0)
    assert not fetching.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert closed_meanwhile == [False]
    (part,) = (tmp_path / "blobs").iterdir()
    assert part.read_bytes() == b"data"
    await files.fetch(cloud, Blob(digest, 4))  # what was written is gone on with
    assert cloud.calls["ReadBlob"] == 0


async def test_too_little_space_is_found_before_anything_is_fetched(cloud, agent_config):
    cloud.publish(task(resources={"big": bytes(100_000)}))
    await cloud.want("d1", {"hello": "1"})
    free = {"bytes": 50_000}
    agent = Agent(
        agent_config(),
        files=lambda state, reserve: VersionFiles(state, reserve, free_bytes=lambda path: free["bytes"]),
    )
    async with running(agent) as app:
        await app.until_problem("free some space")
        assert cloud.calls["ReadBlob"] == 0
        free["bytes"] = 10**9
        await app.until_state("hello@1", "ACTIVE")


async def test_files_that_changed_on_the_disk_are_quarantined_and_fetched_again(
    cloud, agent_config, tmp_path
):
    cloud.publish(task(source=ECHO))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
    script = tmp_path / "state" / "versions" / "hello" / "1" / "run.py"
    script.chmod(0o600)
    script.write_text('def run(context):\n    return {"hacked": True}\n')
    half = tmp_path / "state" / "staging" / "half"
    half.mkdir()
    (half / "run.py").write_text("half a file")
    cloud.hold["Plan"] = asyncio.Event()
    async with running(Agent(agent_config())) as app:
        status = await app.until_problem("quarantine")
        assert states(status) == {}
        assert not half.exists()
        await app.go()
        cloud.hold["Plan"].set()
        await app.until_state("hello@1", "ACTIVE")
        await app.go(first=1)
        (result,) = await app.results(1)
        assert json.loads(result.result_json) == {"user": "u1", "type": "go"}
        await app.until(lambda s: not s.problems)

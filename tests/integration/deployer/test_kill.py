"""kill -9 of a real deployer process at each stage of a rollout: what it acknowledged is there afterwards."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from isthmus.deployer.v1 import blob_pb2, release_pb2
from libs.common.client import Channel, create_channel
from libs.common.clock import SystemClock
from libs.common.identity import GATEWAY, IDENTITY_HEADER, Identity, IdentityIssuer, publish_key
from libs.task.testing import blob_ref
from services.deployer.app import NAME
from services.deployer.testing import DONE, Client, SimulatedDevice, Stage

State = release_pb2.Release.State
CONTENT = bytes(range(256)) * 4096 * 2


class Process:
    """A deployer in a process of its own, which can be killed and started again over the same files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        key = Ed25519PrivateKey.generate()
        publish_key(folder / "trust", GATEWAY, key.public_key())
        self._issuer = IdentityIssuer(GATEWAY, key, SystemClock())
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None

    async def start(self) -> None:
        folder = self._folder
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.deployer",
            "--port=0",
            "--metrics-port=-1",
            f"--database-url=sqlite:///{folder}/deployer.db",
            f"--data-dir={folder}/data",
            f"--signing-key-file={folder}/signing.key",
            f"--identity-trust-dir={folder}/trust",
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"]},
        )
        assert self._process.stderr is not None
        seen = []
        async with asyncio.timeout(60):
            while line := await self._process.stderr.readline():
                seen.append(line)
                entry = json.loads(line) if line.startswith(b"{") else {}
                if "port" in entry:
                    self._channel = create_channel(f"127.0.0.1:{entry['port']}")
                    self._drain = asyncio.create_task(self._process.stderr.read())
                    return
        await self._process.wait()
        raise AssertionError(b"".join(seen).decode())

    async def kill(self) -> None:
        assert self._process is not None
        assert self._channel is not None
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        await self._drain
        await self._channel.close()

    async def kill_and_start(self) -> None:
        await self.kill()
        await self.start()

    def acting_as(self, identity: Identity | None) -> Channel:
        assert self._channel is not None
        if identity is None:
            return self._channel
        token = self._issuer.mint(identity, NAME)
        return self._channel.with_metadata(lambda method, given: ((IDENTITY_HEADER, token),))

    def client(self) -> Client:
        return Client(self.acting_as, "acme")


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    made = Process(tmp_path)
    await made.start()
    yield made
    await made.kill()


async def prepared(process: Process, count: int) -> tuple[Client, list[SimulatedDevice]]:
    client = process.client()
    await client.install_root()
    await client.create_task()
    await client.publish()
    return client, await client.enrol_many(count)


async def test_a_rollout_goes_on_over_kills_at_each_stage(process: Process) -> None:
    client, devices = await prepared(process, 12)
    release = await client.release(steps=[25, 50, 100])
    await process.kill_and_start()  # right after it was made
    killed: set[tuple[int, int]] = set()
    async with asyncio.timeout(100):
        while True:
            now = await process.client().get_release(release.name)
            if now.state == State.STATE_SUCCEEDED:
                break
            assert now.state == State.STATE_RUNNING, now.state_reason
            for device in devices:
                if not device.profile:
                    await device.follow()
            done = sum(bool(device.profile) for device in devices)
            stage = (now.step_index, done)
            if done and stage not in killed:  # after reports were acknowledged, in each step
                killed.add(stage)
                await process.kill_and_start()
    assert len(killed) >= 3
    done = await process.client().get_release(release.name)
    assert done.counts.targeted_count == done.counts.confirmed_count == 12
    assert [step.percent for step in done.steps] == [25, 50, 100]
    assert all(device.profile == {"genres@1.0.0"} for device in devices)
    steps = [action for _, action in await process.client().actions(release.name)]
    assert steps == ["release.create", "release.step", "release.step", "release.succeed"]


@pytest.mark.parametrize("stage", [*DONE, Stage.STAGE_FAILED])
async def test_an_acknowledged_report_is_there_after_a_kill(process: Process, stage: Stage.ValueType) -> None:
    client, devices = await prepared(process, 3)
    release = await client.release(confirmed_percent=100, failed_percent=100)
    told = ("genres", "1.0.0", release.name)
    await devices[0].report(told, [stage])
    await process.kill_and_start()
    counts = (await process.client().get_release(release.name)).counts
    counted = [
        counts.downloaded_count,
        counts.verified_count,
        counts.staged_count,
        counts.activated_count,
        counts.confirmed_count,
        counts.failed_count,
    ]
    assert counted == [int(stage == index) for index in range(1, 7)]
    await devices[0].report(told, [stage], report_id="r1")  # the device never got the answer: it repeats
    assert (await process.client().get_release(release.name)).counts == counts


async def test_a_roll_back_stays_rolled_back_over_a_kill(process: Process) -> None:
    client, devices = await prepared(process, 4)
    first = await client.release()
    for device in devices:
        await device.follow()
    await client.release_when(first.name, lambda r: r.state == State.STATE_SUCCEEDED)
    await client.publish(version="2.0.0")
    bad = await client.release("2.0.0")
    for device in devices[:2]:
        await device.follow(failing=["genres@2.0.0"])
    await process.kill_and_start()
    client = process.client()
    ended = await client.release_when(bad.name, lambda r: r.state == State.STATE_ROLLED_BACK)
    assert ended.counts.failed_count >= 1
    await process.kill_and_start()
    assert (await process.client().get_release(bad.name)).state == State.STATE_ROLLED_BACK
    for device in devices:
        assert await device.follow() == {"genres@1.0.0"}


async def test_an_upload_goes_on_from_what_was_acknowledged(process: Process) -> None:
    client = process.client()
    ref = blob_ref(CONTENT)
    begun = await client.blobs.BeginBlob(blob_pb2.BeginBlobRequest(blob=ref))
    acknowledged = 0
    while acknowledged < len(CONTENT):
        request = blob_pb2.WriteBlobRequest(
            upload_id=begun.upload_id,
            offset_bytes=acknowledged,
            data=CONTENT[acknowledged : acknowledged + 600_000],
        )
        acknowledged = (await process.client().blobs.WriteBlob(request)).offset_bytes
        # The next write is under way when the process dies: it may be there whole, in part, or not at all.
        request.offset_bytes = acknowledged
        request.data = CONTENT[acknowledged : acknowledged + 600_000]
        call = process.client().blobs.WriteBlob(request)
        await asyncio.sleep(0)
        await process.kill_and_start()
        # The killed process, or the channel that is closed with it: whichever ends the call first.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            await call
        begun = await process.client().blobs.BeginBlob(blob_pb2.BeginBlobRequest(blob=ref))
        assert begun.offset_bytes >= acknowledged
        acknowledged = begun.offset_bytes
    client = process.client()
    await client.blobs.CommitBlob(blob_pb2.CommitBlobRequest(upload_id=begun.upload_id))
    await process.kill_and_start()
    assert await process.client().read(ref.digest) == CONTENT


async def test_a_second_process_over_the_same_files_is_refused(process: Process, tmp_path: Path) -> None:
    second = Process(tmp_path)
    with pytest.raises(AssertionError, match="uses this SQLite file"):
        await second.start()


async def test_wrong_settings_are_told_all_at_once(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.deployer",
        "--port=100000",
        "--blob-grace-s=1",
        "--sining-key-file=x",
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
    )
    _, told = await process.communicate()
    assert process.returncode == 2
    for part in (b"--port", b"--blob-grace-s", b"did you mean '--signing-key-file'"):
        assert part in told

"""The tunnel as a process of its own: start, refusals, kill -9 under a sending device, SIGTERM."""

import asyncio
import json
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from isthmus.tunnel.v1 import tunnel_pb2, tunnel_pb2_grpc
from libs.common.client import create_channel
from libs.common.clock import SystemClock
from libs.common.identity import IDENTITY_HEADER, Identity, IdentityIssuer, load_or_create_key, publish_key
from services.gateway.tunnel.convert import to_frame
from services.gateway.tunnel.testing import EPOCH, STREAM, frame

RUN = ("-m", "services.gateway", "--role", "tunnel")
DEVICE = Identity("acme", "tenants/acme/devices/phone-1", "device", frozenset(), "gateway")
USER = Identity("acme", "tenants/acme/keys/k", "user", frozenset({"tunnel:read"}), "gateway")


class Home:
    """A folder for the tunnel and a key that it takes for the gateway's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        key = load_or_create_key(folder / "gateway.key")
        publish_key(folder / "trust", "gateway", key.public_key())
        self._issuer = IdentityIssuer("gateway", key, SystemClock())

    def metadata(self, identity: Identity) -> tuple[tuple[str, str], ...]:
        return ((IDENTITY_HEADER, self._issuer.mint(identity, "tunnel")),)

    async def start(self, *flags: str) -> Process:
        """Start the process; flags come after those that it needs."""
        needed = ("--port=0", f"--data-dir={self.folder}/log", f"--identity-trust-dir={self.folder}/trust")
        return await asyncio.create_subprocess_exec(
            sys.executable, *RUN, *needed, "--partitions=2", *flags, stderr=PIPE, stdout=PIPE
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Process, int]]:
        """Run the process until the block ends; yields it and its port."""
        process = await self.start()
        drained: asyncio.Task[bytes] | None = None
        try:
            assert process.stderr is not None
            async for line in process.stderr:
                told = json.loads(line)
                if "port" in told:
                    drained = asyncio.create_task(process.stderr.read())
                    yield process, told["port"]
                    return
            raise AssertionError("the tunnel ended before it served")
        finally:
            if process.returncode is None:
                process.kill()
            await (asyncio.gather(process.communicate()) if drained is None else drained)
            await process.wait()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


async def _send_until_killed(home: Home, process: Process, port: int, mark: int, lines: int) -> int:
    """Send frames from the resumed mark on, kill the process after so many acks; return the last ack."""
    async with create_channel(f"127.0.0.1:{port}") as channel:
        stub = tunnel_pb2_grpc.TunnelServiceStub(channel)
        call: Any = stub.Connect(metadata=home.metadata(DEVICE))
        hello = tunnel_pb2.Hello(streams=[tunnel_pb2.StreamEpoch(stream=STREAM.name, epoch=EPOCH)])
        await call.write(tunnel_pb2.ConnectRequest(hello=hello))
        resumed = (await call.read()).ack.sequence
        assert resumed >= mark, "what was acked is still there"
        acked: int = resumed

        async def send() -> None:
            sequence = resumed
            try:
                while True:
                    sequence += 1
                    await call.write(tunnel_pb2.ConnectRequest(frame=to_frame(frame(sequence))))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return

        sender = asyncio.create_task(send())
        heard, ended = 0, None
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                acked = response.ack.sequence
                heard += 1
                if heard == lines:
                    os.kill(process.pid, signal.SIGKILL)
        except grpc.aio.AioRpcError as error:
            ended = error.code()
        await sender
        # INTERNAL is what gRPC makes of a connection that breaks in the middle of a frame.
        assert ended in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)
        return acked


async def test_nothing_acked_is_lost_by_kill_9(home: Home) -> None:
    choose = random.Random(3)
    acked = 0
    for _ in range(5):
        async with home.running() as (process, port):
            acked = await _send_until_killed(home, process, port, acked, choose.randint(1, 60))
            await process.wait()
            assert process.returncode == -signal.SIGKILL
    async with home.running() as (_, port), create_channel(f"127.0.0.1:{port}") as channel:
        stub = tunnel_pb2_grpc.ExportServiceStub(channel)
        request = tunnel_pb2.ExportRequest(parent="tenants/acme")
        call: Any = stub.Export(request, metadata=home.metadata(USER))
        sequences = [record.frame.sequence async for page in call for record in page.records]
    assert sequences == list(range(1, len(sequences) + 1))
    assert len(sequences) >= acked > 0


async def test_sigterm_ends_it_in_order(home: Home) -> None:
    async with home.running() as (process, _):
        process.terminate()
        assert await process.wait() == 0
    assert (home.folder / "log/p-000").is_dir()


async def test_a_second_process_on_one_log_is_refused(home: Home) -> None:
    async with home.running():
        second = await home.start()
        _, told = await second.communicate()
    assert second.returncode == 1
    assert b"open in another process" in told


async def test_a_bad_configuration_is_told_and_nothing_started(home: Home) -> None:
    process = await home.start("--partitons=3")
    _, told = await process.communicate()
    assert process.returncode == 2
    assert b"--partitions" in told


async def test_help(home: Home) -> None:
    process = await home.start("--help")
    told, _ = await process.communicate()
    assert process.returncode == 0
    assert b"--data-dir" in told

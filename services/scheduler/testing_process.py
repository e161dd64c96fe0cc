"""For tests: schedulers in processes of their own, which can be killed."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from isthmus.scheduler.v1 import object_pb2 as pb
from libs.common.client import Channel, ServiceIdentity, create_channel
from libs.common.clock import SystemClock
from libs.common.identity import GATEWAY, IDENTITY_HEADER, IdentityIssuer, publish_key
from services.scheduler.access import RUNNER
from services.scheduler.app import NAME
from services.scheduler.testing import user
from services.scheduler.testing_runner import Client, FakeRunner


class SchedulerProcess:
    """A scheduler over an etcd, on a port that stays the same when it is started again."""

    def __init__(self, folder: Path, endpoints: Sequence[str], *settings: str) -> None:
        """Keep its files below `folder`; `settings` are further flags."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._endpoints = endpoints
        self._settings = settings
        self._keys = {name: Ed25519PrivateKey.generate() for name in (GATEWAY, RUNNER)}
        for name, key in self._keys.items():
            publish_key(folder / "trust", name, key.public_key())
        self._process: asyncio.subprocess.Process | None = None
        self._drain: asyncio.Task[bytes] | None = None
        self._channels: list[Channel] = []
        self.port = 0

    @property
    def target(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it, and return once it serves."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.scheduler",
            f"--port={self.port}",
            "--metrics-port=-1",
            f"--etcd-endpoints={','.join(self._endpoints)}",
            f"--data-dir={self._folder}/data",
            f"--identity-trust-dir={self._folder}/trust",
            "--leader-ttl-s=2",
            "--liveness-s=5",
            *self._settings,
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
                    self.port = entry["port"]
                    self._drain = asyncio.create_task(self._process.stderr.read())
                    return
        await self._process.wait()
        raise AssertionError(b"".join(seen).decode())

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """Kill it, stalled or not; nothing happens when it doesn't run."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if self._drain is not None:
            await self._drain

    async def stop(self) -> None:
        """Kill it and close the channels to it."""
        await self.kill()
        for channel in self._channels:
            await channel.close()

    def client(self, tenant: str = "acme") -> Client:
        """Return a client that calls as a user of a tenant."""
        token = IdentityIssuer(GATEWAY, self._keys[GATEWAY], SystemClock()).mint(user(tenant), NAME)
        channel = create_channel(self.target, options=_RECONNECT)
        self._channels.append(channel)
        return Client(channel.with_metadata(lambda method, given: ((IDENTITY_HEADER, token),)), tenant)

    def runner(self, node: str = "n0", status: pb.NodeStatus | None = None) -> FakeRunner:
        """Return a runner that isn't attached yet."""
        issuer = IdentityIssuer(RUNNER, self._keys[RUNNER], SystemClock())
        channel = create_channel(self.target, identity=ServiceIdentity(issuer, NAME), options=_RECONNECT)
        self._channels.append(channel)
        return FakeRunner(channel, node, status)


_RECONNECT = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200))


@asynccontextmanager
async def scheduler_process(
    folder: Path, endpoints: Sequence[str], *settings: str
) -> AsyncIterator[SchedulerProcess]:
    """Run a scheduler inside the block."""
    made = SchedulerProcess(folder, endpoints, *settings)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()

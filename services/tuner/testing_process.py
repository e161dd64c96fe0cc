"""For tests: tuners in processes of their own, which can be killed, with what they need beside them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from libs.common.access import Access
from libs.common.client import Channel, create_channel
from libs.common.clock import SystemClock
from libs.common.identity import (
    GATEWAY,
    IDENTITY_HEADER,
    Identity,
    IdentityIssuer,
    load_or_create_key,
    load_trust_dir,
    publish_key,
)
from libs.common.testing import running_server
from libs.common.testing_blobs import MemoryBlobService
from services.tuner.testing import Client

_RECONNECT = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200))
_SERVICES = ("serving", "tuner")


class ServiceProcess:
    """A service on a port that stays the same when it is started again."""

    def __init__(self, name: str, folder: Path, settings: Mapping[str, str]) -> None:
        self.name = name
        self.port = 0
        self._folder = folder
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._drain: asyncio.Task[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it, and return once it serves."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"services.{self.name}",
            f"--port={self.port}",
            "--metrics-port=-1",
            f"--data-dir={self._folder / self.name}",
            f"--identity-trust-dir={self._folder / 'trust'}",
            f"--identity-key-file={self._folder / self.name}.key",
            *(f"--{name}={value}" for name, value in self._settings.items()),
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"]},
        )
        self._process = process
        assert process.stderr is not None
        seen = []
        async with asyncio.timeout(60):
            while line := await process.stderr.readline():
                seen.append(line)
                entry = json.loads(line) if line.startswith(b"{") else {}
                if "port" in entry:
                    self.port = entry["port"]
                    self._drain = asyncio.create_task(process.stderr.read())
                    return
        await process.wait()
        raise AssertionError(b"".join(seen).decode())

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """End it by a signal; return its exit status. Nothing happens when it doesn't run."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        status = await process.wait()
        if self._drain is not None:
            await self._drain
        return status


class Surroundings:
    """A tuner and serving as processes, over a deployer's blobs in memory."""

    def __init__(self, folder: Path, blobs: MemoryBlobService, deployer_target: str) -> None:
        self.folder = folder
        self.blobs = blobs
        self.serving = ServiceProcess("serving", folder, {"deployer-target": deployer_target})
        self._deployer_target = deployer_target
        self._key = load_or_create_key(folder / "gateway.key")
        publish_key(folder / "trust", GATEWAY, self._key.public_key())
        self._channels: list[Channel] = []
        self.tuner = ServiceProcess("tuner", folder, {})

    async def start(self) -> None:
        """Start serving, then the tuner."""
        await self.serving.start()
        settings = {
            "deployer-target": self._deployer_target,
            "serving-target": f"127.0.0.1:{self.serving.port}",
            "database-url": f"sqlite:///{self.folder}/tuner.db",
        }
        self.tuner = ServiceProcess("tuner", self.folder, settings)
        await self.tuner.start()

    async def stop(self) -> None:
        """End everything."""
        for channel in self._channels:
            await channel.close()
        await self.tuner.end()
        await self.serving.end()

    def channel(self, process: ServiceProcess) -> Channel:
        """Return a channel to a process on which somebody calls who may do everything."""
        issuer = IdentityIssuer(GATEWAY, self._key, SystemClock())
        somebody = Identity("acme", "key-1", "user", frozenset({"*"}), GATEWAY)
        raw = create_channel(f"127.0.0.1:{process.port}", options=_RECONNECT)
        self._channels.append(raw)
        return raw.with_metadata(lambda _, given: ((IDENTITY_HEADER, issuer.mint(somebody, process.name)),))

    def client(self) -> Client:
        """Return a client of the tuner."""
        return Client(self.channel(self.tuner))

    def instances(self) -> list[int]:
        """Return the processes that work in the tuner's folder of trials, or make load."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
                ours = f"{self.folder}/" in command
                if ours and ("/tuner/trials" in command or "services.tuner.caller" in command):
                    found.append(int(entry.name))
        return found


@asynccontextmanager
async def surroundings(folder: Path) -> AsyncIterator[Surroundings]:
    """Run a tuner and what it needs inside the block."""
    trust = folder / "trust"
    keys: dict[str, Ed25519PrivateKey] = {}
    for name in _SERVICES:
        keys[name] = load_or_create_key(folder / f"{name}.key")
        publish_key(trust, name, keys[name].public_key())
    blobs = MemoryBlobService()
    access = {
        f"/isthmus.deployer.v1.BlobService/{method}": Access(callers=frozenset(_SERVICES))
        for method in ("StatBlob", "ReadBlob", "PinBlob", "UnpinBlobs")
    }
    trusted = {name: key.public_key() for name, key in keys.items()}
    assert set(load_trust_dir(trust)) == set(_SERVICES)
    async with running_server(blobs, audience="deployer", access=access, trusted=trusted) as channel:
        made = Surroundings(folder, blobs, channel.target)
        try:
            await made.start()
            yield made
        finally:
            await made.stop()

"""For tests: a simulator in a process of its own, to be killed and started again over the same files."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from isthmus.deployer.v1 import manifest_pb2, preflight_pb2
from isthmus.device_agent.v1 import simulator_pb2, simulator_pb2_grpc
from libs.common.access import Access
from libs.common.client import Channel, create_channel
from libs.common.clock import SystemClock
from libs.common.identity import IDENTITY_HEADER, IdentityIssuer, load_or_create_key, publish_key
from libs.common.status import rpc_errors
from libs.common.testing import running_server
from libs.common.testing_blobs import MemoryBlobService
from libs.task.testing import make_manifest
from services.device_agent.simulator.app import NAME

_START_S = 60.0


class SimulatorProcess:
    """A simulator over `folder`. Its key is made beforehand, so that a deployer can be told of it first.

    Attributes:
        target: where it listens; a restarted one listens there again.
        data_dir: its folder.
    """

    def __init__(self, folder: Path, *flags: str) -> None:
        """Give it further `flags`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.data_dir = folder / "data"
        self.target = ""
        self._trust = folder / "trust"
        self._key_file = folder / "simulator.key"
        self._flags = flags
        self._process: asyncio.subprocess.Process | None = None
        self._drain: asyncio.Task[bytes] | None = None

    def public_key(self) -> Ed25519PublicKey:
        """Return whose tokens the deployer is to believe."""
        return load_or_create_key(self._key_file).public_key()

    def trust(self, service: str, key: Ed25519PublicKey) -> None:
        """Believe a service's tokens from the next start on."""
        publish_key(self._trust, service, key)

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def scratch(self) -> list[Path]:
        """The folders of simulations that are there."""
        return list((self.data_dir / "scratch").iterdir())

    async def start(self, deployer_target: str) -> None:
        """Start it and wait until it serves."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.device_agent",
            "--role=simulator",
            f"--port={self.target.rpartition(':')[2] or 0}",
            "--metrics-port=-1",
            f"--data-dir={self.data_dir}",
            f"--identity-key-file={self._key_file}",
            f"--identity-trust-dir={self._trust}",
            f"--deployer-target={deployer_target}",
            *self._flags,
            stderr=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
        )
        assert self._process.stderr is not None
        seen = []
        async with asyncio.timeout(_START_S):
            while line := await self._process.stderr.readline():
                seen.append(line)
                entry = json.loads(line) if line.startswith(b"{") else {}
                if "port" in entry:
                    self.target = f"127.0.0.1:{entry['port']}"
                    self._drain = asyncio.create_task(self._process.stderr.read())
                    return
        await self._process.wait()
        raise AssertionError(b"".join(seen).decode())

    async def stop(self, number: signal.Signals = signal.SIGKILL) -> str:
        """End it by a signal, SIGKILL unless told otherwise; return what it logged since it served."""
        if self._process is None or self._drain is None:
            return ""
        if self._process.returncode is None:
            self._process.send_signal(number)
        await self._process.wait()
        text = (await self._drain).decode()
        self._process = self._drain = None
        return text


class Caller:
    """A deployer, as far as a simulator sees one: asks it to simulate."""

    def __init__(self, simulator: SimulatorProcess) -> None:
        """Make a key that `simulator` believes from its next start on."""
        key = Ed25519PrivateKey.generate()
        for service in ("deployer", "engine"):
            simulator.trust(service, key.public_key())
        self._simulator = simulator
        self._key = key

    def channel(self, resource: str = "tenants/acme", service: str = "deployer") -> Channel:
        """Return a channel on which a service, the deployer, acts for `resource`; close it."""
        token = IdentityIssuer(service, self._key, SystemClock()).mint_own(NAME, resource)
        return create_channel(
            self._simulator.target, metadata=[lambda method, given: ((IDENTITY_HEADER, token),)]
        )

    async def simulate(
        self,
        manifest: manifest_pb2.TaskManifest,
        events: manifest_pb2.BlobRef | None = None,
        *,
        tenant: str = "acme",
        timeout_s: float = 120.0,
    ) -> preflight_pb2.Preflight:
        """Have a manifest simulated."""
        request = simulator_pb2.SimulateRequest(
            parent=f"tenants/{tenant}/tasks/{manifest.task}",
            manifest=manifest.SerializeToString(),
            events=events,
        )
        async with self.channel(f"tenants/{tenant}") as channel:
            with rpc_errors():
                answer = await simulator_pb2_grpc.SimulatorServiceStub(channel).Simulate(
                    request, timeout=timeout_s
                )
        return answer.preflight


READERS = {
    f"/isthmus.deployer.v1.BlobService/{method}": Access(kinds=frozenset(), callers=frozenset({"simulator"}))
    for method in ("StatBlob", "ReadBlob")
}


def lines(*numbers: object, type_: str = "rate") -> bytes:
    """Return a recording: one event for each number."""
    return b"".join(
        json.dumps({"type": type_, "user": "u1", "time_s": 1000 + at, "fields": {"n": n}}).encode() + b"\n"
        for at, n in enumerate(numbers)
    )


@dataclass(frozen=True, slots=True)
class Bench:
    """A simulator, what it takes files from, and who asks it."""

    simulator: SimulatorProcess
    caller: Caller
    blobs: MemoryBlobService
    deployer_target: str

    def version(self, script: str, *, tenant: str = "acme", **change: Any) -> manifest_pb2.TaskManifest:
        """Give a tenant a version with one script, `pre(context)`."""
        self.blobs.put(tenant, script.encode())
        return make_manifest(script=script.encode(), **change)

    def recording(self, content: bytes, tenant: str = "acme") -> manifest_pb2.BlobRef:
        """Give a tenant a recording."""
        return self.blobs.put(tenant, content).to_proto()

    def stranger(self) -> Channel:
        """Return a channel on which nobody says who it is; close it."""
        return create_channel(self.simulator.target)

    async def simulate(
        self, script: str, events: bytes | None = None, **change: Any
    ) -> preflight_pb2.Preflight:
        """Have a script simulated."""
        recording = self.recording(events) if events is not None else None
        return await self.caller.simulate(self.version(script, **change), recording)


@asynccontextmanager
async def running_bench(folder: Path, *flags: str) -> AsyncIterator[Bench]:
    """Run a bench in `folder`, the simulator with `flags`."""
    simulator = SimulatorProcess(folder / "simulator", *flags)
    caller, blobs = Caller(simulator), MemoryBlobService()
    async with running_server(
        blobs, access=READERS, audience="deployer", trusted={"simulator": simulator.public_key()}
    ) as channel:
        await simulator.start(channel.target)
        try:
            yield Bench(simulator, caller, blobs, channel.target)
        finally:
            await simulator.stop()

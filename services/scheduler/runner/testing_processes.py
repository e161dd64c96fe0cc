"""For tests: etcd, a deployer, a scheduler and runners as processes that can be killed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from libs.common.blobs import BlobClient
from libs.common.client import Channel, create_channel
from libs.common.clock import SystemClock
from libs.common.etcd.testing import EtcdServer, free_ports
from libs.common.identity import (
    GATEWAY,
    IDENTITY_HEADER,
    Identity,
    IdentityIssuer,
    load_or_create_key,
    publish_key,
)
from services.scheduler.runner.folder import WorkerFolder
from services.scheduler.runner.keepers import sweep
from services.scheduler.testing_runner import Client

_SERVICES = (GATEWAY, "deployer", "engine", "scheduler", "scheduler-runner")
_READY_S = 60.0


class Processes:
    """The processes; `etcd` is there as long as the block, the others are started and killed by name.

    Attributes:
        folder: everything's, with a `NAME.log` for each process.
        etcd: the store.
    """

    def __init__(self, folder: Path, etcd: EtcdServer) -> None:
        self.folder = folder
        self.etcd = etcd
        self._trust = folder / "trust"
        self._trust.mkdir()
        keys = {name: load_or_create_key(folder / f"{name}.key") for name in _SERVICES}
        for name, key in keys.items():
            publish_key(self._trust, name, key.public_key())
        self._issuer = IdentityIssuer(GATEWAY, keys[GATEWAY], SystemClock())
        self._ports = dict(zip(("deployer", "scheduler"), free_ports(2), strict=True))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._channels: list[Channel] = []

    def target(self, name: str) -> str:
        """Return where a service is called."""
        return f"127.0.0.1:{self._ports[name]}"

    async def start(self, name: str, *flags: str, wait: bool = True) -> None:
        """Start "deployer", "scheduler" or a runner by its node's name, and wait until a service answers."""
        self._processes[name] = self._spawn(name, flags)
        if wait and name in self._ports:
            async with create_channel(self.target(name)) as channel, asyncio.timeout(_READY_S):
                await channel.channel_ready()

    def _spawn(self, name: str, flags: Sequence[str]) -> "subprocess.Popen[bytes]":
        module, own = self._command(name)
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *own, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
            )

    def kill(self, name: str) -> None:
        """Kill a process, and wait until it has ended."""
        self.end(name, signal.SIGKILL)

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a process a signal, wait until it has ended, and return its exit status."""
        process = self._processes.pop(name)
        process.send_signal(number)
        return process.wait(timeout=_READY_S)

    def wait(self, name: str) -> int:
        """Wait until a process ends by itself; return its exit status."""
        return self._processes.pop(name).wait(timeout=_READY_S)

    def log(self, name: str) -> str:
        """Return what a process has written."""
        return (self.folder / f"{name}.log").read_text()

    def user(self, tenant: str = "acme") -> Client:
        """Return a user of a tenant, who may do everything."""
        return Client(self._channel("scheduler", tenant), tenant)

    def blobs(self, tenant: str = "acme") -> BlobClient:
        """Return a tenant's files, as a user sees them."""
        return BlobClient(self._channel("deployer", tenant))

    def workers(self, node: str = "n1") -> Path:
        """Return the folder of a node's workers."""
        return self.folder / node / "workers"

    def _channel(self, name: str, tenant: str) -> Channel:
        user = Identity(tenant, f"tenants/{tenant}/keys/test", "user", frozenset({"*"}), GATEWAY)
        channel = create_channel(
            self.target(name), metadata=[lambda *_: ((IDENTITY_HEADER, self._issuer.mint(user, name)),)]
        )
        self._channels.append(channel)
        return channel

    def _command(self, name: str) -> tuple[str, list[str]]:
        data = self.folder / name
        trust = ["--identity-trust-dir", str(self._trust), "--metrics-port", "-1"]
        if name == "deployer":
            return "services.deployer", [
                *trust,
                *("--port", str(self._ports[name]), "--data-dir", str(data)),
                *("--database-url", f"sqlite:///{self.folder}/deployer.db"),
                *("--signing-key-file", str(self.folder / "signing.key")),
                *("--identity-key-file", str(self.folder / "deployer.key")),
            ]
        if name == "scheduler":
            return "services.scheduler", [
                *trust,
                *("--port", str(self._ports[name]), "--data-dir", str(data)),
                *("--identity-key-file", str(self.folder / "scheduler.key")),
                *("--etcd-endpoints", self.etcd.endpoint, "--deployer-target", self.target("deployer")),
                *("--leader-ttl-s", "2", "--liveness-s", "5"),
            ]
        return "services.scheduler", [
            "--role",
            "runner",
            *trust,
            *("--node", name, "--state-dir", str(data), "--gpus", "none"),
            *("--cpu-millis", "8000", "--memory-bytes", str(16 * 2**30)),
            *("--identity-key-file", str(self.folder / "scheduler-runner.key")),
            *("--scheduler-target", self.target("scheduler"), "--deployer-target", self.target("deployer")),
        ]

    async def close(self) -> None:
        """End everything, workers that went on included."""
        for channel in self._channels:
            await channel.close()
        for process in self._processes.values():
            process.kill()
            process.wait()
        for folder in self.folder.glob("*/workers/*-*-*"):
            (folder / "stop.none").unlink(missing_ok=True)
            await asyncio.to_thread(sweep, WorkerFolder(folder))


@asynccontextmanager
async def running_processes(folder: Path, *names: str) -> AsyncIterator[Processes]:
    """Run etcd and the named processes."""
    etcd_folder = folder / "etcd"
    etcd_folder.mkdir()
    async with EtcdServer(etcd_folder) as etcd:
        processes = Processes(folder, etcd)
        try:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(processes.start(name))
            yield processes
        finally:
            await processes.close()

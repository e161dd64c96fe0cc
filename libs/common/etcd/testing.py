"""For tests: a real etcd of one's own, one member or three, that can be stopped, killed and stalled.

Its files are in a folder that the caller names, it listens on free ports of the loopback, and it ends with
the process that started it.
"""

import asyncio
import contextlib
import json
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc
from etcd_stubs import rpc_pb2, rpc_pb2_grpc

from libs.common.clock import SystemClock
from libs.common.etcd.binary import find_etcd
from libs.common.etcd.client import DEFAULT_TIMEOUT_S, EtcdClient
from libs.common.rand import SystemRandomness

_START_S = 60.0
_STOP_S = 30.0
_LOOK_S = 0.02
_PORTS = (12_000, 32_000)
_PORT_TRIES = 1_000
_HOST = "127.0.0.1"
# Short, so that tests of elections are; the shortest lease follows from it: 2 seconds at 100 ms and 1,000 ms.
_HEARTBEAT_MS = 50
_ELECTION_MS = 500


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files of a member that speaks TLS, and wants a certificate of each client.

    Attributes:
        authority: the certificate of whoever signs the clients'.
        certificate: the member's own.
        key: its private key.
    """

    authority: Path
    certificate: Path
    key: Path


class EtcdServer:
    """One member, on ports that stay its own over restarts.

    Attributes:
        name: the member's.
        endpoint: where clients call it, host:port.
    """

    def __init__(self, folder: Path, name: str = "etcd", *, certificates: Certificates | None = None) -> None:
        """Describe a member whose files go under `folder`; nothing is started yet.

        Clients speak to it in the clear unless `certificates` are given.

        Raises:
            Precondition: when etcd isn't installed.
        """
        self.name = name
        self._program = find_etcd()
        self._data = folder / f"{name}.data"
        self._log = folder / f"{name}.log"
        self._certificates = certificates
        self._client_port, self._peer_port, self._metrics_port = free_ports(3)
        self._cluster = f"{name}=http://{_HOST}:{self._peer_port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Where clients call it."""
        return f"{_HOST}:{self._client_port}"

    @property
    def endpoints(self) -> tuple[str, ...]:
        """As `EtcdCluster.endpoints`: only this one."""
        return (self.endpoint,)

    @property
    def peer(self) -> str:
        """Its entry in the list of the cluster's members."""
        return f"{self.name}=http://{_HOST}:{self._peer_port}"

    def join(self, members: Sequence["EtcdServer"]) -> None:
        """Make it a member of a cluster of all `members`, itself included; before the first start."""
        self._cluster = ",".join(member.peer for member in members)

    def spawn(self) -> None:
        """Start the process; `wait` waits until it serves."""
        scheme = "http" if self._certificates is None else "https"
        client, peer = f"{scheme}://{_HOST}:{self._client_port}", f"http://{_HOST}:{self._peer_port}"
        # A test run that is killed must not leave it behind.
        setpriv = shutil.which("setpriv")
        command = [
            *([setpriv, "--pdeathsig", "KILL"] if setpriv else []),
            str(self._program),
            f"--name={self.name}",
            f"--data-dir={self._data}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={self._cluster}",
            f"--heartbeat-interval={_HEARTBEAT_MS}",
            f"--election-timeout={_ELECTION_MS}",
            "--logger=zap",
            "--log-level=warn",
            f"--listen-metrics-urls=http://{_HOST}:{self._metrics_port}",
        ]
        if self._certificates is not None:
            command += [
                "--client-cert-auth",
                f"--trusted-ca-file={self._certificates.authority}",
                f"--cert-file={self._certificates.certificate}",
                f"--key-file={self._certificates.key}",
            ]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={}
            )

    def healthy(self) -> bool:
        """Look whether it serves, with a leader.

        Raises:
            RuntimeError: when its process has ended; the message holds what it said last.
        """
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.name} isn't running:\n{self._log.read_text('utf-8')[-4000:]}")
        with contextlib.suppress(OSError, ValueError):
            # Without the proxies that the environment may name.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://{_HOST}:{self._metrics_port}/health", timeout=2.0) as answer:
                return bool(json.load(answer).get("health") == "true")
        return False

    async def wait(self) -> None:
        """Wait until it serves; TimeoutError when it doesn't within a minute."""
        async with asyncio.timeout(_START_S):
            while not await asyncio.to_thread(self.healthy):  # noqa: ASYNC110 - another process
                await asyncio.sleep(_LOOK_S)

    async def start(self) -> None:
        """Start it, or start it again with its data, and wait until it serves."""
        self.spawn()
        await self.wait()

    def kill(self) -> None:
        """End it at once, by SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order, by SIGTERM."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Stall it, by SIGSTOP: its connections stay open, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Throw its data away, as a lost disk would; while it isn't running."""
        shutil.rmtree(self._data)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        self._signal(number)
        # One that is stalled takes nothing but SIGKILL.
        self._signal(signal.SIGCONT)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_S)
        self._process = None

    async def compact(self, revision: int) -> None:
        """Drop the history before `revision`, and wait until it is gone from the disk as well."""
        async with grpc.aio.insecure_channel(
            self.endpoint, options=(("grpc.enable_http_proxy", 0),)
        ) as channel:
            request = rpc_pb2.CompactionRequest(revision=revision, physical=True)
            await rpc_pb2_grpc.KVStub(channel).Compact(request, timeout=_STOP_S)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()


class EtcdCluster:
    """Several members that form one cluster.

    Attributes:
        members: each of them can be stopped, killed, stalled and started by itself.
    """

    def __init__(self, folder: Path, count: int = 3) -> None:
        """Describe a cluster of `count` members whose files go under `folder`; nothing is started yet."""
        self.members = tuple(EtcdServer(folder, f"etcd{number}") for number in range(1, count + 1))
        for member in self.members:
            member.join(self.members)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Where clients call the members."""
        return tuple(member.endpoint for member in self.members)

    async def start(self) -> None:
        """Start all members and wait until they serve."""
        for member in self.members:
            member.spawn()
        for member in self.members:
            await member.wait()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self._kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._kill()

    def _kill(self) -> None:
        for member in self.members:
            member.kill()


@contextlib.contextmanager
def running_etcd() -> Iterator[EtcdServer]:
    """Start a member in a folder of its own, for fixtures that outlive an event loop; its data go with it."""
    with tempfile.TemporaryDirectory(prefix="isthmus-etcd-") as folder:
        server = EtcdServer(Path(folder))
        server.spawn()
        try:
            deadline = time.monotonic() + _START_S
            while not server.healthy():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{server.name} doesn't serve after {_START_S:g} s")
                time.sleep(_LOOK_S)
            yield server
        finally:
            server.kill()


@contextlib.asynccontextmanager
async def etcd_client(
    server: EtcdServer | EtcdCluster,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    credentials: grpc.ChannelCredentials | None = None,
) -> AsyncIterator[EtcdClient]:
    """Yield a client of the server or the cluster, by the machine's clock; close it."""
    client = EtcdClient(
        server.endpoints,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        timeout_s=timeout_s,
        credentials=credentials,
    )
    async with client:
        yield client


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody listens on at the moment.

    They are below those that the kernel gives to outgoing connections. From among these, one could take the
    port while the server is down; even its own client, whose tries to connect then meet themselves.
    """
    found: list[int] = []
    for _ in range(_PORT_TRIES):
        port = random.randrange(*_PORTS)
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind((_HOST, port))
            found.append(port)
        if len(set(found)) == count:
            return sorted(set(found))
    raise RuntimeError(f"no {count} free ports from {_PORTS[0]} to {_PORTS[1]} in {_PORT_TRIES} tries")

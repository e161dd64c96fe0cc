from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from isthmus.tunnel.v1 import tunnel_pb2, tunnel_pb2_grpc
from libs.common.client import Channel, create_channel
from libs.common.clock import Clock, SystemClock
from libs.common.identity import IDENTITY_HEADER, Identity, IdentityIssuer, load_or_create_key, publish_key
from libs.common.rand import SystemRandomness
from libs.common.server import Server
from libs.common.telemetry import Telemetry
from libs.common.testing import FakeClock, FakeRandomness
from services.gateway.tunnel.app import assembled
from services.gateway.tunnel.config import TunnelConfig
from services.gateway.tunnel.store.disk import Disk
from services.gateway.tunnel.store.files import FileLog, LogSettings, open_log
from services.gateway.tunnel.store.log import Log
from services.gateway.tunnel.testing import FaultyDisk

Opener = Callable[..., Coroutine[Any, Any, FileLog]]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def opener(clock: FakeClock, tmp_path: Path) -> Opener:
    """Return a function that opens the one log of a test, again and again."""
    randomness = FakeRandomness()

    async def open_it(disk: Disk | None = None, **settings: Any) -> FileLog:
        return await open_log(
            tmp_path / "log",
            LogSettings(**{"partitions": 1, **settings}),
            clock=clock,
            randomness=randomness,
            disk=disk,
        )

    return open_it


@dataclass(slots=True)
class Served:
    """A tunnel that serves, and what a test needs to call it."""

    server: Server
    log: Log
    telemetry: Telemetry
    disk: FaultyDisk
    issuer: IdentityIssuer
    config: TunnelConfig
    channel: Channel

    def identity(self, device: str = "phone-1", tenant: str = "acme") -> Identity:
        return Identity(tenant, f"tenants/{tenant}/devices/{device}", "device", frozenset(), "gateway")

    def metadata(self, identity: Identity) -> tuple[tuple[str, str], ...]:
        return ((IDENTITY_HEADER, self.issuer.mint(identity, "tunnel")),)

    def connect(self, identity: Identity | None = None) -> Any:
        """Begin a Connect call as a device."""
        stub = tunnel_pb2_grpc.TunnelServiceStub(self.channel)
        return stub.Connect(metadata=self.metadata(identity or self.identity()))

    def export(self, request: tunnel_pb2.ExportRequest, *scopes: str, tenant: str = "acme") -> Any:
        """Begin an Export call as a user with these scopes."""
        stub = tunnel_pb2_grpc.ExportServiceStub(self.channel)
        user = Identity(tenant, f"tenants/{tenant}/keys/k", "user", frozenset(scopes), "gateway")
        return stub.Export(request, metadata=self.metadata(user))


@asynccontextmanager
async def running_tunnel(
    folder: Path, telemetry: Telemetry | None = None, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Served]:
    """Run a tunnel in this process, on a free port; its own key and the trusted ones are in `folder`."""
    key = load_or_create_key(folder / "gateway.key")
    trust = folder / "trust"
    trust.mkdir(exist_ok=True)
    publish_key(trust, "gateway", key.public_key())
    config = TunnelConfig(
        port=0,
        data_dir=folder / "log",
        identity_trust_dir=trust,
        identity_key_file=folder / "tunnel.key",
        partitions=2,
        check_every_s=0.05,
        trim_every_s=0.05,
        **settings,
    )
    telemetry, disk, clock = telemetry or Telemetry("tunnel"), FaultyDisk(), clock or SystemClock()
    async with assembled(config, telemetry, clock=clock, randomness=SystemRandomness(), disk=disk) as (
        server,
        log,
    ):
        await server.start()
        async with create_channel(f"127.0.0.1:{server.port}") as channel:
            issuer = IdentityIssuer("gateway", key, clock)
            yield Served(server, log, telemetry, disk, issuer, config, channel)
        await server.stop(0.0)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A tunnel without serving, whose disk a test can fill."""
    async with running_tunnel(tmp_path) as running:
        yield running

"""Fakes and helpers for tests, ours and those of whoever builds on this library."""

import asyncio
import heapq
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from prometheus_client import CollectorRegistry

from libs.common.access import PUBLIC_METHODS, Access
from libs.common.client import DEFAULT_DEADLINE_S, AddMetadata, Channel, channel_options
from libs.common.clock import Clock, SystemClock
from libs.common.config import ServiceConfig
from libs.common.identity import (
    GATEWAY,
    IDENTITY_HEADER,
    Authenticator,
    Identity,
    IdentityIssuer,
    IdentityVerifier,
    Metadata,
)
from libs.common.layers import Trailers
from libs.common.rand import ID_ALPHABET
from libs.common.server import AddsItself, Server, create_server
from libs.common.telemetry import Telemetry

START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """A clock whose hands only move by `advance`; sleepers wake in the order of their deadlines."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._arrivals: list[tuple[int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        """Return the start plus what was advanced."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Return the seconds advanced so far."""
        return self._elapsed

    @property
    def sleepers(self) -> int:
        """How many tasks are asleep on this clock."""
        return sum(1 for _, _, future in self._sleepers if not future.done())

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by `seconds`; zero or less only yields."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), future))
        for count, arrival in self._arrivals:
            if self.sleepers >= count and not arrival.done():
                arrival.set_result(None)
        await future

    def advance(self, seconds: float) -> None:
        """Move the hands forward and wake whoever slept until then; they run when the loop next does."""
        if seconds < 0:
            raise ValueError("time does not go back")
        target = self._elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= target:
            deadline, _, future = heapq.heappop(self._sleepers)
            self._elapsed = max(self._elapsed, deadline)
            if not future.done():
                future.set_result(None)
        self._elapsed = target

    def step(self, seconds: float) -> None:
        """Shift the wall clock alone, as an administrator or NTP would; monotonic time doesn't notice."""
        self._start += timedelta(seconds=seconds)

    async def wait_for_sleepers(self, count: int = 1) -> None:
        """Wait until at least `count` tasks are asleep, so that a test advances neither early nor blindly."""
        if self.sleepers >= count:
            return
        arrival = asyncio.get_running_loop().create_future()
        self._arrivals.append((count, arrival))
        try:
            await arrival
        finally:
            self._arrivals.remove((count, arrival))


class FakeRandomness:
    """Repeatable randomness: the same seed gives the same bytes, numbers and ids."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def bytes(self, n: int) -> bytes:
        """Return `n` repeatable bytes."""
        return self._random.randbytes(n)

    def uniform(self, a: float, b: float) -> float:
        """Return a repeatable number between `a` and `b`."""
        return self._random.uniform(a, b)

    def id(self, n: int = 16) -> str:
        """Return a repeatable id of `n` characters out of [a-z0-9]."""
        return "".join(self._random.choice(ID_ALPHABET) for _ in range(n))


USER = Identity("acme", "tenants/acme/keys/test", "user", frozenset({"*"}), GATEWAY)


class AnyMethod(Mapping[str, Access]):
    """An access table that lets users and devices call everything, for tests of something else."""

    def __getitem__(self, method: str) -> Access:
        return PUBLIC_METHODS.get(method) or Access(kinds=frozenset({"user", "device"}))

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class AlwaysUser:
    """Takes everybody for the same identity, `USER` unless told otherwise, without looking at credentials."""

    def __init__(self, identity: Identity = USER) -> None:
        self._identity = identity

    async def authenticate(self, method: str, metadata: Metadata) -> Identity | None:
        """Return the identity."""
        return self._identity


class ServerChannel(Channel):
    """A channel to a server under test, calling as some identity.

    Attributes:
        server: the server itself.
        telemetry: what it counts with; its registry is its own.
        target: its address.
        issuer: mints tokens that the server believes.
        audience: the name of the service.
    """

    server: Server
    telemetry: Telemetry
    target: str
    issuer: IdentityIssuer
    audience: str

    def acting_as(self, identity: Identity | None) -> Channel:
        """Return a channel over the same connection that calls as somebody else, or as nobody."""
        return self.anonymous().with_metadata(_says(self.issuer, identity, self.audience))

    def anonymous(self) -> Channel:
        """Return a channel over the same connection that shows no identity."""
        return Channel(self._raw, (), self._deadline_s)


def _says(issuer: IdentityIssuer, identity: Identity | None, audience: str) -> AddMetadata:
    def add(method: str, given: Sequence[tuple[str, str | bytes]]) -> Iterable[tuple[str, str | bytes]]:
        if identity is None or any(key == IDENTITY_HEADER for key, _ in given):
            return ()
        return ((IDENTITY_HEADER, issuer.mint(identity, audience)),)

    return add


@asynccontextmanager
async def running_server(
    *services: AddsItself,
    identity: Identity | None = USER,
    access: Mapping[str, Access] | None = None,
    config: ServiceConfig | None = None,
    clock: Clock | None = None,
    telemetry: Telemetry | None = None,
    trusted: Mapping[str, Ed25519PublicKey] | None = None,
    audience: str = "test",
    verifier: Authenticator | None = None,
    extra_handlers: Sequence[grpc.GenericRpcHandler] = (),
    trailers: Trailers | None = None,
) -> AsyncIterator[ServerChannel]:
    """Serve on a free port of the loopback and yield a channel that calls as `identity`.

    The server is the real one, interceptors and all; it believes the channel's issuer as it would the
    gateway.

    Args:
        services: what to serve.
        identity: as whom the channel calls; None for nobody.
        access: who may call what; None lets every user and device call everything.
        config: its address must leave the port to be chosen.
        clock: the server's and the tokens'.
        telemetry: counts the calls; None makes one with a registry of its own.
        trusted: further issuers, by name.
        audience: the service's name.
        verifier: in place of the check of identity tokens.
        extra_handlers: as in `create_server`.
        trailers: as in `create_server`.
    """
    clock = clock if clock is not None else SystemClock()
    telemetry = telemetry if telemetry is not None else Telemetry(audience, CollectorRegistry())
    key = Ed25519PrivateKey.generate()
    believed = {GATEWAY: key.public_key(), **(trusted or {})}
    server = create_server(
        config if config is not None else ServiceConfig(),
        services,
        access=access if access is not None else AnyMethod(),
        verifier=verifier if verifier is not None else IdentityVerifier(audience, believed, clock),
        telemetry=telemetry,
        clock=clock,
        extra_handlers=extra_handlers,
        trailers=trailers,
    )
    await server.start()
    issuer = IdentityIssuer(GATEWAY, key, clock)
    target = f"127.0.0.1:{server.port}"
    raw = grpc.aio.insecure_channel(target, options=channel_options())
    channel = ServerChannel(raw, (_says(issuer, identity, audience),), DEFAULT_DEADLINE_S)
    channel.server, channel.telemetry, channel.target = server, telemetry, target
    channel.issuer, channel.audience = issuer, audience
    try:
        yield channel
    finally:
        await channel.close()
        await server.stop(0.0)


def counted(telemetry: Telemetry, method: str, code: str) -> float:
    """Return how many calls of "/package.Service/Method" ended with the status code of that name."""
    service, _, name = method.removeprefix("/").partition("/")
    labels = {"grpc_service": service, "grpc_method": name, "grpc_code": code}
    return telemetry.registry.get_sample_value("grpc_server_handled_total", labels) or 0.0


async def wait_for_count(telemetry: Telemetry, method: str, code: str, count: int = 1) -> None:
    """Wait until `count` calls of the method ended with the code; a call is counted after its answer went."""
    await eventually(lambda: counted(telemetry, method, code) == count)


async def eventually(condition: Callable[[], bool], *, within_s: float = 30.0) -> None:
    """Wait until `condition` holds, looking every 10 ms; TimeoutError when it doesn't in time.

    For what gives no signal of its own, such as another process or a counter.
    """
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)

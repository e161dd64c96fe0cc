"""Fakes for tests of the gateway, and of whatever talks through it."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from isthmus.deployer.v1 import push_index_pb2, push_index_pb2_grpc
from libs.common.clock import Clock
from libs.common.identity import load_or_create_key, publish_key
from libs.common.names import DeviceName
from libs.common.testing import START
from libs.task.profile import profile_header
from services.gateway.app import Gateway, gateway
from services.gateway.config import GatewayConfig
from services.gateway.descriptors import all_methods
from services.gateway.domain.devices import AUDIENCE, CREDENTIAL_TYPE, ISSUER, TOKEN_TYPE
from services.gateway.domain.keys import Key, Tenant, format_key, hash_secret
from services.gateway.domain.routes import Method
from services.gateway.store import MemoryStore, Store

Metadata = tuple[tuple[str, str | bytes], ...]

# Methods that only tests have, one of each shape.
UNARY = Method("/isthmus.deployer.v1.TestService/Unary", False, False)
DOWN = Method("/isthmus.deployer.v1.TestService/Down", False, True)
UP = Method("/isthmus.deployer.v1.TestService/Up", True, False)
BOTH = Method("/isthmus.deployer.v1.TestService/Both", True, True)
SHAPES = (UNARY, DOWN, UP, BOTH)


def make_key(
    tenant: str = "default",
    number: int = 0,
    scopes: Iterable[str] = ("*",),
    create_time: datetime = START,
    expire_time: datetime | None = None,
) -> tuple[Key, str]:
    """Return the key of a number, and its whole text."""
    key_id, secret = f"{number:016d}", f"{number:064x}"
    key = Key(key_id, tenant, "", frozenset(scopes), hash_secret(secret), create_time, expire_time)
    return key, format_key(key_id, secret)


def bearer(text: str) -> Metadata:
    """Return the metadata of somebody with an API key."""
    return (("authorization", f"Bearer {text}"),)


async def store_with(*keys: Key, store: Store | None = None) -> Store:
    """Return a store that holds these keys and their tenants."""
    store = store or MemoryStore()
    for tenant in sorted({key.tenant for key in keys} | {"default"}):
        await store.create_tenant(Tenant(tenant, "", START))
    for key in keys:
        await store.create_key(key)
    return store


def _raw(key: Ed25519PrivateKey) -> str:
    return base64.urlsafe_b64encode(key.public_key().public_bytes_raw()).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class FakeDevice:
    """A device with its key, and the deployer's key that vouches for it."""

    name: str
    key: Ed25519PrivateKey
    deployer_key: Ed25519PrivateKey

    def credential(self, now: datetime, ttl: timedelta = timedelta(days=30), **claims: Any) -> str:
        """Return a credential issued at `now`; `claims` replace what it would say."""
        said = {
            "iss": ISSUER,
            "sub": self.name,
            "tenant": DeviceName.parse(self.name).tenant,
            "cnf": {"x": _raw(self.key)},
            "iat": int(now.timestamp()),
            "exp": int((now + ttl).timestamp()),
            "jti": "1",
        }
        headers = {"typ": CREDENTIAL_TYPE, "kid": ISSUER}
        return jwt.encode({**said, **claims}, self.deployer_key, algorithm="EdDSA", headers=headers)

    def token(self, now: datetime, ttl: timedelta = timedelta(seconds=300), **claims: Any) -> str:
        """Return a device token issued at `now`; `claims` replace what it would say."""
        said = {
            "sub": self.name,
            "aud": AUDIENCE,
            "iat": int(now.timestamp()),
            "exp": int((now + ttl).timestamp()),
        }
        return jwt.encode({**said, **claims}, self.key, algorithm="EdDSA", headers={"typ": TOKEN_TYPE})

    def metadata(self, now: datetime, profile: bytes | None = None) -> Metadata:
        """Return the metadata of a call by this device."""
        found: Metadata = (
            ("authorization", f"Device {self.token(now)}"),
            ("x-isthmus-credential", self.credential(now)),
        )
        return found if profile is None else (*found, ("x-isthmus-profile", profile_header(profile)))


def make_device(name: str, deployer_key: Ed25519PrivateKey) -> FakeDevice:
    """Return a device of that resource name with a key of its own."""
    return FakeDevice(name, Ed25519PrivateKey.generate(), deployer_key)


Behaviour = Callable[[Any, Any], Awaitable[Any]]
_MAKERS: Mapping[tuple[bool, bool], Callable[..., Any]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class FakeUpstream(grpc.GenericRpcHandler):
    """A service behind the door. Its methods take and give bytes; it believes everything."""

    def __init__(self) -> None:
        self._handlers: dict[str, Any] = {}

    def on(self, method: Method, behaviour: Any) -> None:
        """Answer a method with a coroutine function, or an async generator function."""
        self._handlers[method.path] = _MAKERS[(method.client_streaming, method.server_streaming)](behaviour)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return a method's handler, or None."""
        return self._handlers.get(details.method)


@asynccontextmanager
async def serving(*handlers: Any, port: int = 0) -> AsyncIterator[int]:
    """Serve generic handlers, or anything with `add_to`, in the clear; give the port."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)])
    for handler in handlers:
        if isinstance(handler, grpc.GenericRpcHandler):
            server.add_generic_rpc_handlers((handler,))
        else:
            handler.add_to(server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


class FakePushIndex(push_index_pb2_grpc.PushIndexServiceServicer):
    """The deployer's feed: a snapshot, then what `send` gives.

    `watches` holds the revisions asked for. A snapshot waits for `hold`, which is set at first.
    """

    def __init__(self) -> None:
        self.snapshot: list[push_index_pb2.DeviceChange] = []
        self.revision = 1
        self.compacted_before = 0
        self.watches: list[int] = []
        self.tokens: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self._queues: list[asyncio.Queue[push_index_pb2.WatchResponse | None]] = []

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        push_index_pb2_grpc.add_PushIndexServiceServicer_to_server(self, server)

    async def Watch(  # noqa: N802
        self, request: push_index_pb2.WatchRequest, context: Any
    ) -> AsyncIterator[push_index_pb2.WatchResponse]:
        """Stream the snapshot where the revision is 0, and changes."""
        self.watches.append(request.revision)
        self.tokens.append(dict(context.invocation_metadata())["x-isthmus-identity"])
        if request.revision and request.revision < self.compacted_before:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, "compacted")
        queue: asyncio.Queue[push_index_pb2.WatchResponse | None] = asyncio.Queue()
        self._queues.append(queue)
        try:
            if not request.revision:
                await self.hold.wait()
                half = len(self.snapshot) // 2
                yield push_index_pb2.WatchResponse(changes=self.snapshot[:half])
                yield push_index_pb2.WatchResponse(changes=self.snapshot[half:], revision=self.revision)
            while (response := await queue.get()) is not None:
                yield response
            await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")
        finally:
            self._queues.remove(queue)

    def send(self, device: str, wanted_digest: bytes, revoked: bool = False) -> None:
        """Send one change to whoever watches."""
        self.revision += 1
        change = push_index_pb2.DeviceChange(device=device, wanted_digest=wanted_digest, revoked=revoked)
        for queue in self._queues:
            queue.put_nowait(push_index_pb2.WatchResponse(revision=self.revision, changes=[change]))

    def drop(self) -> None:
        """Break the streams, as a restart does."""
        for queue in self._queues:
            queue.put_nowait(None)


def gateway_config(folder: Path, **settings: Any) -> GatewayConfig:
    """Return settings for a gateway on free ports that keeps its files in `folder`."""
    return replace(
        GatewayConfig(
            port=0,
            http_port=0,
            upstreams=(),
            identity_key_file=folder / "gateway.key",
            identity_trust_dir=folder / "trust",
        ),
        **settings,
    )


def deployer_key(folder: Path) -> Ed25519PrivateKey:
    """Return the deployer's key, believed by a gateway with `gateway_config(folder)`."""
    key = load_or_create_key(folder / "deployer.key")
    publish_key(folder / "trust", ISSUER, key.public_key())
    return key


@asynccontextmanager
async def running_gateway(
    config: GatewayConfig, store: Store, clock: Clock | None = None
) -> AsyncIterator[tuple[Gateway, grpc.aio.Channel]]:
    """Run a gateway; give it and a channel to it. The methods in SHAPES can be routed too."""
    assert config.identity_trust_dir is not None
    config.identity_trust_dir.mkdir(exist_ok=True)
    async with gateway(config, store, clock=clock, methods=[*all_methods(), *SHAPES]) as made:
        await made.server.start()
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{made.server.port}", options=options) as channel:
            yield made, channel


def take_empty_snapshot(made: Gateway) -> None:
    """Have a gateway without a deployer know that no device is revoked, so that it lets devices in."""
    made.push.replace(made.push.new_index())


async def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (anything may be waited for)
            await asyncio.sleep(0.01)

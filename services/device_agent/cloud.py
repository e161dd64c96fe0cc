"""The gateway as the agent calls it: credentials and profile on each call, time and hints off each answer."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import grpc

from isthmus.deployer.v1 import (
    blob_pb2,
    blob_pb2_grpc,
    device_pb2,
    device_pb2_grpc,
    pull_pb2,
    pull_pb2_grpc,
)
from isthmus.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from isthmus.trust.v1 import trust_pb2
from isthmus.tunnel.v1 import tunnel_pb2, tunnel_pb2_grpc
from libs.common.clock import Clock
from libs.common.errors import Error, Unauthenticated, Unavailable
from libs.common.status import error_from_rpc
from libs.common.streams import send
from libs.task.profile import HEADER, UPDATE_TRAILER, profile_header
from services.device_agent.identity import CloudClock, Credential, DeviceKey
from services.device_agent.signals import Bell

R = TypeVar("R")

TIME_TRAILER = "x-isthmus-time"
_UNARY_S = 30.0
# A held stream is opened anew after this long, so that a dead path or a revoked credential is noticed.
_HELD_S = 3600.0
# A download may be this slow before its deadline ends it (and it is resumed where it stopped).
_LEAST_BYTES_PER_S = 8 * 1024
_Metadata = Sequence[tuple[str, str]]


class Tunnel(Protocol):
    """The open tunnel; its methods raise `grpc.aio.AioRpcError`, what the cloud ended the call with.

    After an end without an error, reading gives `grpc.aio.EOF` and writing raises Unavailable.
    """

    async def write(self, request: tunnel_pb2.ConnectRequest) -> None:
        """Send a message."""

    async def read(self) -> Any:
        """Return the next answer, or `grpc.aio.EOF`."""

    def cancel(self) -> bool:
        """End it."""


class _OpenTunnel:
    """A call of the tunnel.

    The connection may break, or the cloud end the call, at any moment: writing then raises what reading does.
    Messages of several tasks go one after another.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._turn = asyncio.Lock()

    async def write(self, request: tunnel_pb2.ConnectRequest) -> None:
        """See `Tunnel`."""
        async with self._turn:
            await self._write(request)

    async def _write(self, request: tunnel_pb2.ConnectRequest) -> None:
        if await send(self._call, request.SerializeToString()):
            return
        code = await self._call.code()
        if code is grpc.StatusCode.OK:
            raise Unavailable("the cloud closed the tunnel", reason="CLOSED")
        raise grpc.aio.AioRpcError(
            code,
            grpc.aio.Metadata(),
            await self._call.trailing_metadata() or grpc.aio.Metadata(),
            await self._call.details(),
        )

    async def read(self) -> Any:
        """See `Tunnel`."""
        return await self._call.read()

    def cancel(self) -> bool:
        """See `Tunnel`."""
        cancelled: bool = self._call.cancel()
        return cancelled


class Cloud:
    """Calls through the gateway, as this device.

    Every method raises a `libs.common.errors.Error` for a call that failed.

    Attributes:
        credential: from the enrolment; None before.
        clock: the gateway's time.
        refused: rings when the gateway doesn't know us, by the right time too.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        key: DeviceKey,
        clock: Clock,
        cloud_clock: CloudClock,
        profile_digest: Callable[[], bytes],
        on_hint: Callable[[bytes], None],
    ) -> None:
        self.credential: Credential | None = None
        self.clock = cloud_clock
        self.refused = Bell()
        self._profile_digest = profile_digest
        self._key = key
        self._device_clock = clock
        self._on_hint = on_hint
        self._enrolment = device_pb2_grpc.EnrolmentServiceStub(channel)
        self._pull = pull_pb2_grpc.PullServiceStub(channel)
        self._blobs = blob_pb2_grpc.BlobServiceStub(channel)
        self._push = gateway_pb2_grpc.PushServiceStub(channel)
        self._tunnel = tunnel_pb2_grpc.TunnelServiceStub(channel)

    async def enrol(
        self, token: str, device_id: str, attributes: Mapping[str, str]
    ) -> tuple[Credential, trust_pb2.Signed]:
        """Exchange a token and proof of the key for a credential and the root to pin."""
        request = device_pb2.EnrolRequest(
            token=token,
            device_id=device_id,
            public_key=self._key.public,
            proof=self._key.prove(token, device_id),
            attributes=dict(attributes),
        )
        response = await self._unary(self._enrolment.Enrol, request, anonymous=True)
        credential = Credential(
            response.device,
            response.credential,
            self.clock.now_s(),
            response.expire_time.ToNanoseconds() / 1e9,
        )
        return credential, response.root

    async def renew(self) -> Credential:
        """Return a new credential in place of the one we have."""
        response = await self._unary(self._enrolment.RenewCredential, device_pb2.RenewCredentialRequest())
        return Credential(
            self._device(),
            response.credential,
            self.clock.now_s(),
            response.expire_time.ToNanoseconds() / 1e9,
        )

    async def plan(self, request: pull_pb2.PlanRequest) -> pull_pb2.PlanResponse:
        """Ask what to run."""
        # The answer itself is what a hint on it would point to.
        response: pull_pb2.PlanResponse = await self._unary(self._pull.Plan, request, hints=False)
        return response

    async def report(self, request: pull_pb2.ReportRequest) -> None:
        """Hand over stage reports; they are durable on return."""
        await self._unary(self._pull.Report, request)

    async def read_blob(self, digest: str, offset: int, size: int) -> AsyncGenerator[bytes]:
        """Yield a blob's bytes from an offset on."""
        request = blob_pb2.ReadBlobRequest(digest=digest, offset_bytes=offset)
        timeout = _UNARY_S + (size - offset) / _LEAST_BYTES_PER_S
        async for response in self._stream(self._blobs.ReadBlob, request, timeout):
            yield response.data

    async def watch(self, profile_digest: bytes, on_answer: Callable[[], None]) -> AsyncGenerator[None]:
        """Yield for every hint, until the gateway or an hour ends it; `on_answer` is told when it answers."""
        request = gateway_pb2.WatchRequest(profile_digest=profile_digest)
        async for _ in self._stream(self._push.Watch, request, _HELD_S, on_answer):
            yield

    def open_tunnel(self) -> Tunnel:
        """Open the tunnel; its calls raise `grpc.aio.AioRpcError`, for `tunnel_error` to look at."""
        return _OpenTunnel(self._tunnel.Connect(metadata=self._metadata(), timeout=_HELD_S))

    def tunnel_error(self, error: grpc.aio.AioRpcError) -> Error:
        """Take the time off a tunnel that ended, and return what ended it."""
        self._key.forget_token()
        self._learn(error.trailing_metadata(), None, None)
        return self._failure(error)

    def _failure(self, error: grpc.aio.AioRpcError) -> Error:
        failure = error_from_rpc(error)
        if isinstance(failure, Unauthenticated):
            self.refused.ring()
        return failure

    def _device(self) -> str:
        if self.credential is None:
            raise Unauthenticated("this device isn't enrolled yet", reason="NOT_ENROLLED")
        return self.credential.device

    def _metadata(self) -> _Metadata:
        device = self._device()
        assert self.credential is not None
        return [
            ("authorization", f"Device {self._key.token(device, self.clock.now_s())}"),
            ("x-isthmus-credential", self.credential.token),
            (HEADER, profile_header(self._profile_digest())),
        ]

    async def _unary(
        self, method: Callable[..., Any], request: Any, *, anonymous: bool = False, hints: bool = True
    ) -> Any:
        for last in (False, True):
            sent, profile = self._device_clock.monotonic(), self._profile_digest()
            metadata = () if anonymous else self._metadata()
            call = method(request, metadata=metadata, timeout=_UNARY_S)
            try:
                response = await call
            except grpc.aio.AioRpcError as error:
                told = self._learn(error.trailing_metadata(), sent, profile if hints else None)
                # A token minted by a wrong clock is refused with the right time: the next is minted by it.
                if error.code() is grpc.StatusCode.UNAUTHENTICATED and told and not anonymous and not last:
                    self._key.forget_token()
                    continue
                raise self._failure(error) from error
            self._learn(await call.trailing_metadata(), sent, profile if hints else None)
            return response
        raise AssertionError("the second attempt returns or raises")

    async def _stream(
        self,
        method: Callable[..., Any],
        request: Any,
        seconds: float,
        on_answer: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[Any]:
        for last in (False, True):
            sent, profile = self._device_clock.monotonic(), self._profile_digest()
            call = method(request, metadata=self._metadata(), timeout=seconds)
            try:
                await call.initial_metadata()
                on_answer()
                async for response in call:
                    last = True  # once something came, another call would repeat it
                    yield response
                self._learn(await call.trailing_metadata(), None, profile)
                return
            except grpc.aio.AioRpcError as error:
                told = self._learn(error.trailing_metadata(), None if last else sent, profile)
                if error.code() is grpc.StatusCode.UNAUTHENTICATED and told and not last:
                    self._key.forget_token()
                    continue
                raise self._failure(error) from error
            finally:
                call.cancel()

    def _learn(self, trailers: Any, sent: float | None, profile: bytes | None) -> bool:
        """Take time and hint off an answer's trailers; say whether the time was among them.

        Args:
            trailers: the trailing metadata.
            sent: when the call was made; None for a stream, whose end tells the time of now.
            profile: the digest that went with the call, for the hint; None takes no hint.
        """
        told = False
        received = self._device_clock.monotonic()
        for key, value in trailers or ():
            if key == TIME_TRAILER:
                try:
                    server_s = float(value)
                except ValueError:
                    continue
                if 0 < server_s < 1e11:
                    self.clock.learn(server_s, received if sent is None else sent, received)
                    told = True
            elif key == UPDATE_TRAILER and value == "1" and profile is not None:
                self._on_hint(profile)
        return told

"""How a process calls another: one way to make a channel.

A channel made here puts three things on every call that doesn't bring its own: a deadline, the current
trace, and (between services) an identity token for the callee. It does so by wrapping the stubs' callables;
gRPC's own client interceptors would cost a task for every call.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from libs.common.backoff import backoff as backoff
from libs.common.identity import IDENTITY_HEADER, IdentityIssuer
from libs.common.retry import DEFAULT_POLICY as DEFAULT_POLICY
from libs.common.retry import RetryBudget as RetryBudget
from libs.common.retry import RetryPolicy as RetryPolicy
from libs.common.retry import retry as retry
from libs.common.status import error_from_rpc as error_from_rpc
from libs.common.status import rpc_errors as rpc_errors
from libs.common.telemetry import inject

KEEPALIVE_TIME_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000
DEFAULT_DEADLINE_S = 30.0
MAX_MESSAGE_BYTES = 4 * 1024 * 1024

# Adds metadata to one call: (its full method name, what the caller gave) → what to send besides.
AddMetadata = Callable[[str, Sequence[tuple[str, str | bytes]]], Iterable[tuple[str, str | bytes]]]

_on_behalf_of: contextvars.ContextVar[str] = contextvars.ContextVar("isthmus_on_behalf_of", default="")


@contextlib.contextmanager
def on_behalf_of(resource: str) -> Iterator[None]:
    """Make calls inside the block say for which resource (full name, tenant first) they are made."""
    token = _on_behalf_of.set(resource)
    try:
        yield
    finally:
        _on_behalf_of.reset(token)


@dataclass(frozen=True, slots=True)
class ServiceIdentity:
    """Mints this service's own token for each call to `audience`, unless the caller brings one.

    It acts for the resource that `on_behalf_of` names around the call.
    """

    issuer: IdentityIssuer
    audience: str

    def __call__(
        self, method: str, given: Sequence[tuple[str, str | bytes]]
    ) -> Iterable[tuple[str, str | bytes]]:
        """Return the header to add to a call."""
        if any(key == IDENTITY_HEADER for key, _ in given):
            return ()
        return ((IDENTITY_HEADER, self.issuer.mint_own(self.audience, _on_behalf_of.get())),)


def create_channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    metadata: Sequence[AddMetadata] = (),
    identity: ServiceIdentity | None = None,
    default_deadline_s: float | None = DEFAULT_DEADLINE_S,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    options: Sequence[tuple[str, Any]] = (),
) -> "Channel":
    """Return a channel to `target` ("host:port" or "unix:path"); it connects at the first call.

    Args:
        target: whom to call.
        credentials: TLS; None speaks in the clear, for the loopback.
        metadata: what adds metadata to each call, such as a device's token; asked in order.
        identity: mints this service's own identity for the callee.
        default_deadline_s: seconds that a unary response may take when the caller sets no timeout; None for
        no
            bound. Response streams have none unless the caller sets one.
        max_message_bytes: largest message to send or take.
        options: further channel arguments; they win over those set here.
    """
    arguments = {**dict(channel_options(max_message_bytes)), **dict(options)}
    raw = (
        grpc.aio.insecure_channel(target, options=list(arguments.items()))
        if credentials is None
        else grpc.aio.secure_channel(target, credentials, options=list(arguments.items()))
    )
    adders: list[AddMetadata] = list(metadata)
    if identity is not None:
        adders.append(identity)
    return Channel(raw, adders, default_deadline_s)


def create_service_channel(
    target: str,
    issuer: IdentityIssuer,
    callee: str,
    *,
    ca_file: Path | None = None,
    cert_file: Path | None = None,
    key_file: Path | None = None,
) -> "Channel":
    """Return a channel to another service, on which this one says who it is.

    Args:
        target: where the service is.
        issuer: mints this service's identity.
        callee: the service's name.
        ca_file: the authority of its certificate; None speaks in the clear.
        cert_file: the certificate to show, with `key_file`.
        key_file: the private key of that.

    Raises:
        FileNotFoundError: when a TLS file isn't there.
    """
    credentials = None if ca_file is None else client_credentials(ca_file, cert_file, key_file)
    return create_channel(target, credentials=credentials, identity=ServiceIdentity(issuer, callee))


def client_credentials(
    ca_file: Path, cert_file: Path | None = None, key_file: Path | None = None
) -> grpc.ChannelCredentials:
    """Return TLS credentials that believe the authority in `ca_file`, and show a certificate where given.

    Raises:
        FileNotFoundError: when a file isn't there.
    """
    return grpc.ssl_channel_credentials(
        root_certificates=ca_file.read_bytes(),
        private_key=key_file.read_bytes() if key_file is not None else None,
        certificate_chain=cert_file.read_bytes() if cert_file is not None else None,
    )


FLOW_CONTROL: tuple[tuple[str, int], ...] = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1024 * 1024),
)
"""One window of fixed size for each stream. gRPC's own grows to 16 MiB a stream on a fast link, so that a
handful of slow readers would fill the memory of whoever passes data on to them."""


def channel_options(max_message_bytes: int = MAX_MESSAGE_BYTES) -> list[tuple[str, Any]]:
    """Return the channel arguments of a client: keepalive, limits, reconnection."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        # This one ends the connection; left alone it is a minute, whatever the keepalive says.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        *FLOW_CONTROL,
        ("grpc.initial_reconnect_backoff_ms", 250),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 10_000),
        # Retries are ours (`retry`): those inside gRPC know neither budget nor idempotence.
        ("grpc.enable_retries", 0),
        # A proxy in the environment is for the web, not for our services.
        ("grpc.enable_http_proxy", 0),
    ]


class Channel(grpc.aio.Channel):
    """A channel whose calls get what they lack: deadline, trace, further metadata."""

    def __init__(
        self, raw: grpc.aio.Channel, adders: Sequence[AddMetadata], default_deadline_s: float | None
    ) -> None:
        self._raw = raw
        self._adders = tuple(adders)
        self._deadline_s = default_deadline_s

    def with_metadata(self, *adders: AddMetadata) -> "Channel":
        """Return a channel over the same connection whose calls get further metadata; close only one."""
        return Channel(self._raw, (*self._adders, *adders), self._deadline_s)

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the callable of a unary-unary method."""
        return self._wrap(self._raw.unary_unary(method, *args, **kwargs), method, self._deadline_s)

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the callable of a unary-stream method."""
        return self._wrap(self._raw.unary_stream(method, *args, **kwargs), method, None)

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the callable of a stream-unary method."""
        return self._wrap(self._raw.stream_unary(method, *args, **kwargs), method, self._deadline_s)

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the callable of a stream-stream method."""
        return self._wrap(self._raw.stream_stream(method, *args, **kwargs), method, None)

    def _wrap(self, callable_: Any, method: str, deadline_s: float | None) -> Any:
        adders = self._adders

        def call(
            request: Any = None, *, timeout: float | None = None, metadata: Any = None, **kwargs: Any
        ) -> Any:
            sent: list[tuple[str, str | bytes]] = list(metadata) if metadata else []
            for add in adders:
                sent.extend(add(method, sent))
            if not any(key == "traceparent" for key, _ in sent):
                sent.extend(inject())
            return callable_(
                request,
                timeout=timeout if timeout is not None else deadline_s,
                metadata=tuple(sent),
                **kwargs,
            )

        return call

    async def close(self, grace: float | None = None) -> None:
        """Close the connection; calls in flight have `grace` seconds to end."""
        await self._raw.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return how the connection is."""
        return self._raw.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until the connection is in another state than the given one."""
        await self._raw.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Wait until the connection is made; put a timeout around it."""
        await self._raw.channel_ready()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()

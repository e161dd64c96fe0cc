"""How a service is served: one way to build a gRPC server, and one way to run it until it is told to stop.

Shutdown goes in this order: health says NOT_SERVING → calls that have arrived are taken up → no new calls →
calls in flight end, or are ended when the grace is over → what the service holds is closed → telemetry is
flushed.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import grpc

from libs.common.access import Access
from libs.common.client import FLOW_CONTROL
from libs.common.clock import Clock
from libs.common.config import ServiceConfig
from libs.common.errors import Precondition
from libs.common.health import HEALTH, REFLECTIONS, Health, add_reflection
from libs.common.identity import Authenticator
from libs.common.interceptor import LayeredInterceptor
from libs.common.layers import (
    ErrorsLayer,
    IdentityLayer,
    Layer,
    LimitsLayer,
    TelemetryLayer,
    Trailers,
    TrailersLayer,
)
from libs.common.telemetry import Telemetry

_log = logging.getLogger("isthmus.server")

KEEPALIVE_TIME_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000
# The longest that held streams delay a shutdown, in seconds: who holds one connects again, elsewhere.
_STREAM_GRACE_S = 2.0
# gRPC takes calls up one by one and, on `stop`, cancels those that still wait for it. A server is stopped
# once none has come for `_QUIET_S` seconds, and under steady traffic `_TAKE_UP_S` seconds after the signal.
_QUIET_S = 0.1
_TAKE_UP_S = 1.0


class AddsItself(Protocol):
    """A service that registers its own handlers, by the `add_…Servicer_to_server` of its stubs.

    class TaskService(task_pb2_grpc.TaskServiceServicer):
        def add_to(self, server: grpc.aio.Server) -> None:
            task_pb2_grpc.add_TaskServiceServicer_to_server(self, server)
    """

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        ...


class _Recorder:
    """Stands for the server while services register, and notes which methods they have."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self.services: list[str] = []
        self.methods: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(tuple(handlers))

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        self.services.append(service)
        self.methods.extend(f"/{service}/{method}" for method in handlers)
        self._server.add_registered_method_handlers(service, dict(handlers))


class Server:
    """A gRPC server that has its port but doesn't serve yet; made by `create_server`.

    Attributes:
        port: the port it really has.
        services: the full names of the services in it.
        health: what it says of itself.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        port: int,
        services: Sequence[str],
        methods: Sequence[str],
        health: Health,
        interceptor: LayeredInterceptor,
        limits: LimitsLayer,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self.grpc = server
        self.port = port
        self.services = tuple(services)
        self.methods = tuple(methods)
        self.health = health
        self.telemetry = telemetry
        self._interceptor = interceptor
        self._limits = limits
        self._clock = clock

    async def start(self) -> None:
        """Serve, and say so in health."""
        await self.grpc.start()
        await self.health.serving()

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stop in order; calls in flight have `grace_s` seconds, held response streams 2 of them at most."""
        await self.health.not_serving()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._end_calls(grace_s))
            group.create_task(self._end_streams(min(_STREAM_GRACE_S, grace_s / 2)))

    async def _end_calls(self, grace_s: float) -> None:
        began = self._clock.monotonic()
        await self._take_up(min(_TAKE_UP_S, grace_s / 2))
        await self.grpc.stop(max(0.0, grace_s - (self._clock.monotonic() - began)))

    async def _take_up(self, most_s: float) -> None:
        """Return once no call has come for a moment, or after `most_s` seconds."""
        until, seen = self._clock.monotonic() + most_s, -1
        while self._interceptor.taken != seen and self._clock.monotonic() < until:
            seen = self._interceptor.taken
            await self._clock.sleep(min(_QUIET_S, most_s))

    async def _end_streams(self, grace_s: float) -> None:
        if self._limits.streams and grace_s:
            await self._clock.sleep(grace_s)
        self._limits.stop_streams()


def create_server(
    config: ServiceConfig,
    services: Sequence[AddsItself],
    *,
    access: Mapping[str, Access],
    verifier: Authenticator,
    telemetry: Telemetry,
    clock: Clock,
    extra_handlers: Sequence[grpc.GenericRpcHandler] = (),
    reflected: Iterable[str] = (),
    trailers: Trailers | None = None,
) -> Server:
    """Return a server on the configured port, with health and reflection where they are installed.

    Args:
        config: where to listen, limits, TLS.
        services: what to serve. A `Health` or a reflection service among them takes the place of the
            usual one.
        access: who may call what, by full method name; methods without an entry are refused.
        verifier: tells who is calling; an `IdentityVerifier` everywhere but in the gateway.
        telemetry: where calls are counted and traced.
        clock: paces the shutdown.
        extra_handlers: asked, after the services, for methods that none of them has.
        reflected: full names of services to list in reflection and health besides those in `services`.
        trailers: gives trailing metadata for every answer, errors included. A handler that sets trailers of
            its own replaces it, and adds it back if it wants both.

    Raises:
        Precondition: when the port is taken.
        FileNotFoundError: when a TLS file isn't there.
    """
    limits = LimitsLayer(config.max_unary_s, config.max_unary_in_flight, config.max_streams)
    outer: list[Layer] = [TelemetryLayer(telemetry), ErrorsLayer(f"{telemetry.service}.isthmus")]
    if trailers is not None:
        outer.append(TrailersLayer(trailers))
    inner: list[Layer] = [limits, IdentityLayer(verifier, access)]
    methods: list[str] = []
    interceptor = LayeredInterceptor(outer, inner, lambda: methods)
    server = grpc.aio.server(
        handlers=(),
        interceptors=[interceptor],
        options=server_options(config),
    )
    recorder = _Recorder(server)
    for service in services:
        service.add_to(recorder)  # type: ignore[arg-type]
    names = [*recorder.services, *reflected]
    # A service may answer either itself, as the gateway does for those behind it.
    own = next((service for service in services if isinstance(service, Health)), None)
    health = own if own is not None else Health(names)
    if HEALTH not in recorder.services:
        health.add_to(recorder)
    if not REFLECTIONS.intersection(recorder.services):
        add_reflection(recorder, names)
    methods.extend(recorder.methods)
    if extra_handlers:
        server.add_generic_rpc_handlers(tuple(extra_handlers))
    port = _listen(server, config)
    return Server(server, port, recorder.services, methods, health, interceptor, limits, telemetry, clock)


def server_options(config: ServiceConfig) -> list[tuple[str, int]]:
    """Return the channel arguments of a server: keepalive, limits, and nobody else on our port."""
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients may ping as often as `create_channel` makes them; who pings faster is cut off.
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
        *FLOW_CONTROL,
        ("grpc.server.max_pending_requests", config.max_pending_requests),
        ("grpc.server.max_pending_requests_hard_limit", config.max_pending_requests * 2),
        # Otherwise the kernel lets a second process share the port, and each gets half of the calls.
        ("grpc.so_reuseport", 0),
    ]


def _listen(server: grpc.aio.Server, config: ServiceConfig) -> int:
    host = (
        f"[{config.host}]"
        if ":" in config.host and not config.host.startswith(("[", "unix:"))
        else config.host
    )
    address = host if host.startswith("unix:") else f"{host}:{config.port}"
    try:
        if config.tls_cert_file is None or config.tls_key_file is None:
            return server.add_insecure_port(address)
        authority = config.tls_client_ca_file.read_bytes() if config.tls_client_ca_file else None
        credentials = grpc.ssl_server_credentials(
            [(config.tls_key_file.read_bytes(), config.tls_cert_file.read_bytes())],
            root_certificates=authority,
            require_client_auth=authority is not None,
        )
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise Precondition(
            f"port: can't listen on {address}; another process may have it: free it or choose another port",
            reason="PORT_TAKEN",
            metadata={"address": address},
        ) from error


async def serve(
    server: Server,
    config: ServiceConfig,
    *,
    on_shutdown: Callable[[], Awaitable[None]] | None = None,
    on_ready: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then shut down in order and return; a second signal ends calls at once.

    Args:
        server: from `create_server`.
        config: gives the grace.
        on_shutdown: closes what the service holds, once no call is in flight any more.
        on_ready: called once calls are served.
    """
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()

    def told(name: str) -> None:
        _log.info("told to stop by %s", name)
        (hurry if stop.is_set() else stop).set()

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, told, number.name)
    try:
        await server.start()
        _log.info("serving on %s:%d", config.host, server.port, extra={"port": server.port})
        if on_ready is not None:
            on_ready()
        await stop.wait()
        await _drain(server, config.shutdown_grace_s, hurry)
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        await server.grpc.stop(None)
        try:
            if on_shutdown is not None:
                await on_shutdown()
        finally:
            await asyncio.to_thread(server.telemetry.close)
            _log.info("stopped")


async def _drain(server: Server, grace_s: float, hurry: asyncio.Event) -> None:
    draining = asyncio.create_task(server.stop(grace_s))
    hurrying = asyncio.create_task(hurry.wait())
    try:
        await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            await server.grpc.stop(None)
        await draining
    finally:
        hurrying.cancel()
        await asyncio.gather(hurrying, return_exceptions=True)

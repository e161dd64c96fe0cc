"""Composition: everything the gateway is made of, put together once."""

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from libs.common.clock import Clock, SystemClock
from libs.common.identity import GATEWAY, IdentityIssuer, load_or_create_key, load_trust_dir
from libs.common.process import run_service
from libs.common.rand import Randomness, SystemRandomness
from libs.common.server import Server, create_server, serve
from libs.common.telemetry import Telemetry, new_registry, setup_tracing, start_metrics_server
from services.gateway.access import ANONYMOUS, DoorAccess
from services.gateway.background import background
from services.gateway.channels import open_channel
from services.gateway.config import GatewayConfig
from services.gateway.descriptors import all_methods
from services.gateway.domain.admin import Admin
from services.gateway.domain.audit import AUDIT_LOG
from services.gateway.domain.callers import CallerAuthenticator, KeyRing
from services.gateway.domain.devices import ISSUER
from services.gateway.domain.hints import HintHub
from services.gateway.domain.keys import Key
from services.gateway.domain.live import LiveStreams
from services.gateway.domain.push import PushState, revoked_error
from services.gateway.domain.push_index import Fingerprints
from services.gateway.domain.routes import Method
from services.gateway.door import Door
from services.gateway.feed import Feed
from services.gateway.health import DoorHealth
from services.gateway.metrics import Metrics
from services.gateway.proxy import Proxy
from services.gateway.service import KeyService, PushService, TenantService
from services.gateway.sizes import Sizes
from services.gateway.sql_store import open_store
from services.gateway.store import Store
from services.gateway.upstreams import Upstream
from services.gateway.visit import DoorAuthenticator, Passport, Stamp
from services.gateway.web import BlobPort, Limits, make_application, start_http

_log = logging.getLogger(__name__)
_DEPLOYER = "deployer"
_OWN_SERVICES = tuple(f"isthmus.gateway.v1.{name}" for name in ("KeyService", "PushService", "TenantService"))
# Its health is that of everything devices do here: it waits for the first snapshot of the push index.
_FOR_DEVICES = "isthmus.gateway.v1.PushService"


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that has its ports. `http_port` is None where none is configured."""

    server: Server
    http_port: int | None
    push: PushState
    live: LiveStreams
    feed: Feed | None


@asynccontextmanager
async def gateway(
    config: GatewayConfig,
    store: Store,
    *,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    telemetry: Telemetry | None = None,
    methods: Iterable[Method] | None = None,
) -> AsyncIterator[Gateway]:
    """Put a gateway together and keep its background work going; on leaving, stop that and close everything.

    `methods` are those that can be routed; the whole descriptor set's by default. The HTTP port serves at
    once; `server.start()` starts the rest.

    Raises:
        Precondition: when a port is taken.
    """
    clock = clock or SystemClock()
    randomness = randomness or SystemRandomness()
    telemetry = telemetry or Telemetry(GATEWAY, new_registry(), setup_tracing(GATEWAY, config.otlp_endpoint))
    metrics = Metrics(telemetry.registry)
    assert config.identity_key_file is not None
    assert config.identity_trust_dir is not None
    issuer = IdentityIssuer(GATEWAY, load_or_create_key(config.identity_key_file), clock)
    trusted = load_trust_dir(config.identity_trust_dir)

    live = LiveStreams()
    push = PushState(
        Fingerprints(randomness.bytes(32)),
        HintHub(config.max_watches),
        on_revoked=lambda device: live.cut(device, revoked_error()),
        on_replaced=lambda: work.start(live.recheck(callers)),
    )
    keys = KeyRing(store.find_key, clock)
    callers = CallerAuthenticator(
        keys=keys,
        deployer_key=lambda: trusted.get(ISSUER),
        fingerprints=push.fingerprints,
        admit=push.admit,
        clock=clock,
    )

    def key_changed(key: Key) -> None:
        keys.forget(key.key_id)
        callers.forget(key.name)
        if key.revoked:
            work.start(live.recheck(callers))

    admin = Admin(store, clock, randomness, config.operator_tenant, key_changed)
    async with AsyncExitStack() as stack:
        upstreams: dict[str, Upstream] = {}
        for name, target in config.targets():
            upstream = Upstream(name, target, open_channel(config, name, target), clock, metrics.unreachable)
            upstreams[name] = upstream
            stack.push_async_callback(upstream.close)
        sizes = Sizes(config.max_message_bytes, config.max_held_bytes)
        passport, stamp = Passport(issuer, clock), Stamp(push, clock, metrics.hint)
        door = Door(
            all_methods() if methods is None else methods,
            upstreams,
            Proxy(passport, stamp, live, config.max_unary_s),
            sizes,
        )
        health = DoorHealth(_OWN_SERVICES, {_FOR_DEVICES: lambda: push.ready}, upstreams, clock)
        server = create_server(
            replace(config, max_message_bytes=config.largest_message_bytes),
            [door, health, TenantService(admin), KeyService(admin), PushService(push, live, stamp)],
            access=DoorAccess(door.methods),
            verifier=DoorAuthenticator(callers, ANONYMOUS),
            telemetry=telemetry,
            clock=clock,
            trailers=stamp.time,
        )
        server.health = health
        stack.push_async_callback(server.stop)
        http_port: int | None = None
        deployer = upstreams.get(_DEPLOYER)
        if config.http_port >= 0 and deployer is not None:
            limits = Limits(config.max_downloads, config.max_download_s)
            blobs = BlobPort(callers, deployer, passport, stamp, metrics, limits)
            runner, http_port = await start_http(
                make_application(blobs, stamp, metrics, health.report),
                config.host,
                config.http_port,
                _tls(config),
            )
            stack.push_async_callback(runner.cleanup)
        feed = None
        if deployer is not None:
            feed = Feed(deployer.channel, deployer.name, issuer, push, clock, randomness)
        metrics.watch(push, live, feed, sizes)
        work = await stack.enter_async_context(background())
        work.start(live.recheck_for_ever(callers, clock, config.recheck_s))
        if feed is not None:
            work.start(feed.follow_for_ever())
        yield Gateway(server, http_port, push, live, feed)


def _tls(config: GatewayConfig) -> ssl.SSLContext | None:
    if config.tls_cert_file is None or config.tls_key_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(config.tls_cert_file, config.tls_key_file)
    if config.tls_client_ca_file is not None:
        context.load_verify_locations(config.tls_client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def run(config: GatewayConfig) -> None:
    """Serve until told to stop; raises Error when it can't start."""
    logging.getLogger(AUDIT_LOG).setLevel(logging.INFO)  # whatever else is too much for the operator
    telemetry = Telemetry(GATEWAY, new_registry(), setup_tracing(GATEWAY, config.otlp_endpoint))
    store = await open_store(config.database_url)
    try:
        async with gateway(config, store, telemetry=telemetry) as made:
            metrics = start_metrics_server(
                config.host,
                config.metrics_port,
                telemetry.registry,
                cert_file=config.tls_cert_file,
                key_file=config.tls_key_file,
                client_ca_file=config.tls_client_ca_file,
            )
            try:
                _log.info("HTTP on %s:%s", config.host, made.http_port)
                await serve(made.server, config)
            finally:
                if metrics is not None:
                    await asyncio.to_thread(metrics.close)
    finally:
        await store.close()


def main(argv: Sequence[str]) -> int:
    """Run the gateway with these flags; return the process's exit status."""
    return run_service(GATEWAY, GatewayConfig, run, argv, os.environ)

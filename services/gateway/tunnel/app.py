"""Puts the tunnel together and runs it: `python -m services.gateway --role tunnel`."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from libs.common.client import Channel, ServiceIdentity, client_credentials, create_channel
from libs.common.clock import Clock, SystemClock
from libs.common.identity import (
    IdentityIssuer,
    IdentityVerifier,
    load_or_create_key,
    load_trust_dir,
    publish_key,
)
from libs.common.process import run_service
from libs.common.rand import Randomness, SystemRandomness
from libs.common.server import Server, create_server, serve
from libs.common.telemetry import Telemetry, setup_tracing, start_metrics_server
from services.gateway.tunnel.access import ACCESS
from services.gateway.tunnel.config import TunnelConfig
from services.gateway.tunnel.domain.tunnel import Tunnel
from services.gateway.tunnel.metrics import LogCollector, TunnelMetrics
from services.gateway.tunnel.models import ServingModels
from services.gateway.tunnel.service import ExportService, TunnelService
from services.gateway.tunnel.store.disk import Disk
from services.gateway.tunnel.store.files import open_log
from services.gateway.tunnel.store.log import Log

NAME = "tunnel"
SERVICES = ("isthmus.tunnel.v1.TunnelService", "isthmus.tunnel.v1.ExportService")
# A serving that was restarted should answer again within seconds.
_LONGEST_RECONNECT_MS = 2_000
_log = logging.getLogger(__name__)


@asynccontextmanager
async def assembled(
    config: TunnelConfig,
    telemetry: Telemetry,
    *,
    clock: Clock,
    randomness: Randomness,
    disk: Disk | None = None,
) -> AsyncIterator[tuple[Server, Log]]:
    """Open the log and build the server around it; closes the log at the end.

    Raises:
        Error: when the log or the port can't be had; the message says what to do.
    """
    assert config.data_dir is not None
    assert config.identity_trust_dir is not None
    metrics = TunnelMetrics(telemetry.registry)
    log = await open_log(
        config.data_dir,
        config.log,
        clock=clock,
        randomness=randomness,
        disk=disk,
        on_commit=metrics.committed,
    )
    collector = LogCollector(log.stats)
    telemetry.registry.register(collector)
    channel = open_serving(config, clock)
    try:
        models = ServingModels(channel, telemetry) if channel is not None else None
        tunnel = Tunnel(log, models, limits=config.limits, clock=clock, observer=metrics)
        server = create_server(
            config,
            [TunnelService(tunnel), ExportService(log)],
            access=ACCESS,
            verifier=IdentityVerifier(NAME, load_trust_dir(config.identity_trust_dir), clock),
            telemetry=telemetry,
            clock=clock,
        )
        upkeep = asyncio.create_task(_look_after(server, log, config, clock))
        try:
            yield server, log
        finally:
            upkeep.cancel()
            await asyncio.gather(upkeep, return_exceptions=True)
    finally:
        telemetry.registry.unregister(collector)
        if channel is not None:
            await channel.close()
        await log.close()


def open_serving(config: TunnelConfig, clock: Clock) -> Channel | None:
    """Return a channel to serving, on which this tunnel says who it is; None where there is no serving.

    Makes this tunnel's key where it is missing, and publishes it where nobody has.

    Raises:
        Error, OSError: when a key file can't be used.
    """
    if not config.serving_target:
        return None
    assert config.identity_key_file is not None
    assert config.identity_trust_dir is not None
    key = load_or_create_key(config.identity_key_file)
    if load_trust_dir(config.identity_trust_dir).get(NAME) != key.public_key():
        publish_key(config.identity_trust_dir, NAME, key.public_key())
    credentials = None
    if config.serving_ca_file is not None:
        credentials = client_credentials(
            config.serving_ca_file, config.serving_cert_file, config.serving_key_file
        )
    return create_channel(
        config.serving_target,
        credentials=credentials,
        identity=ServiceIdentity(IdentityIssuer(NAME, key, clock), "serving"),
        options=[("grpc.max_reconnect_backoff_ms", _LONGEST_RECONNECT_MS)],
    )


async def _look_after(server: Server, log: Log, config: TunnelConfig, clock: Clock) -> None:
    """Let health tell whether the log can write, and trim the log, for as long as the process lives."""
    well = True
    trimmed = clock.monotonic()
    while True:
        await clock.sleep(config.check_every_s)
        try:
            if log.stats().fault:
                await log.probe()
            now_well = not log.stats().fault
            if now_well != well:
                well = now_well
                for name in ("", *SERVICES[:1]):
                    await server.health.set(name, well)
            if clock.monotonic() - trimmed >= config.trim_every_s:
                trimmed = clock.monotonic()
                removed = await log.trim()
                if removed:
                    _log.info("retention removed %d records", removed)
        except Exception:
            _log.exception("looking after the log failed; trying again in %g s", config.check_every_s)


async def run(config: TunnelConfig) -> None:
    """Serve until told to stop; raises Error when it can't start."""
    telemetry = Telemetry(NAME, tracer_provider=setup_tracing(NAME, config.otlp_endpoint))
    clock = SystemClock()
    async with assembled(config, telemetry, clock=clock, randomness=SystemRandomness()) as (server, _):
        metrics = start_metrics_server(
            config.host,
            config.metrics_port,
            telemetry.registry,
            cert_file=config.tls_cert_file,
            key_file=config.tls_key_file,
            client_ca_file=config.tls_client_ca_file,
        )
        try:
            await serve(server, config)
        finally:
            if metrics is not None:
                await asyncio.to_thread(metrics.close)


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run the tunnel with these flags; return the process's exit status."""
    return run_service(NAME, TunnelConfig, run, argv, environ)

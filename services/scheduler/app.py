"""The composition root: builds the scheduler out of its parts and runs it."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from libs.common.client import ServiceIdentity, client_credentials, create_channel
from libs.common.clock import Clock, SystemClock
from libs.common.errors import Invalid
from libs.common.etcd import EtcdClient
from libs.common.identity import (
    IdentityIssuer,
    IdentityVerifier,
    load_or_create_key,
    load_trust_dir,
    publish_key,
)
from libs.common.process import run_service
from libs.common.rand import Randomness, SystemRandomness
from libs.common.server import AddsItself, create_server, serve
from libs.common.telemetry import Telemetry, setup_tracing, start_metrics_server
from services.scheduler.access import ACCESS
from services.scheduler.config import SchedulerConfig
from services.scheduler.domain.controller import Controller
from services.scheduler.domain.creates import Writer
from services.scheduler.domain.decisions import Decisions
from services.scheduler.domain.housekeeping import Housekeeping
from services.scheduler.domain.jobs import Jobs, Pins
from services.scheduler.domain.logs import Logs
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.nodes import Nodes
from services.scheduler.domain.queues import Queues
from services.scheduler.domain.strays import Strays
from services.scheduler.log_files import SegmentedLogFiles
from services.scheduler.metrics import Metrics
from services.scheduler.pins import DeployerPins, NoPins
from services.scheduler.service import JobService, NodeService, QueueService
from services.scheduler.service_runner import RunnerService
from services.scheduler.store import Store
from services.scheduler.stores.etcd import EtcdStore

NAME = "scheduler"


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The scheduler's parts, put together; `running` runs what works in the background."""

    mirror: Mirror
    controller: Controller
    housekeeping: Housekeeping
    strays: Strays
    services: tuple[AddsItself, ...]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the store, lead when it may, and tidy up inside the block."""
        loops = [
            asyncio.create_task(self.mirror.run(), name="mirror"),
            asyncio.create_task(self.controller.run(), name="controller"),
            asyncio.create_task(self.housekeeping.run(), name="housekeeping"),
            asyncio.create_task(self.strays.run(), name="strays"),
        ]
        try:
            yield
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)


def build(
    config: SchedulerConfig,
    store: Store,
    pins: Pins,
    metrics: Metrics,
    clock: Clock,
    randomness: Randomness,
    address: Callable[[], str],
) -> Scheduler:
    """Put the parts together; makes the folder of the logs, and no other IO.

    Args:
        config: the settings.
        store: where everything is.
        pins: keep artefacts.
        metrics: what the operator sees.
        clock: the time.
        randomness: for ids and jitter.
        address: tells where runners reach this replica, once it serves.
    """
    mirror = Mirror(store, clock, randomness)
    decisions = Decisions(mirror, clock, metrics.decided, store.fits)
    writer = Writer(store, mirror)
    files = SegmentedLogFiles(config.data_dir / "logs", keep_bytes=config.log_keep_bytes)
    logs = Logs(files, mirror, clock)
    jobs = Jobs(writer, mirror, decisions, logs, pins, clock, randomness)
    strays = Strays(pins.release, lambda job: job in mirror.snapshot.jobs, clock, randomness)
    controller = Controller(
        store,
        mirror,
        decisions,
        clock,
        randomness,
        metrics,
        address=address,
        liveness_s=config.liveness_s,
        on_stray=strays.note,
    )
    housekeeping = Housekeeping(
        store,
        mirror,
        jobs,
        logs,
        clock,
        lambda: controller.leads,
        interval_s=config.sweep_interval_s,
    )
    return Scheduler(
        mirror,
        controller,
        housekeeping,
        strays,
        services=(
            JobService(jobs, logs),
            QueueService(Queues(writer, mirror, clock, randomness)),
            NodeService(Nodes(writer, mirror, config.operator_tenant)),
            RunnerService(controller, logs),
        ),
    )


async def run(config: SchedulerConfig) -> None:
    """Serve until told to stop.

    Raises:
        Precondition: when the port is taken.
        Invalid: when a key file can't be used.
    """
    clock, randomness = SystemClock(), SystemRandomness()
    if config.identity_trust_dir is None:
        raise Invalid(
            "--identity-trust-dir: is missing; name the folder of the services' public keys (NAME.pub)"
        )
    identity_file = config.identity_key_file or config.data_dir / f"{NAME}.key"
    for folder in (config.data_dir, identity_file.parent):
        folder.mkdir(parents=True, exist_ok=True)
    key = load_or_create_key(identity_file)
    if load_trust_dir(config.identity_trust_dir).get(NAME) != key.public_key():
        publish_key(config.identity_trust_dir, NAME, key.public_key())
    telemetry = Telemetry(NAME, tracer_provider=setup_tracing(NAME, config.otlp_endpoint))
    metrics = Metrics(telemetry.registry)
    port = config.port
    async with contextlib.AsyncExitStack() as stack:
        pins: Pins = NoPins()
        if config.deployer_target:
            identity = ServiceIdentity(IdentityIssuer(NAME, key, clock), "deployer")
            pins = DeployerPins(
                await stack.enter_async_context(
                    create_channel(
                        config.deployer_target,
                        credentials=_credentials(
                            config.deployer_ca_file, config.deployer_cert_file, config.deployer_key_file
                        ),
                        identity=identity,
                    )
                )
            )
        client = EtcdClient(
            config.etcd_endpoints,
            clock=clock,
            randomness=randomness,
            credentials=_credentials(config.etcd_ca_file, config.etcd_cert_file, config.etcd_key_file),
        )
        store = EtcdStore(
            client,
            leader_ttl_s=config.leader_ttl_s,
            liveness_s=config.liveness_s,
            on_unreadable=metrics.unreadable,
        )
        stack.push_async_callback(store.close)
        scheduler = build(
            config,
            store,
            pins,
            metrics,
            clock,
            randomness,
            lambda: config.advertised_address or f"{config.host}:{port}",
        )
        verifier = IdentityVerifier(NAME, load_trust_dir(config.identity_trust_dir), clock)
        server = create_server(
            config, scheduler.services, access=ACCESS, verifier=verifier, telemetry=telemetry, clock=clock
        )
        port = server.port
        exporter = start_metrics_server(
            config.host,
            config.metrics_port,
            telemetry.registry,
            cert_file=config.tls_cert_file,
            key_file=config.tls_key_file,
            client_ca_file=config.tls_client_ca_file,
        )
        if exporter is not None:
            stack.callback(exporter.close)
        async with scheduler.running():
            await serve(server, config)


def _credentials(
    ca_file: Path | None, cert_file: Path | None, key_file: Path | None
) -> grpc.ChannelCredentials | None:
    return client_credentials(ca_file, cert_file, key_file) if ca_file is not None else None


def main(argv: Sequence[str]) -> int:
    """Run the scheduler with these flags; return the process's exit status."""
    return run_service(NAME, SchedulerConfig, run, argv, os.environ)

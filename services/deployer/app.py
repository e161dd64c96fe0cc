"""The composition root: builds the deployer out of its parts and runs it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from libs.common.client import Channel, ServiceIdentity, client_credentials, create_channel
from libs.common.clock import Clock, SystemClock
from libs.common.errors import Invalid
from libs.common.identity import (
    IdentityIssuer,
    IdentityVerifier,
    load_or_create_key,
    load_trust_dir,
    publish_key,
)
from libs.common.rand import Randomness, SystemRandomness
from libs.common.server import AddsItself, Server, create_server, serve
from libs.common.sql import open_database
from libs.common.telemetry import Telemetry, setup_tracing, start_metrics_server
from services.deployer import service, service_devices
from services.deployer.access import ACCESS
from services.deployer.blob_files import BlobFiles
from services.deployer.config import DeployerConfig
from services.deployer.domain.audit import Audit
from services.deployer.domain.blobs import Blobs, Files
from services.deployer.domain.catalogue import Catalogue
from services.deployer.domain.census import Census
from services.deployer.domain.feed import Feed
from services.deployer.domain.fleet import Fleet
from services.deployer.domain.housekeeping import Housekeeping
from services.deployer.domain.preflight import Preflights, Simulator
from services.deployer.domain.pull import Pull
from services.deployer.domain.reconciler import Reconciler
from services.deployer.domain.releases import Releases
from services.deployer.domain.rollout import Books
from services.deployer.domain.signals import Signals
from services.deployer.domain.trust import Notary, Roots
from services.deployer.metrics import Metrics
from services.deployer.notary import KeyNotary, load_signing_keys
from services.deployer.simulator import RemoteSimulator
from services.deployer.store import Store
from services.deployer.stores.sql import SqlStore

NAME = "deployer"
MIGRATIONS = Path(__file__).parent / "migrations"


@dataclass(frozen=True, slots=True)
class Deployer:
    """The deployer's parts, put together; `running` runs what works in the background."""

    store: Store
    blobs: Blobs
    feed: Feed
    fleet: Fleet
    pull: Pull
    releases: Releases
    reconciler: Reconciler
    housekeeping: Housekeeping
    services: tuple[AddsItself, ...]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the controller, the feed and the housekeeping inside the block."""
        loops = [
            asyncio.create_task(self.reconciler.run(), name="reconciler"),
            asyncio.create_task(self.feed.run(), name="feed"),
            asyncio.create_task(self.housekeeping.run(), name="housekeeping"),
        ]
        try:
            yield
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)


def build(
    config: DeployerConfig,
    store: Store,
    files: Files,
    notary: Notary,
    metrics: Metrics,
    clock: Clock,
    randomness: Randomness,
    simulator: Simulator | None = None,
) -> Deployer:
    """Put the parts together; does no IO. Without a `simulator` versions are published untried."""
    signals, books = Signals(), Books()
    blobs = Blobs(store, files, clock, on_bytes=metrics.blob_bytes)
    census = Census(store, books, clock)
    feed = Feed(store, books, signals, clock, log_count=config.push_log_count)
    fleet = Fleet(store, books, notary, signals, clock, randomness)
    releases = Releases(store, books, notary, census, signals, clock, randomness)
    pull = Pull(
        store,
        books,
        notary,
        signals,
        metrics,
        clock,
        set_ttl=timedelta(seconds=config.device_set_ttl_s),
    )
    preflights = Preflights(store, simulator, metrics, clock)
    reconciler = Reconciler(store, census, signals, metrics, clock, recheck_s=config.reconcile_interval_s)
    housekeeping = Housekeeping(
        store,
        blobs,
        metrics.states,
        clock,
        interval_s=config.sweep_interval_s,
        grace=timedelta(seconds=config.blob_grace_s),
    )
    return Deployer(
        store,
        blobs,
        feed,
        fleet,
        pull,
        releases,
        reconciler,
        housekeeping,
        services=(
            service.TaskService(Catalogue(store, blobs, notary, preflights, clock)),
            service.BlobService(blobs),
            service.TrustService(Roots(store, notary, clock)),
            service_devices.DeviceService(fleet),
            service_devices.EnrolmentService(fleet),
            service.ReleaseService(releases),
            service_devices.PullService(pull),
            service_devices.PushIndexService(feed),
            service.AuditService(Audit(store)),
        ),
    )


def open_simulator(config: DeployerConfig, issuer: IdentityIssuer) -> Channel:
    """Return a channel to the simulator, on which this service says who it is."""
    credentials = None
    if config.simulator_ca_file is not None:
        credentials = client_credentials(
            config.simulator_ca_file, config.simulator_cert_file, config.simulator_key_file
        )
    identity = ServiceIdentity(issuer, "simulator")
    return create_channel(config.simulator_target, credentials=credentials, identity=identity)


async def run(config: DeployerConfig) -> None:
    """Serve until told to stop.

    Raises:
        Precondition: when the port or the database is taken.
        Invalid: when a key file or the database URL can't be used.
    """
    clock, randomness = SystemClock(), SystemRandomness()
    if config.identity_trust_dir is None:
        raise Invalid(
            "--identity-trust-dir: is missing; name the folder of the services' public keys (NAME.pub)"
        )
    identity_file = config.identity_key_file or config.data_dir / f"{NAME}.key"
    for folder in (config.data_dir, identity_file.parent, config.signing_key_file.parent):
        folder.mkdir(parents=True, exist_ok=True)
    identity_key = load_or_create_key(identity_file)
    if load_trust_dir(config.identity_trust_dir).get(NAME) != identity_key.public_key():
        publish_key(config.identity_trust_dir, NAME, identity_key.public_key())
    notary = KeyNotary(
        load_signing_keys(config.signing_key_file, config.next_signing_key_file),
        identity_key,
        randomness,
        credential_ttl=timedelta(seconds=config.credential_ttl_s),
    )
    telemetry = Telemetry(NAME, tracer_provider=setup_tracing(NAME, config.otlp_endpoint))
    metrics = Metrics(telemetry.registry)
    async with contextlib.AsyncExitStack() as stack:
        database = await open_database(config.database_url, script_location=MIGRATIONS)
        store = SqlStore(database)
        stack.push_async_callback(store.close)
        files = await asyncio.to_thread(BlobFiles, config.data_dir)
        simulator = None
        if config.simulator_target:
            issuer = IdentityIssuer(NAME, identity_key, clock)
            channel = await stack.enter_async_context(open_simulator(config, issuer))
            simulator = RemoteSimulator(channel, config.simulator_timeout_s)
        deployer = build(config, store, files, notary, metrics, clock, randomness, simulator)
        verifier = IdentityVerifier(NAME, load_trust_dir(config.identity_trust_dir), clock)
        server: Server = create_server(
            config, deployer.services, access=ACCESS, verifier=verifier, telemetry=telemetry, clock=clock
        )
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
        async with deployer.running():
            await serve(server, config)

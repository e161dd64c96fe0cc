"""The composition root: builds the tuner out of its parts and runs it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from libs.common.blobs import BlobClient
from libs.common.client import Channel, create_service_channel
from libs.common.clock import Clock, SystemClock
from libs.common.config import ServiceConfig
from libs.common.errors import Invalid
from libs.common.folder_lock import held_folder
from libs.common.identity import (
    IdentityIssuer,
    IdentityVerifier,
    load_or_create_key,
    load_trust_dir,
    publish_key,
)
from libs.common.names import ModelName
from libs.common.rand import Randomness, SystemRandomness
from libs.common.server import Server, create_server, serve
from libs.common.sql import open_database
from libs.common.telemetry import Telemetry, setup_tracing, start_metrics_server
from services.tuner import relay as relays
from services.tuner.access import ACCESS
from services.tuner.bayesian import BayesianSampler
from services.tuner.config import TunerConfig
from services.tuner.domain.applying import Applier
from services.tuner.domain.board import Board
from services.tuner.domain.conductor import Conductor
from services.tuner.domain.experiments import Experiments
from services.tuner.domain.keeping import Keeper
from services.tuner.domain.model import Load, Metric
from services.tuner.domain.ports import Endpoint, Trials
from services.tuner.domain.samplers import Samplers
from services.tuner.local_trials import Caller, LocalTrials
from services.tuner.metrics import Metrics
from services.tuner.service import ExperimentService
from services.tuner.serving_client import Measure, ServingClient
from services.tuner.store import Store
from services.tuner.stores.sql import SqlStore

NAME = "tuner"
MIGRATIONS = Path(__file__).parent / "migrations"


@dataclass(frozen=True, slots=True)
class Tuner:
    """The tuner's parts, put together; `running` runs what works in the background."""

    experiments: Experiments
    conductor: Conductor
    applier: Applier
    service: ExperimentService

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Make trials and apply them inside the block; afterwards every trial is torn down.

        When the work in the background ends by a fault, the block is cancelled and the fault raised.
        """
        try:
            async with asyncio.TaskGroup() as group:
                loops = [
                    group.create_task(self.conductor.run(), name="conductor"),
                    group.create_task(self.applier.run(), name="applier"),
                ]
                try:
                    yield
                finally:
                    for loop in loops:
                        loop.cancel()
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None


def build(
    config: TunerConfig,
    store: Store,
    endpoint: Endpoint,
    trials: Trials,
    metrics: Metrics,
    clock: Clock,
    randomness: Randomness,
) -> Tuner:
    """Put the parts together; does no IO."""
    board = Board()
    keeper = Keeper(store, board, clock)
    conductor = Conductor(
        store,
        keeper,
        trials,
        Samplers(BayesianSampler()),
        metrics,
        clock,
        most_trials=config.most_trials,
        start_s=config.start_s,
    )
    metrics.watch(lambda: conductor.experiment_count)
    applier = Applier(store, keeper, endpoint, metrics, clock)
    experiments = Experiments(
        store, board, conductor, endpoint, clock, randomness, most_running=config.most_running
    )
    return Tuner(experiments, conductor, applier, ExperimentService(experiments, applier))


def _upstream(config: TunerConfig, target: str, callee: str, issuer: IdentityIssuer) -> Channel:
    return create_service_channel(
        target,
        issuer,
        callee,
        ca_file=config.upstream_ca_file,
        cert_file=config.upstream_cert_file,
        key_file=config.upstream_key_file,
    )


async def run(config: TunerConfig) -> None:
    """Serve until told to stop.

    Raises:
        Precondition: when the port, the folder or the database is taken.
        Invalid: when a key file or the database URL can't be used.
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
    issuer = IdentityIssuer(NAME, key, clock)
    telemetry = Telemetry(NAME, tracer_provider=setup_tracing(NAME, config.otlp_endpoint))
    metrics = Metrics(telemetry.registry)
    async with contextlib.AsyncExitStack() as stack:
        # A second one would sweep away the trials of the first.
        stack.enter_context(held_folder(config.data_dir, NAME))
        database = await open_database(config.database_url, script_location=MIGRATIONS)
        store = SqlStore(database)
        stack.push_async_callback(store.close)
        serving = await stack.enter_async_context(_upstream(config, config.serving_target, "serving", issuer))
        deployer = await stack.enter_async_context(
            _upstream(config, config.deployer_target, "deployer", issuer)
        )
        relay = relays.Relay()
        trust = config.data_dir / "trials" / "trust"
        trust.mkdir(parents=True, exist_ok=True)
        door = _relay_server(relay, trust, clock)
        await door.start()
        stack.push_async_callback(door.stop)
        trials = await asyncio.to_thread(
            LocalTrials,
            config.data_dir / "trials",
            BlobClient(deployer),
            relay,
            f"127.0.0.1:{door.port}",
            issuer,
            Caller(identity_file),
            start_s=config.start_s,
        )
        endpoint = ServingClient(serving, _measured(config, identity_file))
        tuner = build(config, store, endpoint, trials, metrics, clock, randomness)
        verifier = IdentityVerifier(NAME, load_trust_dir(config.identity_trust_dir), clock)
        server: Server = create_server(
            config, (tuner.service,), access=ACCESS, verifier=verifier, telemetry=telemetry, clock=clock
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
        async with tuner.running():
            await serve(server, config)


def _relay_server(relay: relays.Relay, trust: Path, clock: Clock) -> Server:
    """Return the server of the trials' blobs: on the loopback, for instances of this tuner alone."""
    return create_server(
        ServiceConfig(),
        (relay,),
        access=relays.ACCESS,
        verifier=IdentityVerifier("deployer", load_trust_dir(trust), clock),
        telemetry=Telemetry("tuner-relay", CollectorRegistry()),
        clock=clock,
    )


def _measured(config: TunerConfig, identity_file: Path) -> Measure:
    """Return what loads a model as it is served."""
    tls = None
    if config.upstream_ca_file is not None:
        tls = (config.upstream_ca_file, config.upstream_cert_file, config.upstream_key_file)
    caller = Caller(identity_file, tls)

    async def measure(model: ModelName, load: Load, seed: int) -> tuple[Metric, ...]:
        return await caller.measure(config.serving_target, model, "", load, seed)

    return measure

"""The composition root: builds serving out of its parts and runs it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry

from libs.common.blobs import BlobClient
from libs.common.client import create_service_channel
from libs.common.clock import Clock, SystemClock
from libs.common.errors import Invalid
from libs.common.folder_lock import held_folder
from libs.common.identity import (
    IdentityIssuer,
    IdentityVerifier,
    load_or_create_key,
    load_trust_dir,
    publish_key,
)
from libs.common.server import create_server, serve
from libs.common.telemetry import Telemetry, setup_tracing, start_metrics_server
from services.serving.access import ACCESS
from services.serving.backends.loader import BackendLoader
from services.serving.config import ServingServiceConfig
from services.serving.domain.backend import Loader
from services.serving.domain.dataplane import DataPlane
from services.serving.domain.deployment import Fleet
from services.serving.domain.fitter import Fitter
from services.serving.domain.repository import Blobs, Repository
from services.serving.metrics import Metrics
from services.serving.model_files import ModelFiles
from services.serving.service import ModelService
from services.serving.service_inference import InferenceService
from services.serving.sql_store import open_store
from services.serving.store import Store
from services.serving.tenant_blobs import TenantBlobs

NAME = "serving"
_log = logging.getLogger("isthmus.serving")


def software_version() -> str:
    """Return what the server says its version is."""
    try:
        return version("isthmus")
    except PackageNotFoundError:
        return "0"


@dataclass(frozen=True, slots=True)
class Serving:
    """Serving's parts, put together."""

    fleet: Fleet
    plane: DataPlane
    repository: Repository
    services: tuple[ModelService, InferenceService]


def build(
    config: ServingServiceConfig,
    store: Store,
    blobs: Blobs,
    clock: Clock,
    registry: CollectorRegistry,
    *,
    loader: Loader | None = None,
) -> Serving:
    """Put the parts together; makes the folder of files. `loader` takes the place of the real backends'."""
    fleet = Fleet()
    files = ModelFiles(config.data_dir / "models", blobs)
    fitter = Fitter(fleet, loader or BackendLoader(config.plan_memory_bytes), files.held, clock)
    repository = Repository(
        store,
        blobs,
        files,
        fitter,
        fleet,
        clock,
        max_models=config.max_models,
        max_versions=config.max_versions,
    )
    plane = DataPlane(fleet, config.max_held_bytes)
    Metrics(registry, fleet, plane)
    inference = InferenceService(plane, repository, clock, software_version())
    return Serving(fleet, plane, repository, (ModelService(repository, clock), inference))


@contextlib.asynccontextmanager
async def recovering(repository: Repository) -> AsyncIterator[None]:
    """Load what the store says, in the background of the block."""

    async def recover() -> None:
        try:
            await repository.recover()
        except Exception:
            _log.exception("models couldn't be recovered")

    task = asyncio.get_running_loop().create_task(recover())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def run(config: ServingServiceConfig) -> None:
    """Serve until told to stop.

    Raises:
        Precondition: when the port, the folder or the database is taken.
        Invalid: when a key file or the database's URL can't be used.
    """
    clock = SystemClock()
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
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(held_folder(config.data_dir, NAME))
        channel = await stack.enter_async_context(
            create_service_channel(
                config.deployer_target,
                IdentityIssuer(NAME, key, clock),
                "deployer",
                ca_file=config.deployer_ca_file,
                cert_file=config.deployer_cert_file,
                key_file=config.deployer_key_file,
            )
        )
        store = await open_store(config.database_url or f"sqlite:///{config.data_dir}/serving.db")
        blobs = TenantBlobs(BlobClient(channel), pinning=config.pin_blobs)
        serving = await asyncio.to_thread(build, config, store, blobs, clock, telemetry.registry)
        stack.push_async_callback(serving.repository.close)
        verifier = IdentityVerifier(NAME, load_trust_dir(config.identity_trust_dir), clock)
        server = create_server(
            config, serving.services, access=ACCESS, verifier=verifier, telemetry=telemetry, clock=clock
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
        await stack.enter_async_context(recovering(serving.repository))
        await serve(server, config)

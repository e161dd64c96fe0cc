"""The composition root: builds the engine out of its parts and runs it."""

import asyncio
import contextlib
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

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
from libs.common.rand import Randomness, SystemRandomness
from libs.common.server import Server, create_server, serve
from libs.common.telemetry import Telemetry, setup_tracing, start_metrics_server
from services.engine.access import ACCESS
from services.engine.cache import PlanCache
from services.engine.config import EngineConfig
from services.engine.crew import Crew
from services.engine.domain.budget import Budget
from services.engine.domain.inference import Desk, Inference
from services.engine.domain.optimiser import Blobs, Optimiser
from services.engine.domain.registry import REGISTRY
from services.engine.metrics import Metrics
from services.engine.service import EngineService
from services.engine.tenant_blobs import TenantBlobs

NAME = "engine"
_ANSWER_FRAME_BYTES = 64 * 1024
"""Of an answer, for what isn't data."""


def producer() -> str:
    """Return what plans name as their maker."""
    try:
        return f"isthmus-engine {version('isthmus')}"
    except PackageNotFoundError:
        return "isthmus-engine 0"


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine's parts, put together."""

    crew: Crew
    optimiser: Optimiser
    inference: Inference
    service: EngineService


def build(
    config: EngineConfig,
    blobs: Blobs,
    executor: Executor,
    metrics: Metrics,
    clock: Clock,
    randomness: Randomness,
) -> Engine:
    """Put the parts together; makes the folders and clears what a crash left."""
    maker = producer()
    crew = Crew(
        (config.data_dir / "work").absolute(),
        randomness=randomness,
        producer=maker,
        workers=config.workers,
        waiting=config.worker_queue,
        memory_bytes=config.worker_memory_bytes,
        cpu_s=config.worker_cpu_s,
        wall_s=config.worker_wall_s,
    )
    cache = PlanCache(config.data_dir / "plans", config.cache_bytes)
    budget = Budget(config.plan_memory_bytes)
    optimiser = Optimiser(blobs, cache, crew, metrics, budget, maker)
    inference = Inference(
        blobs,
        Desk(executor, config.infer_threads + config.infer_queue),
        clock,
        budget,
        max_bytes=config.infer_memory_bytes,
        max_call_bytes=config.infer_call_bytes,
        max_call_work=config.infer_call_work,
    )
    metrics.watch(lambda: crew.busy, lambda: inference.held_bytes)
    answer_bytes = max(config.max_message_bytes - _ANSWER_FRAME_BYTES, 0)
    return Engine(crew, optimiser, inference, EngineService(optimiser, inference, REGISTRY, answer_bytes))


async def run(config: EngineConfig) -> None:
    """Serve until told to stop.

    Raises:
        Precondition: when the port or the folder is taken.
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
        executor = ThreadPoolExecutor(config.infer_threads, "infer")
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        engine = await asyncio.to_thread(
            build, config, TenantBlobs(BlobClient(channel)), executor, metrics, clock, randomness
        )
        verifier = IdentityVerifier(NAME, load_trust_dir(config.identity_trust_dir), clock)
        server: Server = create_server(
            config, (engine.service,), access=ACCESS, verifier=verifier, telemetry=telemetry, clock=clock
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
        await serve(server, config)

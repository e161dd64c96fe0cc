"""A real engine over a blob service of the test's choosing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
from prometheus_client import CollectorRegistry

from isthmus.deployer.v1 import manifest_pb2
from isthmus.engine.v1 import engine_pb2, engine_pb2_grpc
from libs.common.blobs import BlobClient
from libs.common.clock import Clock, SystemClock
from libs.common.identity import Identity
from libs.common.rand import SystemRandomness
from libs.common.retry import RetryPolicy
from libs.common.testing import ServerChannel, running_server
from services.engine import convert
from services.engine.access import ACCESS
from services.engine.app import NAME, Engine, build
from services.engine.config import EngineConfig
from services.engine.metrics import Metrics
from services.engine.tenant_blobs import TenantBlobs


def user(tenant: str, *scopes: str) -> Identity:
    """Return somebody of a tenant, who may do everything with models unless told otherwise."""
    return Identity(tenant, "key-1", "user", frozenset(scopes or ("models:*",)), NAME)


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that serves."""

    engine: Engine
    channel: ServerChannel
    metrics: CollectorRegistry

    def client(self, tenant: str = "acme", *scopes: str) -> Client:
        """Return a client that calls as a user of a tenant."""
        return Client(self.channel.acting_as(user(tenant, *scopes)), tenant)


class Client:
    """What a tenant's people do, in few words."""

    def __init__(self, channel: grpc.aio.Channel, tenant: str) -> None:
        self.parent = f"tenants/{tenant}"
        self.stub = engine_pb2_grpc.EngineServiceStub(channel)

    async def optimise(
        self,
        model: manifest_pb2.BlobRef,
        dimensions: Sequence[engine_pb2.DimensionBounds] = (),
        validate_only: bool = False,
        external_data: Mapping[str, manifest_pb2.BlobRef] | None = None,
    ) -> tuple[list[engine_pb2.Stage], engine_pb2.OptimizeResult]:
        """Return the stages told of and the result."""
        request = engine_pb2.OptimizeRequest(
            parent=self.parent,
            model=model,
            dimensions=dimensions,
            validate_only=validate_only,
            external_data=external_data,
        )
        stages: list[engine_pb2.Stage] = []
        async for response in self.stub.Optimize(request):
            if response.HasField("result"):
                return stages, response.result
            stages.append(response.stage)
        raise AssertionError("no result came")

    async def explain(
        self,
        model: manifest_pb2.BlobRef | None = None,
        plan: manifest_pb2.BlobRef | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> engine_pb2.Explanation:
        """Explain a model or a plan."""
        request = engine_pb2.ExplainRequest(parent=self.parent, model=model, plan=plan, sizes=sizes)
        return (await self.stub.Explain(request)).explanation

    async def infer(self, plan: manifest_pb2.BlobRef, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Run a plan."""
        request = engine_pb2.InferRequest(
            parent=self.parent, plan=plan, inputs=convert.tensors(list(inputs.items()))
        )
        response = await self.stub.Infer(request)
        return convert.arrays(response.outputs)


@contextlib.asynccontextmanager
async def running_engine(
    folder: Path,
    deployer: grpc.aio.Channel,
    *,
    config: EngineConfig | None = None,
    clock: Clock | None = None,
    policy: RetryPolicy | None = None,
) -> AsyncIterator[Running]:
    """Serve an engine out of `folder` on a free port; `deployer` adds the engine's identity to calls."""
    config = config or EngineConfig(port=0, metrics_port=-1, data_dir=folder, identity_trust_dir=folder)
    clock, registry = clock or SystemClock(), CollectorRegistry()
    executor = ThreadPoolExecutor(config.infer_threads)
    client = BlobClient(deployer, policy=policy or RetryPolicy(attempts=2))
    engine = build(config, TenantBlobs(client), executor, Metrics(registry), clock, SystemRandomness())
    try:
        async with running_server(
            engine.service,
            identity=None,
            audience=NAME,
            access=ACCESS,
            clock=clock,
            config=config,
        ) as channel:
            yield Running(engine, channel, registry)
    finally:
        executor.shutdown()

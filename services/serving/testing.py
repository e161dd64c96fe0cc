"""For tests: a backend that does what it is told, and a real serving over any blob service."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
from prometheus_client import CollectorRegistry

from inference import open_inference_pb2 as oip
from inference import open_inference_pb2_grpc
from isthmus.deployer.v1 import manifest_pb2
from isthmus.serving.v1 import model_pb2, model_pb2_grpc
from libs.common.blobs import BlobClient
from libs.common.clock import Clock, SystemClock
from libs.common.identity import Identity
from libs.common.retry import RetryPolicy
from libs.common.testing import ServerChannel, running_server
from services.serving.access import ACCESS
from services.serving.app import NAME, Serving, build, recovering
from services.serving.config import ServingServiceConfig
from services.serving.domain.backend import Backend, Loader
from services.serving.domain.model import Platform, ServingConfig
from services.serving.domain.tensors import DTYPES, NAMES, Array, Signature, TensorSpec
from services.serving.sql_store import open_store
from services.serving.tenant_blobs import TenantBlobs

ROW_SIGNATURE = Signature((TensorSpec("x", "FP32", ("batch", 2)),), (TensorSpec("y", "FP32", ("batch", 2)),))


class FakeBackend:
    """Doubles `x`, or does what it is told; notes every run. See `services.serving.domain.backend.Backend`.

    Attributes:
        runs: shapes of x, in order.
        gate: runs wait for it; set at first.
        entered: counts up as runs begin.
    """

    def __init__(
        self,
        signature: Signature = ROW_SIGNATURE,
        function: Callable[[Array], Array] = lambda x: x * 2,
        sizes: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        self.signature = signature
        self.sizes: Mapping[str, tuple[int, int]] = sizes or {}
        self.runs: list[tuple[int, ...]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self._function = function

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """See `Backend`."""
        x = inputs[self.signature.inputs[0].name]
        self.runs.append(x.shape)
        self.entered.release()
        if not self.gate.wait(60):
            raise AssertionError("nobody opened the gate")
        return {spec.name: self._function(x) for spec in self.signature.outputs}


class FakeLoader:
    """Gives backends by what is in the file; `loads` notes each."""

    def __init__(self, make: Callable[[bytes], Backend]) -> None:
        self._make = make
        self.loads: list[bytes] = []

    def load(self, path: Path, platform: Platform, config: ServingConfig) -> Backend:
        """See `Loader`."""
        content = path.read_bytes()
        self.loads.append(content)
        return self._make(content)


def user(tenant: str, *scopes: str) -> Identity:
    """Return somebody of a tenant, who may do everything with models unless told otherwise."""
    return Identity(tenant, "key-1", "user", frozenset(scopes or ("models:*",)), NAME)


def infer_request(
    model: str,
    inputs: Mapping[str, Array],
    *,
    version: str = "",
    outputs: tuple[str, ...] = (),
) -> oip.ModelInferRequest:
    """Return a request with raw tensors."""
    request = oip.ModelInferRequest(model_name=model, model_version=version)
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=NAMES[array.dtype], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    for name in outputs:
        request.outputs.add(name=name)
    return request


def raw_outputs(response: oip.ModelInferResponse) -> dict[str, Array]:
    """Return the raw outputs of an answer."""
    return {
        output.name: np.frombuffer(raw, DTYPES[output.datatype]).reshape(tuple(output.shape))
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


class Client:
    """What a tenant's people do, in few words."""

    def __init__(self, channel: grpc.aio.Channel, tenant: str) -> None:
        self.parent = f"tenants/{tenant}"
        self.models = model_pb2_grpc.ModelServiceStub(channel)
        self.oip = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)

    def name(self, model: str) -> str:
        """Return a model's full name."""
        return f"{self.parent}/models/{model}"

    async def put(
        self,
        model: str,
        config: model_pb2.ServingConfig | None = None,
        *,
        live: str = "",
        etag: str = "",
        validate_only: bool = False,
    ) -> model_pb2.Model:
        """Make or change a model."""
        request = model_pb2.PutModelRequest(
            model=model_pb2.Model(name=self.name(model), config=config, live_version=live, etag=etag),
            validate_only=validate_only,
        )
        return (await self.models.PutModel(request)).model

    async def get(self, model: str) -> model_pb2.Model:
        """Read a model."""
        return (await self.models.GetModel(model_pb2.GetModelRequest(name=self.name(model)))).model

    async def create(
        self,
        model: str,
        version: str,
        blob: manifest_pb2.BlobRef,
        platform: model_pb2.ModelVersion.Platform.ValueType = model_pb2.ModelVersion.PLATFORM_ONNX,
        *,
        request_id: str = "",
        validate_only: bool = False,
        allow_other_signature: bool = False,
    ) -> model_pb2.ModelVersion:
        """Add a version."""
        request = model_pb2.CreateModelVersionRequest(
            parent=self.name(model),
            version_id=version,
            version=model_pb2.ModelVersion(platform=platform, blob=blob),
            request_id=request_id,
            validate_only=validate_only,
            allow_other_signature=allow_other_signature,
        )
        return (await self.models.CreateModelVersion(request)).version

    async def versions(self, model: str) -> dict[str, model_pb2.ModelVersion]:
        """Return the versions by id, newest first."""
        request = model_pb2.ListModelVersionsRequest(parent=self.name(model))
        found = (await self.models.ListModelVersions(request)).versions
        return {each.name.rpartition("/")[2]: each for each in found}

    async def infer(
        self,
        model: str,
        *,
        version: str = "",
        outputs: tuple[str, ...] = (),
        deadline_s: float | None = None,
        **inputs: Array,
    ) -> dict[str, Array]:
        """Run a model."""
        request = infer_request(model, inputs, version=version, outputs=outputs)
        return raw_outputs(await self.oip.ModelInfer(request, timeout=deadline_s))


@dataclass(frozen=True, slots=True)
class Running:
    """A serving that serves."""

    serving: Serving
    channel: ServerChannel
    metrics: CollectorRegistry

    def client(self, tenant: str = "acme", *scopes: str) -> Client:
        """Return a client that calls as a user of a tenant."""
        return Client(self.channel.acting_as(user(tenant, *scopes)), tenant)


@contextlib.asynccontextmanager
async def running_serving(
    folder: Path,
    deployer: grpc.aio.Channel,
    *,
    config: ServingServiceConfig | None = None,
    clock: Clock | None = None,
    loader: Loader | None = None,
    policy: RetryPolicy | None = None,
) -> AsyncIterator[Running]:
    """Serve out of `folder` on a free port; `deployer` adds serving's identity to calls."""
    config = config or ServingServiceConfig(
        port=0, metrics_port=-1, data_dir=folder, identity_trust_dir=folder
    )
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    clock, registry = clock or SystemClock(), CollectorRegistry()
    store = await open_store(f"sqlite:///{folder}/serving.db")
    blobs = TenantBlobs(BlobClient(deployer, policy=policy or RetryPolicy(attempts=2)))
    serving = build(config, store, blobs, clock, registry, loader=loader)
    try:
        async with (
            running_server(
                *serving.services, identity=None, audience=NAME, access=ACCESS, clock=clock, config=config
            ) as channel,
            recovering(serving.repository),
        ):
            yield Running(serving, channel, registry)
    finally:
        await serving.repository.close()

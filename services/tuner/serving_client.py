"""The models that are served, as the tuner sees them: over `isthmus.serving.v1`, on a tenant's behalf."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from isthmus.deployer.v1 import manifest_pb2
from isthmus.serving.v1 import model_pb2 as pb
from isthmus.serving.v1 import model_pb2_grpc
from libs.common.client import on_behalf_of, rpc_errors
from libs.common.errors import Precondition
from libs.common.names import ModelName, ModelVersionName
from services.tuner.domain.model import Load, Metric, Point, Served

LOAD_S = 120.0
"""The longest that loading and warming a version may take."""
_CALL_S = 30.0
_PAGE = 1000

Measure = Callable[[ModelName, Load, int], Awaitable[tuple[Metric, ...]]]


class ServingClient:
    """See `services.tuner.domain.ports.Endpoint`; also puts a model into an instance that has none."""

    def __init__(self, channel: grpc.aio.Channel, measure: Measure) -> None:
        """Call over `channel`, which mints this service's identity; `measure` loads a model."""
        self._stub = model_pb2_grpc.ModelServiceStub(channel)
        self._measure = measure

    async def _call(self, tenant: str, method: Any, request: Any, within_s: float = _CALL_S) -> Any:
        with on_behalf_of(f"tenants/{tenant}"), rpc_errors():
            return await method(request, timeout=within_s)

    async def _model(self, model: ModelName) -> pb.Model:
        request = pb.GetModelRequest(name=str(model))
        response: pb.GetModelResponse = await self._call(model.tenant, self._stub.GetModel, request)
        return response.model

    async def served(self, model: ModelName) -> Served:
        """See `Endpoint`."""
        found = await self._model(model)
        if not found.live_version:
            raise Precondition(
                f"{model}: has no live version to try; create one first", reason="NO_LIVE_VERSION"
            )
        # It may be said in full or as the last part of the name.
        live = ModelVersionName(model.tenant, model.model, found.live_version.rpartition("/")[2])
        version = await self._version(live)
        return Served(
            live,
            pb.ModelVersion.Platform.Name(version.platform),
            version.blob.digest,
            version.blob.size_bytes,
            found.config.SerializeToString(deterministic=True),
        )

    async def _version(self, name: ModelVersionName) -> pb.ModelVersion:
        token = ""
        while True:
            request = pb.ListModelVersionsRequest(parent=str(name.parent), page_size=_PAGE, page_token=token)
            page = await self._call(name.tenant, self._stub.ListModelVersions, request)
            for version in page.versions:
                if version.name == str(name):
                    return version  # type: ignore[no-any-return]
            token = page.next_page_token
            if not token:
                raise Precondition(f"{name}: was removed meanwhile; try again", reason="NO_LIVE_VERSION")

    async def config(self, model: ModelName) -> tuple[bytes, str]:
        """See `Endpoint`."""
        found = await self._model(model)
        return found.config.SerializeToString(deterministic=True), found.etag

    async def put(self, model: ModelName, config: bytes, etag: str) -> str:
        """See `Endpoint`."""
        parsed = pb.ServingConfig.FromString(config)
        request = pb.PutModelRequest(model=pb.Model(name=str(model), config=parsed, etag=etag))
        response = await self._call(model.tenant, self._stub.PutModel, request, LOAD_S)
        return str(response.model.etag)

    def with_point(self, config: bytes, point: Point) -> bytes:
        """See `Endpoint`."""
        return with_point(config, point)

    async def measure(self, model: ModelName, load: Load, seed: int) -> tuple[Metric, ...]:
        """See `Endpoint`."""
        return await self._measure(model, load, seed)

    async def load(self, served: Served, config: bytes) -> None:
        """Put a model with one version into an instance; return when it is loaded and warmed."""
        name = served.version
        await self.put(name.parent, config, "")
        version = pb.ModelVersion(
            platform=pb.ModelVersion.Platform.Value(served.platform),
            blob=manifest_pb2.BlobRef(digest=served.digest, size_bytes=served.size_bytes),
        )
        request = pb.CreateModelVersionRequest(
            parent=str(name.parent), version_id=name.version, version=version
        )
        await self._call(name.tenant, self._stub.CreateModelVersion, request, LOAD_S)


def with_point(config: bytes, point: Point) -> bytes:
    """Return a configuration with a point's values in it."""
    parsed = pb.ServingConfig.FromString(config)
    for name, value in point.items():
        if name == "max_batch_delay_ms":
            parsed.max_batch_delay.FromMicroseconds(round(value * 1000))
        else:
            setattr(parsed, name, int(value))
    return parsed.SerializeToString(deterministic=True)

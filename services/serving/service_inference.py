"""The Open Inference Protocol: each RPC converts, calls the domain once, and converts back."""

# ruff: noqa: N802 - gRPC names the methods

import asyncio
from typing import Any, TypeAlias

import grpc

from inference import open_inference_pb2 as pb
from inference import open_inference_pb2_grpc
from libs.common.clock import Clock
from services.serving import convert_inference as convert
from services.serving.callers import caller_tenant
from services.serving.domain.dataplane import DataPlane
from services.serving.domain.repository import Repository

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
EXTENSIONS = ("model_repository", "model_configuration", "statistics")
# A message of more bytes is converted on a thread, so that the others' aren't kept waiting: texts and typed
# contents are gone through one by one.
_LARGE_BYTES = 64 * 1024


class InferenceService(open_inference_pb2_grpc.GRPCInferenceServiceServicer):
    """Inference for the caller's tenant."""

    def __init__(self, plane: DataPlane, repository: Repository, clock: Clock, version: str) -> None:
        self._plane = plane
        self._repository = repository
        self._clock = clock
        self._version = version

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, server)

    async def ServerLive(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        """See the proto."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        """See the proto."""
        return pb.ServerReadyResponse(ready=self._plane.ready)

    async def ServerMetadata(
        self, request: pb.ServerMetadataRequest, context: Context
    ) -> pb.ServerMetadataResponse:
        """See the proto."""
        return pb.ServerMetadataResponse(name="isthmus-serving", version=self._version, extensions=EXTENSIONS)

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        """See the proto."""
        key = convert.model_key(caller_tenant(), request.name, "name")
        version = convert.version_name(request.version, "version")
        return pb.ModelReadyResponse(ready=self._plane.model_ready(key, version))

    async def ModelMetadata(
        self, request: pb.ModelMetadataRequest, context: Context
    ) -> pb.ModelMetadataResponse:
        """See the proto."""
        key = convert.model_key(caller_tenant(), request.name, "name")
        deployment = self._plane.deployment(key, convert.version_name(request.version, "version"))
        return convert.metadata(request.name, deployment, self._plane.loaded_versions(key))

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        """See the proto."""
        remaining = context.time_remaining()
        deadline = None if remaining is None else self._clock.monotonic() + remaining
        tenant = caller_tenant()
        if request.ByteSize() > _LARGE_BYTES:
            asked = await asyncio.to_thread(convert.infer_request, tenant, request, deadline)
        else:
            asked = convert.infer_request(tenant, request, deadline)
        result = await self._plane.infer(asked)
        if sum(output.array.nbytes for output in result.outputs) > _LARGE_BYTES:
            return await asyncio.to_thread(convert.infer_response, request, result)
        return convert.infer_response(request, result)

    async def ModelConfig(self, request: pb.ModelConfigRequest, context: Context) -> pb.ModelConfigResponse:
        """See the proto."""
        key = convert.model_key(caller_tenant(), request.name, "name")
        deployment = self._plane.deployment(key, convert.version_name(request.version, "version"))
        return convert.model_config(request.name, deployment)

    async def ModelStatistics(
        self, request: pb.ModelStatisticsRequest, context: Context
    ) -> pb.ModelStatisticsResponse:
        """See the proto."""
        found = self._plane.statistics(caller_tenant(), request.name, request.version)
        return convert.statistics(found)

    async def RepositoryIndex(
        self, request: pb.RepositoryIndexRequest, context: Context
    ) -> pb.RepositoryIndexResponse:
        """See the proto."""
        convert.check_repository(request.repository_name)
        return convert.index(self._plane.index(caller_tenant(), request.ready))

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: Context
    ) -> pb.RepositoryModelLoadResponse:
        """See the proto."""
        convert.check_repository(request.repository_name)
        convert.check_load_parameters(request.parameters)
        await self._repository.load(convert.model_key(caller_tenant(), request.model_name))
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Context
    ) -> pb.RepositoryModelUnloadResponse:
        """See the proto."""
        convert.check_repository(request.repository_name)
        convert.check_unload_parameters(request.parameters)
        await self._repository.unload(convert.model_key(caller_tenant(), request.model_name))
        return pb.RepositoryModelUnloadResponse()

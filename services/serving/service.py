"""The model repository's RPCs: each converts, calls the domain once, and converts back."""

# ruff: noqa: N802 - gRPC names the methods

from typing import Any, TypeAlias

import grpc

from isthmus.serving.v1 import model_pb2 as pb
from isthmus.serving.v1 import model_pb2_grpc
from libs.common.clock import Clock
from libs.common.paging import page_size
from services.serving import convert
from services.serving.callers import require_own
from services.serving.domain.model import ModelKey
from services.serving.domain.repository import Repository

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


def _own(key: ModelKey) -> ModelKey:
    require_own(key.tenant)
    return key


class ModelService(model_pb2_grpc.ModelServiceServicer):
    """Models and their versions."""

    def __init__(self, repository: Repository, clock: Clock) -> None:
        self._repository = repository
        self._clock = clock

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        model_pb2_grpc.add_ModelServiceServicer_to_server(self, server)

    async def PutModel(self, request: pb.PutModelRequest, context: Context) -> pb.PutModelResponse:
        """See the proto."""
        model = await self._repository.put(
            _own(convert.key(request.model.name, "model.name")),
            convert.config(request.model.config),
            live=convert.live_version(request.model.live_version),
            etag=request.model.etag,
            validate_only=request.validate_only,
        )
        return pb.PutModelResponse(model=convert.model(model))

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        """See the proto."""
        model = await self._repository.get(_own(convert.key(request.name)))
        return pb.GetModelResponse(model=convert.model(model))

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """See the proto."""
        size = page_size(request.page_size)
        tenant = require_own(convert.tenant(request.parent))
        found = await self._repository.list_models(tenant, convert.models_after(request.page_token), size + 1)
        return convert.models_page(found, size)

    async def DeleteModel(self, request: pb.DeleteModelRequest, context: Context) -> pb.DeleteModelResponse:
        """See the proto."""
        await self._repository.delete(_own(convert.key(request.name)), request.etag)
        return pb.DeleteModelResponse()

    async def CreateModelVersion(
        self, request: pb.CreateModelVersionRequest, context: Context
    ) -> pb.CreateModelVersionResponse:
        """See the proto."""
        draft = convert.draft(request, self._clock.now())
        _own(draft.key)
        made = await self._repository.create_version(
            draft,
            validate_only=request.validate_only,
            allow_other_signature=request.allow_other_signature,
        )
        return pb.CreateModelVersionResponse(version=convert.version(*made))

    async def ListModelVersions(
        self, request: pb.ListModelVersionsRequest, context: Context
    ) -> pb.ListModelVersionsResponse:
        """See the proto."""
        size = page_size(request.page_size)
        key = _own(convert.key(request.parent, "parent"))
        before = convert.versions_before(request.page_token)
        found = await self._repository.list_versions(key, before, size + 1)
        return convert.versions_page([(each, self._repository.condition(each)) for each in found], size)

    async def DeleteModelVersion(
        self, request: pb.DeleteModelVersionRequest, context: Context
    ) -> pb.DeleteModelVersionResponse:
        """See the proto."""
        key, version = convert.version_key(request.name)
        await self._repository.delete_version(_own(key), version)
        return pb.DeleteModelVersionResponse()

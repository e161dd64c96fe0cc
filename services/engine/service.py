"""The RPCs: each converts, calls the domain once, and converts back. Every blob is the caller's tenant's."""

# ruff: noqa: N802 - gRPC names the methods

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeAlias

import grpc

from isthmus.engine.v1 import engine_pb2, engine_pb2_grpc
from libs.common.access import require_tenant
from libs.common.blobs import BlobRef
from libs.common.identity import current_identity
from services.engine import convert
from services.engine.domain.decompose.operator import Operator
from services.engine.domain.inference import Inference
from services.engine.domain.optimiser import Optimiser

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


def own_tenant(parent: str) -> str:
    """Return the tenant of `parent` if it is the caller's; raise NotFound otherwise."""
    tenant = convert.tenant_of(parent)
    require_tenant(current_identity(), tenant)
    return tenant


class EngineService(engine_pb2_grpc.EngineServiceServicer):
    """Plans of models."""

    def __init__(
        self,
        optimiser: Optimiser,
        inference: Inference,
        registry: Mapping[str, Operator],
        max_answer_bytes: int,
    ) -> None:
        self._optimiser = optimiser
        self._inference = inference
        self._registry = registry
        self._max_answer_bytes = max_answer_bytes

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        engine_pb2_grpc.add_EngineServiceServicer_to_server(self, server)

    async def Optimize(
        self, request: engine_pb2.OptimizeRequest, context: Context
    ) -> AsyncIterator[engine_pb2.OptimizeResponse]:
        """See the proto."""
        events = self._optimiser.optimise(
            own_tenant(request.parent),
            convert.model_of(request),
            convert.dimensions(request.dimensions),
            validate_only=request.validate_only,
        )
        async with contextlib.aclosing(events):
            async for event in events:
                yield convert.progress(event)

    async def Explain(
        self, request: engine_pb2.ExplainRequest, context: Context
    ) -> engine_pb2.ExplainResponse:
        """See the proto."""
        found = await self._optimiser.explain(
            own_tenant(request.parent),
            *convert.subject(request),
            convert.dimensions(request.dimensions),
            convert.sizes(request),
        )
        return engine_pb2.ExplainResponse(explanation=convert.explanation(found))

    async def Infer(self, request: engine_pb2.InferRequest, context: Context) -> engine_pb2.InferResponse:
        """See the proto."""
        outputs = await self._inference.infer(
            own_tenant(request.parent),
            BlobRef.from_proto(request.plan),
            convert.arrays(request.inputs),
            self._max_answer_bytes,
        )
        return engine_pb2.InferResponse(outputs=convert.tensors(outputs))

    async def ListOperators(
        self, request: engine_pb2.ListOperatorsRequest, context: Context
    ) -> engine_pb2.ListOperatorsResponse:
        """See the proto."""
        return convert.operators(self._registry, request)

"""The RPCs: each converts, calls the domain once, and converts back. All is of the caller's tenant."""

# ruff: noqa: N802 - gRPC names the methods

import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from isthmus.tuner.v1 import tuner_pb2 as pb
from isthmus.tuner.v1 import tuner_pb2_grpc
from libs.common.access import require_tenant
from libs.common.identity import current_identity
from libs.common.names import ExperimentName
from libs.common.paging import page_size
from services.tuner import convert
from services.tuner.access import check_may_apply
from services.tuner.domain.applying import Applier
from services.tuner.domain.experiments import Experiments

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


def own_tenant(parent: str) -> str:
    """Return the tenant of `parent` if it is the caller's; raise NotFound otherwise."""
    tenant = convert.tenant_of(parent)
    require_tenant(current_identity(), tenant)
    return tenant


def own(text: str, field: str = "name") -> ExperimentName:
    """Return an experiment's name if it is of the caller's tenant; raise NotFound otherwise."""
    name = convert.name_of(text, field)
    require_tenant(current_identity(), name.tenant)
    return name


class ExperimentService(tuner_pb2_grpc.ExperimentServiceServicer):
    """Experiments."""

    def __init__(self, experiments: Experiments, applier: Applier) -> None:
        self._experiments = experiments
        self._applier = applier

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        tuner_pb2_grpc.add_ExperimentServiceServicer_to_server(self, server)

    async def CreateExperiment(
        self, request: pb.CreateExperimentRequest, context: Context
    ) -> pb.CreateExperimentResponse:
        """See the proto."""
        made = await self._experiments.create(
            own_tenant(request.parent),
            request.experiment_id,
            convert.spec(request.spec),
            convert.request(request),
            validate_only=request.validate_only,
        )
        return pb.CreateExperimentResponse(experiment=convert.experiment(made))

    async def GetExperiment(
        self, request: pb.GetExperimentRequest, context: Context
    ) -> pb.GetExperimentResponse:
        """See the proto."""
        found = await self._experiments.get(own(request.name))
        return pb.GetExperimentResponse(experiment=convert.experiment(found))

    async def ListExperiments(
        self, request: pb.ListExperimentsRequest, context: Context
    ) -> pb.ListExperimentsResponse:
        """See the proto."""
        size = page_size(request.page_size)
        found = await self._experiments.list(
            own_tenant(request.parent), convert.experiment_page(request.page_token), size + 1
        )
        return convert.experiments_response(found, size)

    async def ListTrials(self, request: pb.ListTrialsRequest, context: Context) -> pb.ListTrialsResponse:
        """See the proto."""
        size = page_size(request.page_size)
        found = await self._experiments.trials(
            own(request.parent, "parent"), convert.trial_page(request.page_token), size + 1
        )
        return convert.trials_response(found, size)

    async def WatchExperiment(
        self, request: pb.WatchExperimentRequest, context: Context
    ) -> AsyncIterator[pb.WatchExperimentResponse]:
        """See the proto."""
        changes = self._experiments.watch(own(request.name))
        async with contextlib.aclosing(changes):
            async for change in changes:
                yield convert.change(change)

    async def CancelExperiment(
        self, request: pb.CancelExperimentRequest, context: Context
    ) -> pb.CancelExperimentResponse:
        """See the proto."""
        found = await self._experiments.cancel(own(request.name))
        return pb.CancelExperimentResponse(experiment=convert.experiment(found))

    async def ApplyExperiment(
        self, request: pb.ApplyExperimentRequest, context: Context
    ) -> pb.ApplyExperimentResponse:
        """See the proto."""
        name = own(request.name)
        check_may_apply(current_identity())
        await self._applier.begin(name, request.trial)
        found = await self._experiments.get(name)
        return pb.ApplyExperimentResponse(experiment=convert.experiment(found))

    async def DeleteExperiment(
        self, request: pb.DeleteExperimentRequest, context: Context
    ) -> pb.DeleteExperimentResponse:
        """See the proto."""
        await self._experiments.delete(own(request.name), request.etag)
        return pb.DeleteExperimentResponse()

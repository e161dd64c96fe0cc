"""`AgentService` on the Unix socket, for apps on this device."""

from collections.abc import AsyncIterator
from typing import Any, Protocol

import grpc

from isthmus.device_agent.v1 import device_agent_pb2 as pb
from isthmus.device_agent.v1 import device_agent_pb2_grpc
from libs.common.clock import Clock
from services.device_agent import convert
from services.device_agent.ingest import Ingest
from services.device_agent.results import Results
from services.device_agent.status import Status

Context = grpc.aio.ServicerContext[Any, Any]


class HasStatus(Protocol):
    """Whoever knows how the agent does."""

    async def status(self) -> Status:
        """Return the picture of now."""
        ...


class AgentService(device_agent_pb2_grpc.AgentServiceServicer):
    """Events in, results and status out."""

    def __init__(self, ingest: Ingest, results: Results, agent: HasStatus, clock: Clock) -> None:
        self._ingest = ingest
        self._results = results
        self._agent = agent
        self._clock = clock

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        device_agent_pb2_grpc.add_AgentServiceServicer_to_server(self, server)

    async def SendEvents(self, request: pb.SendEventsRequest, context: Context) -> pb.SendEventsResponse:  # noqa: N802
        """Store events durably."""
        events = convert.from_events(request, self._clock.now().timestamp())
        new, old = await self._ingest.add(events)
        return pb.SendEventsResponse(accepted_count=new, duplicate_count=old)

    async def WatchResults(  # noqa: N802
        self, request: pb.WatchResultsRequest, context: Context
    ) -> AsyncIterator[pb.WatchResultsResponse]:
        """Stream results in their order."""
        results = self._results.watch(request.task, request.after_sequence, follow=not request.no_follow)
        async for result in results:
            yield convert.to_result(result)

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:  # noqa: N802
        """Say what runs and how it does."""
        return convert.to_status(await self._agent.status())

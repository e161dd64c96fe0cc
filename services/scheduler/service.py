"""The RPCs for users: each converts, calls the domain once, and converts back.

Every name is the caller's tenant's. Those of runners are in `services.scheduler.service_runner`.
"""

# ruff: noqa: N802 - gRPC names the methods

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, TypeAlias, TypeVar

import grpc

from isthmus.scheduler.v1 import scheduler_pb2 as api
from isthmus.scheduler.v1 import scheduler_pb2_grpc
from libs.common.access import require_tenant
from libs.common.identity import current_identity
from libs.common.names import JobName, NodeName, QueueName, ReservationName
from services.scheduler import convert, convert_api, convert_job
from services.scheduler.domain.jobs import Jobs
from services.scheduler.domain.logs import Logs
from services.scheduler.domain.nodes import Nodes
from services.scheduler.domain.queues import Queues

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Name = TypeVar("Name", JobName, QueueName, ReservationName)


def own(name: Name) -> Name:
    """Return `name` if it is the caller's tenant's; raise NotFound otherwise."""
    require_tenant(current_identity(), name.tenant)
    return name


def own_tenant(parent: str) -> str:
    """Return the tenant of `parent` if it is the caller's; raise NotFound otherwise."""
    tenant = convert_api.tenant_of(parent)
    require_tenant(current_identity(), tenant)
    return tenant


class JobService(scheduler_pb2_grpc.JobServiceServicer):
    """Jobs."""

    def __init__(self, jobs: Jobs, logs: Logs) -> None:
        self._jobs = jobs
        self._logs = logs

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        scheduler_pb2_grpc.add_JobServiceServicer_to_server(self, server)

    async def CreateJob(self, request: api.CreateJobRequest, context: Context) -> api.CreateJobResponse:
        """See the proto."""
        own_tenant(request.parent)
        view = await self._jobs.create(convert_api.new_job(request))
        return api.CreateJobResponse(job=convert_api.job(view))

    async def GetJob(self, request: api.GetJobRequest, context: Context) -> api.GetJobResponse:
        """See the proto."""
        view = await self._jobs.get(own(JobName.parse(request.name)))
        return api.GetJobResponse(job=convert_api.job(view))

    async def ListJobs(self, request: api.ListJobsRequest, context: Context) -> api.ListJobsResponse:
        """See the proto."""
        tenant = own_tenant(request.parent)
        after, limit = convert.page_start(request.page_token, request.page_size, "job")
        views = await self._jobs.list_jobs(tenant, after, limit)
        page, token = convert.page(views, convert_api.job, limit, "job", lambda view: view.job.name.job)
        return api.ListJobsResponse(jobs=page, next_page_token=token)

    async def CancelJob(self, request: api.CancelJobRequest, context: Context) -> api.CancelJobResponse:
        """See the proto."""
        view = await self._jobs.cancel(own(JobName.parse(request.name)))
        return api.CancelJobResponse(job=convert_api.job(view))

    async def DeleteJob(self, request: api.DeleteJobRequest, context: Context) -> api.DeleteJobResponse:
        """See the proto."""
        await self._jobs.delete(own(JobName.parse(request.name)), request.etag)
        return api.DeleteJobResponse()

    async def WatchJob(
        self, request: api.WatchJobRequest, context: Context
    ) -> AsyncIterator[api.WatchJobResponse]:
        """See the proto."""
        async with aclosing(self._jobs.watch(own(JobName.parse(request.name)))) as views:
            async for view in views:
                yield api.WatchJobResponse(job=convert_api.job(view))

    async def ReadLogs(
        self, request: api.ReadLogsRequest, context: Context
    ) -> AsyncIterator[api.ReadLogsResponse]:
        """See the proto."""
        name = own(JobName.parse(request.name))
        expected = request.offset_bytes
        reading = self._logs.read(
            name, request.rank, request.attempt, request.offset_bytes, follow=request.follow
        )
        async with aclosing(reading) as parts:
            async for part in parts:
                yield convert_api.log_part(part, expected)
                expected = part.offset + len(part.data)

    async def ExplainJob(self, request: api.ExplainJobRequest, context: Context) -> api.ExplainJobResponse:
        """See the proto."""
        return convert_api.explanation(await self._jobs.explain(own(JobName.parse(request.name))))

    async def GetReservation(
        self, request: api.GetReservationRequest, context: Context
    ) -> api.GetReservationResponse:
        """See the proto."""
        value = await self._jobs.reservation(own(ReservationName.parse(request.name)))
        return api.GetReservationResponse(reservation=convert_job.reservation_message(value))

    async def ListReservations(
        self, request: api.ListReservationsRequest, context: Context
    ) -> api.ListReservationsResponse:
        """See the proto."""
        tenant = own_tenant(request.parent)
        after, limit = convert.page_start(request.page_token, request.page_size, "reservation")
        values = await self._jobs.reservations(tenant, after, limit)
        page, token = convert.page(
            values,
            convert_job.reservation_message,
            limit,
            "reservation",
            lambda value: value.name.reservation,
        )
        return api.ListReservationsResponse(reservations=page, next_page_token=token)


class QueueService(scheduler_pb2_grpc.QueueServiceServicer):
    """Queues."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        scheduler_pb2_grpc.add_QueueServiceServicer_to_server(self, server)

    async def CreateQueue(self, request: api.CreateQueueRequest, context: Context) -> api.CreateQueueResponse:
        """See the proto."""
        own_tenant(request.parent)
        view = await self._queues.create(convert_api.new_queue(request))
        return api.CreateQueueResponse(queue=convert_api.queue(view))

    async def GetQueue(self, request: api.GetQueueRequest, context: Context) -> api.GetQueueResponse:
        """See the proto."""
        view = await self._queues.get(own(QueueName.parse(request.name)))
        return api.GetQueueResponse(queue=convert_api.queue(view))

    async def ListQueues(self, request: api.ListQueuesRequest, context: Context) -> api.ListQueuesResponse:
        """See the proto."""
        tenant = own_tenant(request.parent)
        after, limit = convert.page_start(request.page_token, request.page_size, "queue")
        views = await self._queues.list_queues(tenant, after, limit)
        page, token = convert.page(
            views, convert_api.queue, limit, "queue", lambda view: view.queue.name.queue
        )
        return api.ListQueuesResponse(queues=page, next_page_token=token)

    async def UpdateQueue(self, request: api.UpdateQueueRequest, context: Context) -> api.UpdateQueueResponse:
        """See the proto."""
        wish = convert_api.queue_update(request)
        own(wish.name)
        return api.UpdateQueueResponse(queue=convert_api.queue(await self._queues.update(wish)))

    async def DeleteQueue(self, request: api.DeleteQueueRequest, context: Context) -> api.DeleteQueueResponse:
        """See the proto."""
        await self._queues.delete(own(QueueName.parse(request.name)), request.etag)
        return api.DeleteQueueResponse()


class NodeService(scheduler_pb2_grpc.NodeServiceServicer):
    """Nodes."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        scheduler_pb2_grpc.add_NodeServiceServicer_to_server(self, server)

    async def GetNode(self, request: api.GetNodeRequest, context: Context) -> api.GetNodeResponse:
        """See the proto."""
        view = await self._nodes.get(NodeName.parse(request.name), current_identity())
        return api.GetNodeResponse(node=convert_api.node(view))

    async def ListNodes(self, request: api.ListNodesRequest, context: Context) -> api.ListNodesResponse:
        """See the proto."""
        after, limit = convert.page_start(request.page_token, request.page_size, "node")
        views = await self._nodes.list_nodes(after, limit, current_identity())
        page, token = convert.page(views, convert_api.node, limit, "node", lambda view: view.node.name.node)
        return api.ListNodesResponse(nodes=page, next_page_token=token)

    async def UpdateNode(self, request: api.UpdateNodeRequest, context: Context) -> api.UpdateNodeResponse:
        """See the proto."""
        view = await self._nodes.update(
            convert_api.node_name(request.node),
            cordoned=request.node.spec.cordoned,
            etag=request.node.metadata.etag,
            validate_only=request.validate_only,
            caller=current_identity(),
        )
        return api.UpdateNodeResponse(node=convert_api.node(view))

    async def DeleteNode(self, request: api.DeleteNodeRequest, context: Context) -> api.DeleteNodeResponse:
        """See the proto."""
        await self._nodes.delete(NodeName.parse(request.name), request.etag, current_identity())
        return api.DeleteNodeResponse()

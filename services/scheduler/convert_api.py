"""Between the API's requests and answers, and what the domain takes and gives."""

from isthmus.scheduler.v1 import object_pb2 as pb
from isthmus.scheduler.v1 import scheduler_pb2 as api
from libs.common.names import NodeName, QueueName, TenantName, check_id
from services.scheduler import convert, convert_job
from services.scheduler.domain.jobs import Explanation, JobView, NewJob
from services.scheduler.domain.logs import LogPart
from services.scheduler.domain.nodes import NodeView
from services.scheduler.domain.queues import QueueView, QueueWish


def tenant_of(parent: str) -> str:
    """Return the tenant of `tenants/{t}`; raise Invalid."""
    return TenantName.parse(parent, "parent").tenant


def new_job(request: api.CreateJobRequest) -> NewJob:
    """Read a request; raise Invalid for a malformed name, time or enum."""
    tenant = tenant_of(request.parent)
    return NewJob(
        tenant=tenant,
        job_id=check_id(request.job_id, "job_id") if request.job_id else "",
        spec=convert_job.job_spec(request.job.spec, tenant),
        labels=dict(request.job.metadata.labels),
        request_id=request.request_id,
        fingerprint=convert.fingerprint(request),
        validate_only=request.validate_only,
    )


def job(view: JobView) -> pb.Job:
    """Write a job."""
    return convert_job.job_message(view.job, view.pending)


def new_queue(request: api.CreateQueueRequest) -> QueueWish:
    """Read a request; raise Invalid for a malformed name."""
    name = QueueName(tenant_of(request.parent), check_id(request.queue_id, "queue_id"))
    return _queue_wish(
        name,
        request.queue,
        request_id=request.request_id,
        fingerprint=convert.fingerprint(request),
        validate_only=request.validate_only,
    )


def queue_update(request: api.UpdateQueueRequest) -> QueueWish:
    """Read a request; raise Invalid for a malformed name."""
    name = QueueName.parse(request.queue.metadata.name, "queue.metadata.name")
    return _queue_wish(
        name, request.queue, etag=request.queue.metadata.etag, validate_only=request.validate_only
    )


def _queue_wish(
    name: QueueName,
    message: pb.Queue,
    *,
    etag: str = "",
    request_id: str = "",
    fingerprint: str = "",
    validate_only: bool = False,
) -> QueueWish:
    spec = message.spec
    return QueueWish(
        name,
        convert.resources(spec.quota),
        spec.priority,
        spec.paused,
        dict(message.metadata.labels),
        etag,
        request_id,
        fingerprint,
        validate_only,
    )


def queue(view: QueueView) -> pb.Queue:
    """Write a queue."""
    status = pb.QueueStatus(
        used=convert.resources_message(view.used), pending_count=view.pending, running_count=view.running
    )
    return convert.queue_message(view.queue, status)


def node_name(message: pb.Node) -> NodeName:
    """Return the name of a node in a request; raise Invalid."""
    return NodeName.parse(message.metadata.name, "node.metadata.name")


def node(view: NodeView) -> pb.Node:
    """Write a node."""
    return convert.node_message(view.node, view.state, view.tenant)


def explanation(value: Explanation) -> api.ExplainJobResponse:
    """Write why a job is where it is."""
    return api.ExplainJobResponse(
        job=job(value.view),
        nodes=[
            api.NodeVerdict(
                node=str(each.node.name),
                fitting_worker_count=each.fitting,
                reasons=[convert_job.reason_message(reason) for reason in each.reasons],
            )
            for each in value.nodes
        ],
        ahead=[str(name) for name in value.ahead],
        summary=value.summary,
    )


def log_part(part: LogPart, expected: int) -> api.ReadLogsResponse:
    """Write a piece of a log that was to begin at `expected`."""
    return api.ReadLogsResponse(
        data=part.data, offset_bytes=part.offset, dropped_bytes=max(0, part.offset - expected)
    )

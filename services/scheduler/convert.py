"""Between messages and objects: with `convert_runner`, the only code that knows both.

The store uses it too: what etcd holds is the JSON of these messages.
"""

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.deployer.v1 import manifest_pb2
from isthmus.scheduler.v1 import object_pb2 as pb
from libs.common.errors import Invalid
from libs.common.names import JobName, NodeName, QueueName, ReservationName
from libs.common.paging import decode_token, encode_token, page_size
from services.scheduler.domain.objects import (
    DEFAULT_HOST,
    DEFAULT_PORTS,
    Artefact,
    BlobRef,
    Facts,
    Gpu,
    Holding,
    Job,
    JobFile,
    JobSpec,
    JobState,
    JobStatus,
    KeptArtefact,
    Link,
    Meta,
    Mode,
    Nearness,
    Node,
    NodeState,
    Queue,
    Reservation,
    Resources,
    Worker,
    WorkerPlacement,
    WorkerState,
)
from services.scheduler.domain.reasons import Reason

DEFAULT_QUEUE = "default"
DEFAULT_RESOURCES = Resources(500, 512 * 2**20)
_DEFAULTS = JobSpec(QueueName("t", DEFAULT_QUEUE), ())
_LARGEST_SECONDS = 315_576_000_000

MAX_PAGE_BYTES = 3 * 1024 * 1024
"""Of one answer of a list, so that it stays below the limit of a message."""
_FRAMING_BYTES = 8
E = TypeVar("E", bound=Enum)
V = TypeVar("V")
M = TypeVar("M", bound=Message)


# ---- small things ----
def timestamp(time: datetime | None) -> Timestamp | None:
    """Write a time; None stays None."""
    if time is None:
        return None
    message = Timestamp()
    message.FromDatetime(time)
    return message


def time_of(message: Timestamp, field: str) -> datetime:
    """Read a time; raise Invalid naming `field` for one that isn't."""
    if not 0 <= message.nanos < 10**9 or not -62_135_596_800 <= message.seconds <= 253_402_300_799:
        raise Invalid(f"{field}: is not a valid time", reason="BAD_TIME", metadata={"field": field})
    return message.ToDatetime(UTC)


def _optional_time(message: Message, field: str) -> datetime | None:
    return time_of(getattr(message, field), field) if message.HasField(field) else None


def span(message: Duration, field: str) -> timedelta:
    """Read a duration; raise Invalid naming `field` for one that isn't."""
    if abs(message.seconds) > _LARGEST_SECONDS or abs(message.nanos) >= 1_000_000_000:
        raise Invalid(f"{field}: is not a valid duration", reason="BAD_DURATION", metadata={"field": field})
    return timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def duration(value: timedelta) -> Duration:
    """Write a duration."""
    message = Duration()
    message.FromTimedelta(value)
    return message


def enum_of(kind: type[E], value: int, field: str) -> E:
    """Read an enum's value; raise Invalid naming `field` for one that isn't known."""
    for member in kind:
        if member.value == value:
            return member
    names = ", ".join(member.name for member in kind)
    raise Invalid(f"{field}: {value} is none of {names}", reason="BAD_ENUM", metadata={"field": field})


def fingerprint(request: Message) -> str:
    """Return what tells one create from another that bears the same request id."""
    return hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest()


def page_start(token: str, requested: int, field: str) -> tuple[str, int]:
    """Return after which id a list goes on, and how many to give; raise Invalid for a foreign token."""
    after = decode_token(token).get(field, "") if token else ""
    if not isinstance(after, str) or (token and not after):
        raise Invalid(
            "page_token: is of another list; leave it empty for the first page",
            reason="BAD_PAGE_TOKEN",
            metadata={"field": "page_token"},
        )
    return after, page_size(requested)


def page(
    values: Sequence[V], write: Callable[[V], M], limit: int, field: str, key: Callable[[V], str]
) -> tuple[list[M], str]:
    """Return a page of a list as messages, and the token of the next page; "" when there is none.

    The page ends early where an answer would become too large, but holds at least one.

    Args:
        values: what comes, one more than `limit` when there is more.
        write: makes a message.
        limit: the most to give.
        field: names the list in its token.
        key: what the list is sorted by.
    """
    messages: list[M] = []
    room = MAX_PAGE_BYTES
    for value in values[:limit]:
        message = write(value)
        room -= message.ByteSize() + _FRAMING_BYTES
        if room < 0 and messages:
            break
        messages.append(message)
    more = len(messages) < len(values)
    return messages, encode_token({field: key(values[len(messages) - 1])}) if more else ""


# ---- parts ----
def meta(message: pb.Metadata) -> Meta:
    """Read metadata; the revision comes from elsewhere."""
    made = time_of(message.create_time, "metadata.create_time")
    return Meta(message.uid, made, message.generation, 0, dict(message.labels))


def _meta_message(name: object, value: Meta) -> pb.Metadata:
    return pb.Metadata(
        name=str(name),
        uid=value.uid,
        etag=str(value.revision) if value.revision else "",
        generation=value.generation,
        create_time=timestamp(value.create_time),
        labels=value.labels,
    )


def resources(message: pb.Resources) -> Resources:
    """Read amounts."""
    return Resources(message.cpu_millis, message.memory_bytes, message.gpu_count)


def resources_message(value: Resources) -> pb.Resources:
    """Write amounts."""
    return pb.Resources(cpu_millis=value.cpu_millis, memory_bytes=value.memory_bytes, gpu_count=value.gpus)


def blob(message: manifest_pb2.BlobRef) -> BlobRef:
    """Read a reference."""
    return BlobRef(message.digest, message.size_bytes)


def blob_message(value: BlobRef) -> manifest_pb2.BlobRef:
    """Write a reference."""
    return manifest_pb2.BlobRef(digest=value.digest, size_bytes=value.size_bytes)


# ---- nodes ----
def facts(message: pb.NodeStatus) -> Facts:
    """Read what a runner says of its node."""
    ports = (message.first_port or DEFAULT_PORTS[0], message.last_port or DEFAULT_PORTS[1])
    return Facts(
        capacity=resources(message.capacity),
        gpus=tuple(Gpu(gpu.index, gpu.model, gpu.memory_bytes) for gpu in message.gpus),
        links=tuple(Link(link.first, link.second, link.bandwidth_gbps) for link in message.links),
        topology=tuple(message.topology),
        runner_version=message.runner_version,
        host=message.host or DEFAULT_HOST,
        ports=ports,
    )


def node(message: pb.Node) -> Node:
    """Read a stored node."""
    return Node(
        NodeName.parse(message.metadata.name, "metadata.name"),
        meta(message.metadata),
        facts(message.status),
        message.spec.cordoned,
        tuple(
            Holding(
                ReservationName.parse(holding.reservation, "reservation"),
                resources(holding.resources),
                tuple(holding.gpu_indexes),
                tuple(holding.ports),
            )
            for holding in message.status.holdings
        ),
    )


def node_message(value: Node, state: NodeState | None = None, tenant: str | None = None) -> pb.Node:
    """Write a node: with its state where one is given, and only a tenant's holdings where one is named."""
    said = value.facts
    return pb.Node(
        metadata=_meta_message(value.name, value.meta),
        spec=pb.NodeSpec(cordoned=value.cordoned),
        status=pb.NodeStatus(
            state=pb.NodeStatus.State.ValueType(state.value if state is not None else 0),
            capacity=resources_message(said.capacity),
            allocated=resources_message(value.allocated),
            gpus=[pb.Gpu(index=g.index, model=g.model, memory_bytes=g.memory_bytes) for g in said.gpus],
            links=[
                pb.GpuLink(first=link.first, second=link.second, bandwidth_gbps=link.bandwidth_gbps)
                for link in said.links
            ],
            holdings=[
                pb.Holding(
                    reservation=str(holding.reservation),
                    resources=resources_message(holding.resources),
                    gpu_indexes=holding.gpus,
                    ports=holding.ports,
                )
                for holding in value.holdings
                if tenant is None or holding.reservation.tenant == tenant
            ],
            topology=said.topology,
            runner_version=said.runner_version,
            host=said.host,
            first_port=said.ports[0],
            last_port=said.ports[1],
        ),
    )


# ---- queues ----
def queue(message: pb.Queue) -> Queue:
    """Read a stored queue."""
    spec = message.spec
    name = QueueName.parse(message.metadata.name, "metadata.name")
    return Queue(name, meta(message.metadata), resources(spec.quota), spec.priority, spec.paused)


def queue_message(value: Queue, status: pb.QueueStatus | None = None) -> pb.Queue:
    """Write a queue."""
    return pb.Queue(
        metadata=_meta_message(value.name, value.meta),
        spec=pb.QueueSpec(quota=resources_message(value.quota), priority=value.priority, paused=value.paused),
        status=status,
    )


# ---- jobs ----
def job_spec(message: pb.JobSpec, tenant: str) -> JobSpec:
    """Read what a job of a tenant is to run, with defaults for what is absent; raise Invalid."""
    near = message.placement
    return JobSpec(
        queue=QueueName.parse(message.queue or f"tenants/{tenant}/queues/{DEFAULT_QUEUE}", "spec.queue"),
        command=tuple(message.command),
        environment=dict(message.environment),
        files=tuple(JobFile(file.path, blob(file.blob), file.executable) for file in message.files),
        worker_count=message.worker_count or 1,
        resources=resources(message.resources) if message.HasField("resources") else DEFAULT_RESOURCES,
        priority=message.priority,
        nearness=Nearness(
            enum_of(Mode, near.mode or Mode.PREFERRED.value, "spec.placement.mode"),
            near.level,
            near.min_gpu_bandwidth_gbps,
        ),
        deadline=_span_or(message, "deadline", _DEFAULTS.deadline),
        retry_count=message.retry_count,
        retry_exit_codes=tuple(message.retry_exit_codes),
        grace=_span_or(message, "grace_time", _DEFAULTS.grace),
        artefacts=tuple(Artefact(artefact.id, artefact.path) for artefact in message.artefacts),
        retention=_span_or(message, "retention_time", _DEFAULTS.retention),
        cancelled=message.cancelled,
    )


def _span_or(message: Message, field: str, default: timedelta) -> timedelta:
    return span(getattr(message, field), f"spec.{field}") if message.HasField(field) else default


def job_spec_message(value: JobSpec) -> pb.JobSpec:
    """Write what a job runs, with the defaults it took."""
    return pb.JobSpec(
        queue=str(value.queue),
        command=value.command,
        environment=value.environment,
        files=[
            pb.JobFile(path=file.path, blob=blob_message(file.blob), executable=file.executable)
            for file in value.files
        ],
        worker_count=value.worker_count,
        resources=resources_message(value.resources),
        priority=value.priority,
        placement=pb.Placement(
            mode=pb.Placement.Mode.ValueType(value.nearness.mode.value),
            level=value.nearness.level,
            min_gpu_bandwidth_gbps=value.nearness.min_gpu_bandwidth_gbps,
        ),
        deadline=duration(value.deadline),
        retry_count=value.retry_count,
        retry_exit_codes=value.retry_exit_codes,
        grace_time=duration(value.grace),
        artefacts=[pb.Artefact(id=artefact.id, path=artefact.path) for artefact in value.artefacts],
        retention_time=duration(value.retention),
        cancelled=value.cancelled,
    )


def worker(message: pb.Worker) -> Worker:
    """Read how a worker is."""
    return Worker(
        message.rank,
        NodeName.parse(message.node, "worker.node"),
        enum_of(WorkerState, message.state, "worker.state"),
        message.exit_code,
        message.reason,
        message.message,
        _optional_time(message, "start_time"),
        _optional_time(message, "end_time"),
        message.peak_memory_bytes,
    )


def worker_message(value: Worker) -> pb.Worker:
    """Write how a worker is."""
    return pb.Worker(
        rank=value.rank,
        node=str(value.node),
        state=pb.Worker.State.ValueType(value.state.value),
        exit_code=value.exit_code,
        reason=value.reason,
        message=value.message,
        start_time=timestamp(value.start_time),
        end_time=timestamp(value.end_time),
        peak_memory_bytes=value.peak_memory_bytes,
    )


def kept(message: pb.KeptArtefact) -> KeptArtefact:
    """Read a kept artefact."""
    return KeptArtefact(message.id, blob(message.blob))


def job(message: pb.Job) -> Job:
    """Read a stored job."""
    name = JobName.parse(message.metadata.name, "metadata.name")
    status = message.status
    return Job(
        name,
        meta(message.metadata),
        job_spec(message.spec, name.tenant),
        JobStatus(
            state=enum_of(JobState, status.state, "status.state"),
            message=status.message,
            reason=status.reason,
            reservation=ReservationName.parse(status.reservation) if status.reservation else None,
            attempt=status.attempt_count,
            workers=tuple(worker(each) for each in status.workers),
            artefacts=tuple(kept(each) for each in status.artefacts),
            first_start_time=_optional_time(status, "first_start_time"),
            start_time=_optional_time(status, "start_time"),
            end_time=_optional_time(status, "end_time"),
            retry_time=_optional_time(status, "retry_time"),
        ),
    )


def job_message(value: Job, pending: Sequence[Reason] = ()) -> pb.Job:
    """Write a job, with why it waits where that is known."""
    status = value.status
    why = "; ".join(reason.message for reason in pending)
    return pb.Job(
        metadata=_meta_message(value.name, value.meta),
        spec=job_spec_message(value.spec),
        status=pb.JobStatus(
            state=pb.JobStatus.State.ValueType(status.state.value),
            message=status.message or why,
            reason=status.reason,
            pending=[reason_message(reason) for reason in pending],
            reservation=str(status.reservation) if status.reservation is not None else "",
            attempt_count=status.attempt,
            workers=[worker_message(each) for each in status.workers],
            artefacts=[
                pb.KeptArtefact(id=each.id, blob=blob_message(each.blob)) for each in status.artefacts
            ],
            first_start_time=timestamp(status.first_start_time),
            start_time=timestamp(status.start_time),
            end_time=timestamp(status.end_time),
            retry_time=timestamp(status.retry_time),
        ),
    )


def reason_message(value: Reason) -> pb.PendingReason:
    """Write why a job waits."""
    return pb.PendingReason(
        kind=pb.PendingReason.Kind.ValueType(value.kind.value), node_count=value.nodes, message=value.message
    )


# ---- reservations ----
def placement_message(value: WorkerPlacement) -> pb.WorkerPlacement:
    """Write where a worker runs."""
    return pb.WorkerPlacement(
        rank=value.rank,
        node=str(value.node),
        resources=resources_message(value.resources),
        gpu_indexes=value.gpus,
    )


def reservation(message: pb.Reservation) -> Reservation:
    """Read a stored reservation."""
    spec = message.spec
    return Reservation(
        ReservationName.parse(message.metadata.name, "metadata.name"),
        meta(message.metadata),
        JobName.parse(spec.job, "spec.job"),
        spec.job_uid,
        spec.attempt,
        tuple(
            WorkerPlacement(
                each.rank,
                NodeName.parse(each.node, "spec.placements.node"),
                resources(each.resources),
                tuple(each.gpu_indexes),
            )
            for each in spec.placements
        ),
        spec.master_host,
        spec.master_port,
        spec.leader_term,
    )


def reservation_message(value: Reservation) -> pb.Reservation:
    """Write a reservation."""
    return pb.Reservation(
        metadata=_meta_message(value.name, value.meta),
        spec=pb.ReservationSpec(
            job=str(value.job),
            job_uid=value.job_uid,
            attempt=value.attempt,
            placements=[placement_message(each) for each in value.placements],
            master_host=value.master_host,
            master_port=value.master_port,
            leader_term=value.leader_term,
        ),
    )

"""Between messages and objects, continued: jobs, workers and reservations."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from google.protobuf.message import Message

from isthmus.scheduler.v1 import object_pb2 as pb
from libs.common.names import JobName, NodeName, QueueName, ReservationName
from services.scheduler.convert import (
    blob,
    blob_message,
    duration,
    enum_of,
    meta,
    meta_message,
    resources,
    resources_message,
    span,
    time_of,
    timestamp,
)
from services.scheduler.domain.objects import (
    Artefact,
    Job,
    JobFile,
    JobSpec,
    JobState,
    JobStatus,
    KeptArtefact,
    Mode,
    Nearness,
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
        resources=_worker_resources(message.resources),
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


def _worker_resources(message: pb.Resources) -> Resources:
    """Read what a worker takes; of CPU and memory each takes some."""
    return Resources(
        message.cpu_millis or DEFAULT_RESOURCES.cpu_millis,
        message.memory_bytes or DEFAULT_RESOURCES.memory_bytes,
        message.gpu_count,
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
        metadata=meta_message(value.name, value.meta),
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
        metadata=meta_message(value.name, value.meta),
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


def _optional_time(message: Message, field: str) -> datetime | None:
    return time_of(getattr(message, field), field) if message.HasField(field) else None

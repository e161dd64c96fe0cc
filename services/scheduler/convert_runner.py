"""Between what runners and the scheduler say on the wire, and the domain's messages."""

from isthmus.scheduler.v1 import runner_pb2 as wire
from libs.common.errors import Invalid
from libs.common.names import JobName, NodeName, shown
from services.scheduler import convert, convert_job
from services.scheduler.domain.lifecycle import Report
from services.scheduler.domain.messages import (
    Acknowledge,
    FromRunner,
    Heartbeat,
    Hello,
    StartWorker,
    StopWorker,
    ToRunner,
    Welcome,
)
from services.scheduler.domain.objects import WorkerId
from services.scheduler.domain.validation import MAX_ARTEFACTS

_LONGEST_TEXT = 4096


def worker_id(message: wire.WorkerId) -> WorkerId:
    """Read which worker is meant; raise Invalid for a malformed name."""
    if not message.job_uid or not message.job_uid.isascii() or not message.job_uid.isalnum():
        raise Invalid(f"id.job_uid: {shown(message.job_uid)} is not a job's uid", reason="BAD_UID")
    return WorkerId(JobName.parse(message.job, "id.job"), message.job_uid, message.attempt, message.rank)


def worker_id_message(value: WorkerId) -> wire.WorkerId:
    """Write which worker is meant."""
    return wire.WorkerId(job=str(value.job), job_uid=value.job_uid, attempt=value.attempt, rank=value.rank)


def report(message: wire.WorkerReport) -> Report:
    """Read how a worker is; raise Invalid for what can't be."""
    for field, text in (("reason", message.worker.reason), ("message", message.worker.message)):
        if len(text) > _LONGEST_TEXT:
            raise Invalid(f"worker.{field}: is longer than {_LONGEST_TEXT} characters")
    if len(message.artefacts) > MAX_ARTEFACTS:
        raise Invalid(f"artefacts: {len(message.artefacts)} are reported; at most {MAX_ARTEFACTS} may be")
    return Report(
        worker_id(message.id),
        convert_job.worker(message.worker),
        tuple(convert_job.kept(each) for each in message.artefacts),
        message.sequence,
    )


def from_runner(message: wire.AttachRequest) -> FromRunner:
    """Read what a runner says; raise Invalid for what can't be."""
    kind = message.WhichOneof("message")
    if kind == "hello":
        hello = message.hello
        return Hello(
            NodeName.parse(hello.node, "hello.node"),
            convert.facts(hello.status),
            tuple(report(each) for each in hello.workers),
        )
    if kind == "report":
        return report(message.report)
    if kind == "heartbeat":
        return Heartbeat()
    raise Invalid("message: is empty; send a hello, a report or a heartbeat", reason="NO_MESSAGE")


def to_runner(value: ToRunner) -> wire.AttachResponse:
    """Write what a runner is told."""
    if isinstance(value, Welcome):
        return wire.AttachResponse(welcome=wire.Welcome(liveness_time=convert.duration(value.liveness)))
    if isinstance(value, StartWorker):
        return wire.AttachResponse(
            start=wire.StartWorker(
                id=worker_id_message(value.id),
                spec=convert_job.job_spec_message(value.spec),
                placement=convert_job.placement_message(value.placement),
                master_host=value.master_host,
                master_port=value.master_port,
                local_rank=value.local_rank,
                deadline_time=convert.timestamp(value.deadline_time),
            )
        )
    if isinstance(value, StopWorker):
        return wire.AttachResponse(stop=wire.StopWorker(id=worker_id_message(value.id), reason=value.reason))
    if isinstance(value, Acknowledge):
        return wire.AttachResponse(
            acknowledge=wire.Acknowledge(id=worker_id_message(value.id), sequence=value.sequence)
        )
    return wire.AttachResponse(forget=wire.ForgetWorker(id=worker_id_message(value.id)))

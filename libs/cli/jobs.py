"""What the command shows of jobs, and how it follows them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING

from isthmus.scheduler.v1 import object_pb2, scheduler_pb2, scheduler_pb2_grpc
from libs.cli.following import resuming
from libs.cli.output import human_bytes, human_seconds, human_time
from libs.common.errors import Error, NotFound, Precondition

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from libs.cli.session import Session

_State = object_pb2.JobStatus
ENDED = (_State.STATE_SUCCEEDED, _State.STATE_FAILED, _State.STATE_CANCELLED)


STATES = tuple(name.removeprefix("STATE_") for name in _State.State.keys()[1:])
_NEVER = (
    object_pb2.PendingReason.KIND_NO_NODE_FITS,
    object_pb2.PendingReason.KIND_QUOTA_TOO_SMALL,
)
# How often, and after which pauses, a new job is looked at until the scheduler has considered it.
_LOOKS, _LOOK_S = 5, 0.2


def stub(session: Session) -> scheduler_pb2_grpc.JobServiceStub:
    """Return the service of jobs."""
    return scheduler_pb2_grpc.JobServiceStub(session.channel)


def job_name(session: Session, job_id: str) -> str:
    """Return the resource name of a job."""
    return session.name("jobs", job_id)


def last_part(name: str) -> str:
    """Return the id in a resource name, or "-" for none."""
    return name.rpartition("/")[2] or "-"


def moment(found: Timestamp) -> str:
    """Return a timestamp for people."""
    return human_time(found.ToDatetime(tzinfo=UTC))


def state_of(job: object_pb2.Job) -> str:
    """Return a job's state for people."""
    return _State.State.Name(job.status.state).removeprefix("STATE_")


def resources_text(found: object_pb2.Resources) -> str:
    """Return amounts for people: "2 cores, 512.0 MiB, 1 GPU"."""
    parts = []
    if found.cpu_millis:
        cores = found.cpu_millis / 1000
        parts.append(f"{cores:g} core{'' if cores == 1 else 's'}")
    if found.memory_bytes:
        parts.append(human_bytes(found.memory_bytes))
    if found.gpu_count:
        parts.append(f"{found.gpu_count} GPU{'' if found.gpu_count == 1 else 's'}")
    return ", ".join(parts) or "nothing"


def why(job: object_pb2.Job) -> str:
    """Return in a line why a job is where it is, or "-"."""
    status = job.status
    if status.pending:
        return "; ".join(reason_text(reason) for reason in status.pending)
    return _reason(status.reason, status.message) or "-"


def _reason(reason: str, message: str) -> str:
    """Return a reason with its message, which may say the same: "CANCELLED", not "CANCELLED: cancelled"."""
    if message.upper() == reason:
        return reason
    if message.startswith(f"{reason}: "):
        return message
    return ": ".join(part for part in (reason, message) if part)


def why_briefly(job: object_pb2.Job) -> str:
    """Return in words for programs why a job is where it is, or "-"; `why` says it for people."""
    kinds = (_kind(reason) for reason in job.status.pending)
    return ", ".join(kinds) or job.status.reason or "-"


def _kind(reason: object_pb2.PendingReason) -> str:
    return object_pb2.PendingReason.Kind.Name(reason.kind).removeprefix("KIND_")


def reason_text(reason: object_pb2.PendingReason) -> str:
    """Return why a job waits, for people."""
    kind = _kind(reason)
    nodes = f" ({reason.node_count} node{'' if reason.node_count == 1 else 's'})" if reason.node_count else ""
    return f"{kind}{nodes}: {reason.message}" if reason.message else f"{kind}{nodes}"


def worker_text(worker: object_pb2.Worker) -> str:
    """Return how a worker is, for people."""
    state = object_pb2.Worker.State.Name(worker.state).removeprefix("STATE_")
    if worker.state == object_pb2.Worker.STATE_EXITED:
        state += f" {worker.exit_code}"
    parts = [
        f"{state} on {last_part(worker.node)}",
        f"after {took(worker.start_time, worker.end_time)}"
        if worker.HasField("start_time") and worker.HasField("end_time")
        else "",
        f"{human_bytes(worker.peak_memory_bytes)} at most" if worker.peak_memory_bytes else "",
        _reason(worker.reason, worker.message),
    ]
    return ", ".join(part for part in parts if part)


def took(start: Timestamp, end: Timestamp) -> str:
    """Return the time between two moments for people."""
    if not start.ToNanoseconds() or not end.ToNanoseconds():
        return "-"
    return human_seconds(max(0, end.ToNanoseconds() - start.ToNanoseconds()) / 1e9)


def warn_if_stuck(session: Session, name: str) -> None:
    """Say why a job that was just submitted can't start as things are, if the scheduler knows within 1 s."""
    for _ in range(_LOOKS):
        try:
            found = session.call(stub(session).GetJob, scheduler_pb2.GetJobRequest(name=name)).job
        except Error:
            return  # It is submitted; a key may write jobs and not read them.
        stuck = [reason for reason in found.status.pending if reason.kind in _NEVER]
        if stuck:
            said = "; ".join(map(reason_text, stuck))
            session.output.remark(f"warning: {last_part(name)} can't start as things are: {said}")
        if stuck or found.status.state != _State.STATE_PENDING or _considered(found):
            return
        time.sleep(_LOOK_S)


def _considered(job: object_pb2.Job) -> bool:
    pending = job.status.pending
    return bool(pending) and all(each.kind != each.KIND_NOT_CONSIDERED for each in pending)


def show_job(session: Session, job: object_pb2.Job, more: dict[str, object] | None = None) -> None:
    """Print a job."""
    session.output.message(job, list(_rows(job)), more=more)


def _rows(job: object_pb2.Job) -> Iterable[tuple[str, object]]:
    spec, status = job.spec, job.status
    yield "job", job.metadata.name or "none made: --dry-run only checks"
    yield "state", state_of(job) if status.state else "-"
    yield "why", why(job)
    yield "queue", last_part(spec.queue) if spec.queue else "default"
    yield "command", shlex.join(spec.command)
    count = max(spec.worker_count, 1)
    yield "workers", f"{count} × ({resources_text(spec.resources)})"
    if job.metadata.labels:
        yield "labels", ", ".join(f"{name}={value}" for name, value in sorted(job.metadata.labels.items()))
    if status.attempt_count:
        yield "attempts", f"{status.attempt_count} of at most {spec.retry_count + 1}"
    for worker in status.workers:
        yield f"  rank {worker.rank}", worker_text(worker)
    for kept in status.artefacts:
        yield f"  {kept.id}", f"{kept.blob.digest} ({human_bytes(kept.blob.size_bytes)})"
    if job.metadata.HasField("create_time"):
        yield "made", moment(job.metadata.create_time)
    if status.HasField("start_time"):
        yield "started", moment(status.start_time)
    if status.HasField("retry_time") and status.state == _State.STATE_PENDING:
        yield "again", moment(status.retry_time)
    if status.HasField("end_time"):
        yield "ended", f"{moment(status.end_time)}, after {took(status.start_time, status.end_time)}"
    if job.metadata.etag:
        yield "etag", job.metadata.etag


def _progress(job: object_pb2.Job) -> str:
    running = sum(worker.state == object_pb2.Worker.STATE_RUNNING for worker in job.status.workers)
    parts = [last_part(job.metadata.name), state_of(job)]
    if job.status.state in (_State.STATE_STARTING, _State.STATE_RUNNING) and job.status.workers:
        parts.append(f"{running}/{len(job.status.workers)} workers run")
    reason = why(job)
    return "  ".join(parts) + (f"  — {reason}" if reason != "-" else "")


def follow_job(session: Session, name: str) -> None:
    """Show a job's progress until it has ended, then the job.

    Raises:
        Precondition: when it didn't succeed, with reason JOB_NOT_SUCCEEDED.
    """
    try:
        last = _until_ended(session, name)
    except KeyboardInterrupt:
        job_id = last_part(name)
        session.output.note(f"the job goes on: `isthmus job watch {job_id}`, `isthmus job cancel {job_id}`")
        raise
    show_job(session, last)
    if last.status.state != _State.STATE_SUCCEEDED:
        raise Precondition(
            f"{name}: {_reason(state_of(last), why(last))}; see `isthmus job logs {last_part(name)}`",
            reason="JOB_NOT_SUCCEEDED",
        )


def _until_ended(session: Session, name: str) -> object_pb2.Job:
    """Note each change of a job, and return it once it has ended."""
    request = scheduler_pb2.WatchJobRequest(name=name)
    last, said = object_pb2.Job(), ""
    stream = resuming(
        session, lambda: session.stream(stub(session).WatchJob, request, timeout_s=None), endless=True
    )
    for answer in stream:
        last = answer.job
        line = _progress(last)
        if line != said:
            session.output.note(line)
            said = line
        if last.status.state in ENDED:
            break
    return last


def await_start(session: Session, name: str) -> None:
    """Note why a job waits until it starts or ends; return at once where it doesn't wait or can't be read."""
    try:
        found = session.call(stub(session).GetJob, scheduler_pb2.GetJobRequest(name=name)).job
    except Error:
        return  # What follows says what is wrong.
    if not _waits(found):
        return
    request = scheduler_pb2.WatchJobRequest(name=name)
    said = ""
    for answer in resuming(
        session, lambda: session.stream(stub(session).WatchJob, request, timeout_s=None), endless=True
    ):
        if not _waits(answer.job):
            return
        line = f"{last_part(name)} waits to be started — {why(answer.job)}"
        if line != said:
            session.output.note(line)
            said = line


def _waits(job: object_pb2.Job) -> bool:
    return job.status.state == _State.STATE_PENDING and not job.status.attempt_count


def kept_artefact(job: object_pb2.Job, artefact_id: str) -> object_pb2.KeptArtefact:
    """Return an artefact that a job kept.

    Raises:
        NotFound: when it kept none of that id, saying what there is.
    """
    for kept in job.status.artefacts:
        if kept.id == artefact_id:
            return kept
    named = [artefact.id for artefact in job.spec.artefacts]
    if artefact_id in named:
        said = f"it is {state_of(job)}; artefacts are kept when it has succeeded"
    else:
        said = f"it names {', '.join(named)}" if named else "it names none (--artefact ID=PATH)"
    raise NotFound(
        f"{job.metadata.name} has no artefact {artefact_id!r}: {said}", reason="ARTEFACT_NOT_FOUND"
    )


@contextmanager
def after(done: list[str]) -> Iterator[None]:
    """Let an error say for which jobs the command has been carried out before."""
    try:
        yield
    except Error as error:
        if done:
            error.message += f"; done before: {', '.join(done)}"
        raise

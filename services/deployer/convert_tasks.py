"""Between messages and domain values of tasks, versions and pre-flights; goes on where `convert` ends."""

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from isthmus.deployer.v1 import preflight_pb2, task_pb2
from libs.common.errors import Internal, Invalid
from libs.common.names import TaskName, check_id
from services.deployer import convert
from services.deployer.domain.catalogue import NewTask, Publication
from services.deployer.domain.model import Preflight, PreflightState, Task, Version

_COUNTS = (
    "event_count",
    "run_count",
    "failure_count",
    "frame_count",
    "frame_bytes",
    "refused_frame_count",
    "asked_count",
)
_LONGEST_REASON = 64
_LONGEST_MESSAGE = 1000


def new_task(request: task_pb2.CreateTaskRequest) -> NewTask:
    """Read a request; raise Invalid for a malformed parent or id."""
    tenant = convert.tenant_of(request.parent)
    name = TaskName(tenant, check_id(request.task_id, "task_id"))
    return NewTask(name, request.description, request.request_id, convert.fingerprint(request))


def publication(request: task_pb2.PublishVersionRequest) -> Publication:
    """Read a request; raise Invalid for a malformed parent."""
    return Publication(
        task=TaskName.parse(request.parent, "parent"),
        signed=convert.signed_bytes(request.manifest),
        events=convert.blob_ref(request.events) if request.HasField("events") else None,
        validate_only=request.validate_only,
    )


def task(value: Task) -> task_pb2.Task:
    """Write a task."""
    return task_pb2.Task(
        name=str(value.name),
        description=value.description,
        create_time=convert.timestamp(value.create_time),
        etag=str(value.revision),
    )


def version(value: Version) -> task_pb2.Version:
    """Write a version."""
    return task_pb2.Version(
        name=str(value.name),
        manifest=convert.signed(value.manifest),
        manifest_digest=value.manifest_digest,
        create_time=convert.timestamp(value.create_time),
        publisher=value.publisher,
        total_bytes=value.total_bytes,
        preflight=None if value.preflight is None else preflight(value.preflight),
    )


def preflight(value: Preflight) -> preflight_pb2.Preflight:
    """Write a pre-flight."""
    return preflight_pb2.Preflight(
        state=preflight_pb2.Preflight.State.ValueType(value.state.value),
        reason=value.reason,
        message=value.message,
        events=None if value.events is None else convert.blob(value.events),
        p50_run_time=None if value.p50_run_time is None else convert.duration(value.p50_run_time),
        p99_run_time=None if value.p99_run_time is None else convert.duration(value.p99_run_time),
        end_time=convert.timestamp(value.end_time),
        **{name: getattr(value, name) for name in _COUNTS},
    )


def preflight_value(message: preflight_pb2.Preflight) -> Preflight:
    """Read what a simulator says; raise Internal when it is no verdict."""
    known = {state.value: state for state in PreflightState}
    if message.state not in known:
        raise _no_verdict(f"state {message.state}")
    try:
        return Preflight(
            state=known[message.state],
            reason=message.reason[:_LONGEST_REASON],
            message=message.message[:_LONGEST_MESSAGE],
            events=convert.blob_ref(message.events) if message.HasField("events") else None,
            p50_run_time=_span(message.p50_run_time) if message.HasField("p50_run_time") else None,
            p99_run_time=_span(message.p99_run_time) if message.HasField("p99_run_time") else None,
            end_time=convert.time_of(message.end_time) if message.HasField("end_time") else None,
            **{name: convert.number(getattr(message, name)) for name in _COUNTS},
        )
    except (Invalid, ValueError, OverflowError) as error:
        raise _no_verdict(str(error)) from error


def _span(message: Duration) -> timedelta:
    return convert.span(message, "run_time")


def _no_verdict(what: str) -> Internal:
    return Internal(f"the simulator gave no verdict: {what}", reason="BAD_VERDICT")

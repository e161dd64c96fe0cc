"""Between messages and the simulator's values."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.deployer.v1 import manifest_pb2, preflight_pb2
from isthmus.device_agent.v1 import simulator_pb2
from libs.common.blobs import BlobRef
from libs.common.errors import Invalid
from libs.common.names import TaskName
from libs.task.manifest import CheckedManifest, check_manifest
from services.device_agent.simulator.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to simulate."""

    task: TaskName
    payload: bytes
    """The manifest's bytes."""
    manifest: CheckedManifest
    events: BlobRef | None


def wanted(request: simulator_pb2.SimulateRequest) -> Wanted:
    """Read a request; raise Invalid naming the field at fault."""
    task = TaskName.parse(request.parent, "parent")
    try:
        message = manifest_pb2.TaskManifest.FromString(request.manifest)
    except DecodeError:
        raise Invalid(
            "manifest: isn't a TaskManifest", reason="BAD_MANIFEST", metadata={"field": "manifest"}
        ) from None
    events = BlobRef.from_proto(request.events) if request.HasField("events") else None
    return Wanted(task, request.manifest, check_manifest(message), events)


def preflight(verdict: Verdict, events: BlobRef | None, now: datetime) -> preflight_pb2.Preflight:
    """Write a verdict."""
    states = preflight_pb2.Preflight.State
    message = preflight_pb2.Preflight(
        state=states.STATE_PASSED if verdict.passed else states.STATE_FAILED,
        reason=verdict.reason,
        message=verdict.message,
        events=events.to_proto() if events is not None else None,
        event_count=verdict.event_count,
        run_count=verdict.run_count,
        failure_count=verdict.failure_count,
        frame_count=verdict.frame_count,
        frame_bytes=verdict.frame_bytes,
        refused_frame_count=verdict.refused_frame_count,
        asked_count=verdict.asked_count,
        end_time=_timestamp(now),
    )
    if verdict.run_count:
        message.p50_run_time.CopyFrom(_duration(verdict.p50_s))
        message.p99_run_time.CopyFrom(_duration(verdict.p99_s))
    return message


def _duration(seconds: float) -> Duration:
    message = Duration()
    message.FromTimedelta(timedelta(seconds=seconds))
    return message


def _timestamp(time: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(time)
    return message

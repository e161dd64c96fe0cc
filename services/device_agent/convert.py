"""Between the socket's messages and what the agent knows."""

from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.device_agent.v1 import device_agent_pb2 as pb
from libs.common.errors import Invalid
from libs.task import jsontext
from libs.task.event import Event
from services.device_agent.domain.rollout import State, Version
from services.device_agent.domain.times import bounded_time
from services.device_agent.ingest import MAX_BATCH, check_app_event
from services.device_agent.status import Status
from services.device_agent.store.runs import Result

_STATES = {State.PREVIOUS: State.STAGED}
_COUNTERS = tuple(field.name for field in pb.Counters.DESCRIPTOR.fields)


def from_events(request: pb.SendEventsRequest, now_s: float) -> list[Event]:
    """Return a request's events, checked.

    Raises:
        Invalid: naming the event by its index and the field.
    """
    if len(request.events) > MAX_BATCH:
        raise Invalid(f"events: {len(request.events)} at once, more than {MAX_BATCH}; send them in parts")
    return [_event(event, f"events[{i}]", now_s) for i, event in enumerate(request.events)]


def _event(event: pb.Event, where: str, now_s: float) -> Event:
    fields: object = {}
    if event.fields_json:
        fields = jsontext.load(event.fields_json, what=f"{where}.fields_json")
        if not isinstance(fields, dict):
            raise Invalid(f"{where}.fields_json: must be an object, not {jsontext.show(fields)}")
    time_s = now_s
    if event.HasField("event_time"):
        time_s = event.event_time.seconds + event.event_time.nanos / 1e9
    return check_app_event(
        Event(event.event_id, event.type, event.page, event.user, time_s, fields),  # type: ignore[arg-type]
        where,
    )


def to_result(result: Result) -> pb.WatchResultsResponse:
    """Return a result as apps get it."""
    return pb.WatchResultsResponse(
        sequence=result.sequence,
        task=result.task,
        version=result.version,
        user=result.user,
        result_json=result.result,
        failure_reason=result.failure_reason,
        failure_message=result.failure_message,
        event_time=to_timestamp(result.event_time_s),
        latency_ms=result.latency_ms,
    )


def to_status(status: Status) -> pb.GetStatusResponse:
    """Return the status as apps get it."""
    return pb.GetStatusResponse(
        device=status.device,
        agent_version=status.agent_version,
        tasks=[_task(version) for version in status.versions],
        counters=pb.Counters(**{name: status.counters.get(name, 0) for name in _COUNTERS}),
        tunnel_connected=status.tunnel_connected,
        push_connected=status.push_connected,
        root_version=status.root_version,
        problems=status.problems,
        pending_event_count=status.pending_events,
        pending_run_count=status.pending_runs,
        event_room=min(status.event_room, MAX_BATCH),
    )


def _task(version: Version) -> pb.TaskStatus:
    # A version kept to go back to is in place and doesn't run: to apps that is STAGED.
    return pb.TaskStatus(
        task=version.task,
        version=version.version,
        state=_STATES.get(version.state, version.state).value,
        success_count=version.success_count,
        failure_count=version.failure_count,
        failure_reason=version.failure_reason,
        failure_message=version.failure_message,
    )


def to_timestamp(time_s: float) -> Timestamp:
    """Return a moment (Unix seconds) in microseconds, or the nearest that a Timestamp can say."""
    moment = Timestamp()
    moment.FromNanoseconds(round(bounded_time(time_s) * 1e6) * 1000)
    return moment

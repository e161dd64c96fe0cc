import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.device_agent.v1 import device_agent_pb2 as pb
from libs.common.errors import Invalid
from services.device_agent.convert import from_events, to_result, to_status
from services.device_agent.domain.rollout import State, Version
from services.device_agent.status import Status
from services.device_agent.store.runs import Result


def test_an_event_keeps_what_it_says():
    message = pb.Event(event_id="e1", type="a", page="p", user="u", fields_json='{"n": 1, "l": ["x"]}')
    message.event_time.FromJsonString("2026-01-01T00:00:00.5Z")
    (event,) = from_events(pb.SendEventsRequest(events=[message]), 7.0)
    assert (event.event_id, event.type, event.page, event.user) == ("e1", "a", "p", "u")
    assert event.fields == {"n": 1, "l": ["x"]}
    assert event.time_s == message.event_time.ToNanoseconds() / 1e9


def test_an_event_without_a_time_happens_now_and_needs_no_fields():
    (event,) = from_events(pb.SendEventsRequest(events=[pb.Event(type="a")]), 7.0)
    assert (event.time_s, event.fields) == (7.0, {})


messages = st.builds(
    pb.Event,
    event_id=st.text(max_size=70),
    type=st.sampled_from(["a", "page_enter", "", "*", "a b", "x" * 65]) | st.text(max_size=5),
    page=st.text(max_size=5),
    user=st.text(max_size=140),
    fields_json=st.sampled_from(["", "{}", "[", "null", '{"a": NaN}', '{"a": {"b": 1}}'])
    | st.text(max_size=9),
)


@given(st.lists(messages, max_size=3))
def test_whatever_apps_send_is_taken_or_refused_with_the_place(events):
    try:
        taken = from_events(pb.SendEventsRequest(events=events), 7.0)
    except Invalid as error:
        assert error.message.startswith("events[")  # noqa: PT017 - either outcome is fine
    else:
        assert [event.type for event in taken] == [event.type for event in events]


@given(st.floats(0, 4e9), st.floats(0, 1e6), st.text(max_size=9))
def test_a_result_keeps_what_it_says(event_time_s, latency_ms, user):
    message = to_result(Result(3, "t", "1", user, "{}", "", "", event_time_s, latency_ms))
    assert (message.sequence, message.task, message.version, message.user) == (3, "t", "1", user)
    assert message.event_time.ToNanoseconds() / 1e9 == pytest.approx(event_time_s, abs=1e-5)
    assert message.latency_ms == latency_ms


def test_a_status_shows_the_kept_version_as_staged_and_unknown_counters_not_at_all():
    versions = [Version("t", "1", State.PREVIOUS, "r", "d"), Version("t", "2", State.ACTIVE, "r", "d")]
    status = Status("dev", "0.1.0", versions, {"event_count": 3, "live_frames": 9}, True, False, 2, ["x: y"])
    message = to_status(status)
    assert [(task.version, task.state) for task in message.tasks] == [("1", "STAGED"), ("2", "ACTIVE")]
    assert message.counters.event_count == 3
    assert list(message.problems) == ["x: y"]
    assert message.root_version == 2


def test_a_status_says_what_waits_and_why_a_version_was_given_up():
    failed = Version("t", "1", State.FAILED, "r", "d", failure_reason="EXCEPTION", failure_message="line 3")
    status = Status(
        "dev", "0.1.0", [failed], {}, True, True, 1, [], pending_events=2, pending_runs=5, event_room=0
    )
    message = to_status(status)
    assert (message.pending_event_count, message.pending_run_count) == (2, 5)
    assert message.HasField("event_room")
    assert message.event_room == 0
    assert (message.tasks[0].failure_reason, message.tasks[0].failure_message) == ("EXCEPTION", "line 3")

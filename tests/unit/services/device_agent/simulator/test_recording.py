import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.task.event import MAX_RECORDING_EVENTS, event_from_json
from libs.task.testing import attempt, make_event
from services.device_agent.simulator.recording import read_recording


def line(time_s: float = 1.0, **more: object) -> bytes:
    return json.dumps({"type": "click", "time_s": time_s, **more}).encode()


def written(folder: Path, content: bytes) -> Path:
    path = folder / "events.jsonl"
    path.write_bytes(content)
    return path


def test_each_event_has_its_line_and_equal_ones_are_told_apart_by_their_number(tmp_path: Path) -> None:
    lines = [line(1, user="a"), b"", line(2, user="b"), line(1, user="a"), line(3)]
    found = read_recording(written(tmp_path, b"\n".join(lines)))
    assert found.lines == tuple((event_from_json(lines[at]), at + 1) for at in (0, 2, 3, 4))
    first, last = event_from_json(lines[0]), event_from_json(lines[4])
    assert [found.line_of(first, number) for number in (1, 3, 2, 99)] == [1, 4, 1, 1]
    assert [found.line_of(last, number) for number in (4, 0)] == [5, 5]
    assert found.line_of(make_event("other"), 1) is None


def test_an_event_that_repeats_an_id_is_stored_once_and_has_no_line(tmp_path: Path) -> None:
    lines = [line(1, event_id="a"), line(2, event_id="a"), line(3, event_id="b")]
    found = read_recording(written(tmp_path, b"\n".join(lines)))
    assert [number for _, number in found.lines] == [1, 3]


@pytest.mark.parametrize(
    ("content", "reason", "says"),
    [
        (b"", "NO_EVENTS", "holds no event"),
        (b"\n\n  \n", "NO_EVENTS", "holds no event"),
        (line() + b"\nnot json\n", "BAD_EVENTS", "events: line 2"),
        (line() + b'\n{"type": "__x", "time_s": "soon"}', "BAD_EVENTS", "events: line 2.*time_s"),
        (b"x\n" * 9, "BAD_EVENTS", "line 1.*line 2.*line 3"),
        (line() + b"\n" + b"x" * 300_000, "BAD_EVENTS", "line 2: longer than"),
        ((line() + b"\n") * (MAX_RECORDING_EVENTS + 1), "TOO_MANY_EVENTS", "more than 10,000 events"),
    ],
)
def test_bad_recordings_say_where_and_why(tmp_path: Path, content: bytes, reason: str, says: str) -> None:
    with pytest.raises(Invalid, match=says) as raised:
        read_recording(written(tmp_path, content))
    assert (raised.value.reason, raised.value.metadata) == (reason, {"field": "events"})
    assert "line 4" not in raised.value.message


def test_as_many_events_as_may_are_read(tmp_path: Path) -> None:
    content = b"\n".join(line(float(at)) for at in range(MAX_RECORDING_EVENTS))
    assert len(read_recording(written(tmp_path, content)).lines) == MAX_RECORDING_EVENTS


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=40) | st.just(line()), max_size=8).map(b"\n".join))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    found, error = attempt(read_recording, written(tmp_path, content))
    assert found.lines if error is None else error.message.startswith("events: ")

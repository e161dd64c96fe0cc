"""A row that can't be used is dropped alone, counted, and never in the way of the others."""

import logging

import pytest

from libs.task.event import Event
from services.device_agent.domain.rollout import Stage
from services.device_agent.store import events, frames, runs, values, versions
from services.device_agent.store.runs import NewRun
from services.device_agent.store.versions import Moment

FAULT = ValueError("Alice")


def event(number, time_s=None):
    return Event(f"e{number}", "go", "", "u", float(number if time_s is None else time_s), {"n": number})


def dropped(connection):
    return values.read_counters(connection).get("bad_row_count", 0)


@pytest.mark.parametrize("fields", ["{", "[1]", "7", "\x00"])
def test_an_event_that_cannot_be_read(connection, fields, caplog):
    events.add_events(connection, [event(i) for i in range(6)], 0.0)
    connection.execute("UPDATE events SET fields = ? WHERE seq IN (1, 2, 5)", (fields,))
    with caplog.at_level(logging.ERROR):
        assert [stored.seq for stored in events.read_events(connection, 0, 2)] == [3, 4]
    assert "event 1 can't be used" in caplog.text
    assert fields not in caplog.messages[0]
    assert [stored.seq for stored in events.read_events(connection, 4, 10)] == [6]
    assert dropped(connection) == 3
    (size,) = connection.execute("SELECT SUM(size) FROM events").fetchone()
    assert events.stored_size(connection) == (3, size)


def test_an_event_that_cannot_be_read_is_missing_from_windows_and_nothing_else_is(connection):
    events.add_events(connection, [event(i) for i in range(4)], 0.0)
    connection.execute("UPDATE events SET fields = '{' WHERE seq = 2")
    found = events.window(
        connection,
        user="u",
        start_s=-1.0,
        end_s=10.0,
        last_seq=4,
        selects=lambda e: True,
        count=10,
        max_scanned=100,
    )
    assert [e.event_id for e in found] == ["e3", "e2", "e0"]
    assert dropped(connection) == 1


def test_a_report_that_cannot_be_read(connection):
    for number, stage in enumerate((Stage.STAGED, Stage.ACTIVATED, Stage.CONFIRMED)):
        versions.add_report(connection, "t", "1", "r", stage, Moment(1.0, f"id-{number}"))
    connection.execute("UPDATE reports SET stage = 'NEVER' WHERE report_id = 'id-0'")
    connection.execute("UPDATE reports SET event_time_s = 'noon' WHERE report_id = 'id-1'")
    assert [report.report_id for report in versions.read_reports(connection, 2)] == ["id-2"]
    assert dropped(connection) == 2
    assert connection.execute("SELECT COUNT(*) FROM reports").fetchone() == (1,)


def test_a_frame_that_cannot_be_sent_leaves_a_tombstone_in_its_place(connection):
    frames.ensure_streams(connection, {"t/out": b"a" * 16})
    for payload in (b"x", b"yy", b"zzz"):
        frames.add_frame(connection, "t/out", "t@1/out", 1.0, payload)
    frames.spoil_frame(connection, "t/out", 2, FAULT)
    frames.spoil_frame(connection, "t/out", 2, FAULT)
    kept = frames.read_frames(connection, "t/out", 0, 10, 100)
    assert [(f.sequence, f.payload, f.tombstone) for f in kept] == [
        (1, b"x", ""),
        (2, b"", "UNREADABLE"),
        (3, b"zzz", ""),
    ]
    counters = values.read_counters(connection)
    assert (counters["live_frames"], counters["live_bytes"], counters["dropped_frame_count"]) == (2, 4, 1)


def test_a_run_that_cannot_be_made(connection):
    run = NewRun("t", "1", 1, 1.0, (event(1),))
    (added, other), _ = runs.add_runs(connection, 1, [run, run], {})
    runs.drop_run(connection, added.run_id, FAULT)
    assert [left.run_id for left in runs.list_runs(connection)] == [other.run_id]
    counters = values.read_counters(connection)
    assert (counters["bad_row_count"], counters["dropped_run_count"]) == (1, 1)
    assert "withdrawn_run_count" not in counters


@pytest.mark.parametrize(
    ("bad", "storable"),
    [
        (event(1), True),
        (event(1, float("nan")), False),
        (Event("e", "go", "", "\ud800", 1.0, {}), False),
        (Event("e", "go", "", "u", 1.0, {"x": object()}), False),
    ],
)
def test_a_run_is_known_to_fit_before_it_is_stored(connection, bad, storable):
    run = NewRun("t", "1", 1, 1.0, (bad,))
    assert runs.is_storable(run) is storable
    if not storable:
        runs.refuse_runs(connection, [run], FAULT)
        assert dropped(connection) == 1


def test_streams_that_nothing_uses_go_once_they_are_empty_and_begin_anew_later(connection):
    frames.ensure_streams(connection, {name: b"a" * 16 for name in ("t/used", "t/empty", "t/full")})
    frames.add_frame(connection, "t/full", "t@1/full", 1.0, b"x")
    assert frames.drop_streams(connection, {"t/used"}) == 1
    assert [(s.stream, s.waiting) for s in frames.list_streams(connection)] == [
        ("t/full", True),
        ("t/used", False),
    ]
    frames.ack_frames(connection, "t/full", b"a" * 16, 1)
    assert frames.drop_streams(connection, {"t/used"}) == 1
    assert not frames.ack_frames(connection, "t/full", b"a" * 16, 1)
    assert not frames.renumber_stream(connection, "t/full", b"a" * 16, b"c" * 16)
    frames.ensure_streams(connection, {"t/full": b"b" * 16, "t/used": b"b" * 16})
    assert [s.epoch[:1] for s in frames.list_streams(connection)] == [b"b", b"a"]
    assert frames.add_frame(connection, "t/full", "t@1/full", 1.0, b"x") == 1

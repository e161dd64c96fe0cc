"""The store's guarantees, over the one implementation there is (its package says why)."""

import asyncio
import sqlite3
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Exhausted, Precondition, Unavailable
from libs.common.testing import FakeClock
from libs.task.event import Event
from libs.task.manifest import CheckedHealth
from services.device_agent.domain.retention import Cut
from services.device_agent.domain.rollout import Entry, Stage, State, Verdict
from services.device_agent.domain.uploads import Outgoing
from services.device_agent.store import events, frames, runs, schema, values, versions
from services.device_agent.store.database import Database
from services.device_agent.store.runs import Bounds, Finished, NewRun
from services.device_agent.store.versions import Moment

HEALTH = CheckedHealth(confirm_run_count=1, max_failure_count=2)
BOUNDS = Bounds(max_frames=1000, max_frame_bytes=10**6, max_results=1000)


@pytest.fixture
async def database(tmp_path):
    database = Database(tmp_path / "agent.db")
    await database.open()
    yield database
    await database.close()


@pytest.fixture
def connection():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    yield connection
    connection.close()


def event(number, user="u", time_s=None, **fields):
    return Event(f"e{number}", "go", "", user, float(number if time_s is None else time_s), fields)


def moments():
    number = 0
    while True:
        number += 1
        yield Moment(float(number), f"report-{number}")


# ---- transactions ----


async def test_one_failing_function_undoes_its_own_writes_only(database):
    def fails(connection):
        values.set_int(connection, "bad", 1)
        raise ValueError("no")

    outcomes = await asyncio.gather(
        database.run(lambda c: values.set_int(c, "a", 1)),
        database.run(fails),
        database.run(lambda c: values.set_int(c, "b", 2)),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], ValueError)
    assert [await database.run(lambda c, k=k: values.get_int(c, k)) for k in ("a", "bad", "b")] == [1, 0, 2]


async def test_functions_run_in_the_order_of_their_calls(database):
    order = []
    await asyncio.gather(
        *(database.run(lambda c, i=i: order.append(i), durable=i % 3 == 0) for i in range(200))
    )
    assert order == list(range(200))


async def test_a_cancelled_caller_does_not_undo_its_work_nor_disturb_others(database):
    task = asyncio.create_task(database.run(lambda c: values.set_int(c, "a", 1)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await database.run(lambda c: values.get_int(c, "a")) == 1


async def test_a_full_disk_is_told_as_such_and_nothing_is_written(database):
    await database.run(lambda c: c.execute("PRAGMA max_page_count=60"))
    big = [event(i, text="x" * 1000) for i in range(1000)]
    with pytest.raises(Exhausted) as full:
        await database.run(lambda c: events.add_events(c, big, 0.0))
    assert full.value.reason == "DISK_FULL"
    assert await database.run(lambda c: events.read_events(c, 0, 10)) == []
    await database.run(lambda c: c.execute("PRAGMA max_page_count=100000"))
    assert await database.run(lambda c: events.add_events(c, big, 0.0)) == (1000, 0)


async def test_each_caller_of_a_group_hears_of_the_full_disk_and_it_is_told_until_something_is_written(
    tmp_path,
):
    told = []
    database = Database(tmp_path / "agent.db", tell=told.append)
    await database.open()
    await database.run(lambda c: c.execute("PRAGMA max_page_count=60"))
    big = [event(i, text="x" * 1000) for i in range(1000)]
    refused = await asyncio.gather(
        database.run(lambda c: values.set_int(c, "a", 1)),
        database.run(lambda c: events.add_events(c, big, 0.0)),
        return_exceptions=True,
    )
    assert refused[1].reason == told[0].reason == "DISK_FULL"
    assert refused[1].retry_after_s > 0
    assert await database.run(lambda c: events.read_events(c, 0, 10)) == []
    assert told[-1] is not None  # reading proves nothing
    await database.run(lambda c: c.execute("PRAGMA max_page_count=100000"))
    await database.probe()
    assert told[-1] is None
    await database.close()


async def test_what_has_to_be_stored_waits_for_room(tmp_path):
    clock = FakeClock()
    database = Database(tmp_path / "agent.db", clock)
    await database.open()
    await database.run(lambda c: c.execute("PRAGMA max_page_count=60"))
    big = [event(i, text="x" * 1000) for i in range(1000)]
    stored = asyncio.create_task(database.insist(lambda c: events.add_events(c, big, 0.0)))
    for _ in range(3):
        await clock.wait_for_sleepers()
        clock.advance(1.0)
    await clock.wait_for_sleepers()
    await database.run(lambda c: c.execute("PRAGMA max_page_count=100000"))
    assert not stored.done()
    clock.advance(1.0)
    assert await stored == (1000, 0)
    with pytest.raises(ZeroDivisionError):
        await database.insist(lambda c: 1 // 0)
    await database.close()


async def test_a_store_that_another_program_holds_refuses_and_goes_on(database, tmp_path):
    await database.run(lambda c: c.execute("PRAGMA busy_timeout=0"))
    other = sqlite3.connect(tmp_path / "agent.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="other program") as held:
        await database.run(lambda c: values.set_int(c, "a", 1))
    assert held.value.reason == "STORE_IO"
    assert await database.run(lambda c: values.get_int(c, "a")) == 0
    other.execute("ROLLBACK")
    other.close()
    await database.run(lambda c: values.set_int(c, "a", 1))


def test_the_user_of_a_waiting_run_is_known_after_a_restart(connection):
    runs_ = [run_of(event(1, user="ann")), run_of(event(2, user="bob"))]
    added, _ = runs.add_runs(connection, 2, runs_, {})
    assert runs.list_runs(connection) == added
    connection.execute("UPDATE runs SET events = '[7]'")
    assert [run.user for run in runs.list_runs(connection)] == ["", ""]
    connection.execute("UPDATE runs SET events = '{'")
    assert [run.user for run in runs.list_runs(connection)] == ["", ""]


def run_of(completing):
    return NewRun("t", "1", 1, 0.0, (completing,))


async def test_a_closed_store_refuses(tmp_path):
    database = Database(tmp_path / "agent.db")
    await database.open()
    await database.run(lambda c: values.set_int(c, "a", 1))
    await database.close()
    await database.close()
    with pytest.raises(Unavailable):
        await database.run(lambda c: None)
    await database.open()
    assert await database.run(lambda c: values.get_int(c, "a")) == 1
    await database.close()


async def test_a_newer_schema_is_refused_with_a_remedy(tmp_path):
    connection = sqlite3.connect(tmp_path / "agent.db")
    connection.execute("PRAGMA user_version=999")
    connection.close()
    with pytest.raises(Precondition, match="newer agent"):
        await Database(tmp_path / "agent.db").open()


async def test_a_damaged_file_is_told_with_a_remedy(tmp_path):
    (tmp_path / "agent.db").write_bytes(b"not a database at all, " * 100)
    with pytest.raises(Precondition, match="move it out"):
        await Database(tmp_path / "agent.db").open()


def test_what_was_answered_survives_a_kill(tmp_path):
    script = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from libs.task.event import Event
        from services.device_agent.store import events
        from services.device_agent.store.database import Database
        async def main():
            database = Database(Path(sys.argv[1]))
            await database.open()
            number = 0
            while True:
                batch = [Event(f"e{number + i}", "go", "", "u", 1.0) for i in range(3)]
                await database.run(lambda c: events.add_events(c, batch, 0.0))
                number += 3
                print(number, flush=True)
        asyncio.run(main())
        """
    )
    path = tmp_path / "agent.db"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        acknowledged = 0
        for line in process.stdout:
            acknowledged = int(line)
            if acknowledged >= 300:
                process.kill()
                break
        acknowledged = max([acknowledged, *(int(line) for line in process.stdout if line.endswith("\n"))])
    connection = sqlite3.connect(path)
    (count,) = connection.execute("SELECT COUNT(*) FROM events").fetchone()
    connection.close()
    assert count >= acknowledged
    assert count % 3 == 0


# ---- events ----


def test_places_are_never_used_twice_even_when_all_events_went(connection):
    events.add_events(connection, [event(i) for i in range(5)], 0.0)
    events.set_processed_seq(connection, 5)
    assert events.cut_events(connection, Cut(float("inf"), 0, 0), 0.0)[0] == 5
    events.add_events(connection, [event(9)], 0.0)
    assert [stored.seq for stored in events.read_events(connection, 0, 10)] == [6]


def test_retention_never_takes_an_unprocessed_event_and_counts_right(connection):
    events.add_events(connection, [event(i, text="x" * i) for i in range(10)], 100.0)
    events.set_processed_seq(connection, 4)
    gone, missed = events.cut_events(connection, Cut(float("inf"), 100, 10**9), 50.0)
    assert (gone, missed) == (4, True)
    left = events.read_events(connection, 0, 100)
    assert [stored.seq for stored in left] == [5, 6, 7, 8, 9, 10]
    total = sum(row[0] for row in connection.execute("SELECT size FROM events"))
    assert events.stored_size(connection) == (6, total)


def test_a_jump_of_the_clock_takes_no_newer_event_away(connection):
    for number, received_s in enumerate((100.0, 200.0, 5.0, 210.0)):
        events.add_events(connection, [event(number)], received_s)
    events.set_processed_seq(connection, 4)
    assert events.cut_events(connection, Cut(150.0, 0, 0), 150.0) == (1, False)
    assert len(events.read_events(connection, 0, 10)) == 3


stored_events = st.lists(
    st.tuples(st.sampled_from("uv"), st.integers(0, 20), st.booleans()), min_size=1, max_size=30
)


@given(stored_events, st.integers(1, 6), st.integers(1, 20), st.data())
@settings(max_examples=60, deadline=None)
def test_a_window_is_the_newest_selected_events_of_the_user(given_events, count, size, data):
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    items = [event(i, user, time_s, good=good) for i, (user, time_s, good) in enumerate(given_events)]
    events.add_events(connection, items, 0.0)
    last = data.draw(st.integers(1, len(items)))
    end = items[last - 1].time_s
    found = events.window(
        connection,
        user="u",
        start_s=end - size,
        end_s=end,
        last_seq=last,
        selects=lambda e: e.fields["good"] is True,
        count=count,
        max_scanned=1000,
    )
    connection.close()
    expected = [
        e for e in items[:last] if e.user == "u" and e.fields["good"] and end - size < e.time_s <= end
    ]
    newest = sorted((e.time_s for e in expected), reverse=True)[:count]
    # All of a moment come along, so that the feature can order them; none beyond is needed.
    assert sorted((e.time_s for e in found), reverse=True)[: len(newest)] == newest
    assert {e.event_id for e in found} <= {e.event_id for e in expected}
    if newest:
        assert {e.event_id for e in expected if e.time_s >= newest[-1]} <= {e.event_id for e in found}


def test_the_replay_starts_before_each_users_horizon(connection):
    items = [event(1, "u", 100), event(2, "v", 5), event(3, "u", 150), event(4, "v", 6), event(5, "u", 155)]
    events.add_events(connection, items, 0.0)
    assert events.replay_start(connection, 10.0) == 0
    events.set_processed_seq(connection, 5)
    assert events.replay_start(connection, 10.0) == 1  # v's event of time 5 is needed
    assert events.replay_start(connection, 0.0) == 3


# ---- runs and frames ----


def staged_and_active(connection, version="1", moment=None):
    entry = Entry("t", version, f"digest-{version}", "r")
    versions.put_staged(connection, entry, b"manifest", moment or Moment(0.0, f"staged-{version}"))
    epochs = {"t/out": bytes([len(version)]) * 16}
    versions.activate(connection, [(entry, Moment(0.0, f"active-{version}"))], epochs)


def queue_run(connection, number=1, version="1"):
    added, _ = runs.add_runs(
        connection, number, [NewRun("t", version, number, 1.0, (event(number),))], {"t": 100}
    )
    return runs.read_run(connection, added[0].run_id)


def finish(connection, run, *, ok=True, sends=(), bounds=BOUNDS, moment=None):
    finished = Finished("{}", sends) if ok else Finished("", (), "EXCEPTION", "no")
    return runs.finish_run(
        connection,
        run,
        finished,
        health=HEALTH,
        bounds=bounds,
        now_s=2.0,
        offset_s=10.0,
        moment=moment or Moment(2.0, f"confirm-{run.run_id}"),
    )


def test_a_finished_run_has_its_effects_once(connection):
    staged_and_active(connection)
    run = queue_run(connection)
    sends = (
        Outgoing("out", b"{}"),
        Outgoing("out", b"", "FIELD_UNDECLARED"),
        Outgoing("", b"", "STREAM_UNDECLARED"),
    )
    result, verdict = finish(connection, run, sends=sends)
    assert (result.sequence, verdict) == (1, Verdict.CONFIRM)
    assert finish(connection, run, sends=sends) == (None, Verdict.NOTHING)
    kept = frames.read_frames(connection, "t/out", 0, 10, 10**6)
    assert [(f.sequence, f.payload, f.tombstone, f.event_time_s) for f in kept] == [
        (1, b"{}", "", 11.0),
        (2, b"", "FIELD_UNDECLARED", 11.0),
    ]
    counters = values.read_counters(connection)
    assert (counters["frame_count"], counters["refused_frame_count"], counters["success_count"]) == (1, 2, 1)
    assert len(runs.read_results(connection, 0, "", 10)) == 1
    assert versions.find_version(connection, "t", "1").state is State.CONFIRMED


def test_what_was_counted_during_a_run_is_stored_with_it_and_also_without_its_effects(connection):
    staged_and_active(connection)
    run = queue_run(connection)
    kept = {"health": HEALTH, "bounds": BOUNDS, "now_s": 2.0, "offset_s": 0.0, "moment": Moment(2.0, "x")}
    for _ in range(2):
        runs.finish_run(
            connection, run, Finished("{}"), counts={"request_count": 3, "answer_count": 2}, **kept
        )
    counters = values.read_counters(connection)
    assert (counters["request_count"], counters["answer_count"], counters["success_count"]) == (6, 4, 1)


def test_the_trace_of_an_event_is_kept_for_its_runs(connection):
    staged_and_active(connection)
    events.add_events(connection, [event(1)], 1.0, traceparent="00-aa-bb-01")
    events.add_events(connection, [event(2)], 1.0)
    first, second = events.read_events(connection, 0, 10)
    assert (first.traceparent, second.traceparent) == ("00-aa-bb-01", "")
    new = NewRun("t", "1", 1, 1.0, (event(1),), first.traceparent)
    added, _ = runs.add_runs(connection, 1, [new], {"t": 100})
    assert added[0].run.traceparent == "00-aa-bb-01"
    assert runs.read_run(connection, added[0].run_id).traceparent == "00-aa-bb-01"


def test_a_failed_run_leaves_its_reason_with_the_version_and_its_text_with_the_result(connection):
    staged_and_active(connection)
    for number in (1, 2):
        run = queue_run(connection, number)
        finished = Finished("", (), "EXCEPTION", "ValueError: Alice")
        result, verdict = runs.finish_run(
            connection,
            run,
            finished,
            health=HEALTH,
            bounds=BOUNDS,
            now_s=2.0,
            offset_s=0.0,
            moment=Moment(2.0, "x"),
        )
        assert "Alice" in result.failure_message
    assert verdict is Verdict.ROLL_BACK
    version = versions.find_version(connection, "t", "1")
    assert (version.failure_reason, version.failures_in_a_row) == ("EXCEPTION", 2)
    assert "Alice" not in version.failure_message


def test_a_run_of_a_version_that_was_given_up_has_no_effects(connection):
    staged_and_active(connection)
    run = queue_run(connection)
    versions.roll_back(connection, "t", "1", "EXCEPTION", "no", Moment(1.0, "x"))
    assert finish(connection, run) == (None, Verdict.NOTHING)
    assert values.read_counters(connection)["dropped_run_count"] == 1
    assert runs.read_results(connection, 0, "", 10) == []


def test_a_task_keeps_its_newest_runs_and_never_drops_one_in_flight(connection):
    staged_and_active(connection)
    new = [NewRun("t", "1", i, 1.0, (event(i),)) for i in range(1, 6)]
    added, dropped = runs.add_runs(connection, 5, new, {"t": 2})
    ids = [run.run_id for run in added]
    assert dropped == ids[:3]
    added, dropped = runs.add_runs(connection, 6, [new[0]], {"t": 2}, in_flight=[ids[3]])
    assert dropped == []
    added, dropped = runs.add_runs(connection, 7, [new[0]], {"t": 2}, in_flight=[ids[3]])
    assert dropped == [ids[4]]
    assert values.read_counters(connection)["trigger_count"] == 7
    assert events.processed_seq(connection) == 7


def test_results_beyond_the_bound_go_oldest_first(connection):
    staged_and_active(connection)
    for number in range(1, 6):
        finish(connection, queue_run(connection, number), bounds=Bounds(10, 10**6, 2))
    assert [result.sequence for result in runs.read_results(connection, 0, "", 10)] == [4, 5]
    assert runs.read_results(connection, 4, "other", 10) == []


def test_acks_delete_what_the_cloud_has_and_nothing_else(connection):
    frames.ensure_streams(connection, {"t/out": b"a" * 16, "t/b": b"b" * 16})
    for number in range(5):
        frames.add_frame(connection, "t/out", "s", 1.0, b"x" * number, "" if number != 1 else "REFUSED")
    assert frames.ack_frames(connection, "t/out", b"a" * 16, 3)
    assert frames.ack_frames(connection, "t/out", b"a" * 16, 2)  # late
    assert not frames.ack_frames(connection, "t/out", b"z" * 16, 4)
    assert not frames.ack_frames(connection, "t/out", b"a" * 16, 6)
    assert [f.sequence for f in frames.read_frames(connection, "t/out", 0, 10, 100)] == [4, 5]
    counters = values.read_counters(connection)
    assert (counters["acked_frame_count"], counters["live_frames"], counters["live_bytes"]) == (2, 2, 7)
    assert frames.list_streams(connection)[1].acked == 3


def test_a_batch_of_frames_has_its_size_and_at_least_one(connection):
    frames.ensure_streams(connection, {"t/out": b"a" * 16})
    for _ in range(4):
        frames.add_frame(connection, "t/out", "s", 1.0, b"x" * 100)
    assert [f.sequence for f in frames.read_frames(connection, "t/out", 0, 10, 250)] == [1, 2]
    assert [f.sequence for f in frames.read_frames(connection, "t/out", 2, 10, 1)] == [3]
    assert [f.sequence for f in frames.read_frames(connection, "t/out", 0, 3, 10**6)] == [1, 2, 3]


@given(st.lists(st.sampled_from(["a", "b", "drop", "ack", "restart", "renumber"]), max_size=25))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_sequences_stay_whole_and_counts_true(steps):
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    frames.ensure_streams(connection, {"a": b"a" * 16, "b": b"b" * 16})
    for number, step in enumerate(steps):
        if step in "ab":
            frames.add_frame(connection, step, "s", 1.0, b"xy")
        elif step == "drop":
            frames.drop_oldest(connection, 2, 10**6)
        elif step == "ack":
            stream = frames.list_streams(connection)[0]
            frames.ack_frames(connection, "a", stream.epoch, stream.acked + 1)
        elif step == "restart":
            frames.restart_streams(connection, 3, [bytes([number, i]) * 8 for i in range(2)])
        else:
            (stream, _) = frames.list_streams(connection)
            assert frames.renumber_stream(connection, "a", stream.epoch, bytes([number]) * 16)
            assert not frames.renumber_stream(connection, "a", stream.epoch, b"z" * 16)
        live = 0
        for stream in frames.list_streams(connection):
            waiting = frames.read_frames(connection, stream.stream, 0, 100, 10**6)
            assert [f.sequence for f in waiting] == list(
                range(stream.acked + 1, stream.acked + 1 + len(waiting))
            )
            live += sum(not f.tombstone for f in waiting)
        counters = values.read_counters(connection)
        assert (counters.get("live_frames", 0), counters.get("live_bytes", 0)) == (live, 2 * live)
    connection.close()


# ---- versions ----


def test_an_activation_is_all_or_nothing(connection):
    staged_and_active(connection)
    good = Entry("t", "2", "digest-2", "r")
    versions.put_staged(connection, good, b"m", Moment(1.0, "s2"))
    connection.execute("SAVEPOINT x")
    missing = Entry("u", "1", "d", "r")
    with pytest.raises(LookupError):
        versions.activate(connection, [(good, Moment(1.0, "a2")), (missing, Moment(1.0, "a3"))], {})
    connection.execute("ROLLBACK TO x")
    assert versions.profile(connection) == ["t@1"]


def test_a_roll_back_restores_the_previous_version_and_owes_one_report(connection):
    staged_and_active(connection)
    finish(connection, queue_run(connection))
    staged_and_active(connection, "2")
    assert versions.find_version(connection, "t", "1").state is State.PREVIOUS
    assert versions.roll_back(connection, "t", "2", "TIMEOUT", "slow", Moment(5.0, "f")) == "1"
    assert versions.roll_back(connection, "t", "2", "TIMEOUT", "slow", Moment(6.0, "g")) is None
    assert versions.profile(connection) == ["t@1"]
    failed = [report for report in versions.read_reports(connection, 100) if report.stage is Stage.FAILED]
    assert [(r.version, r.failure_reason, r.report_id) for r in failed] == [("2", "TIMEOUT", "f")]


def test_reports_wait_once_each_and_go_when_acknowledged(connection):
    for number in range(3):
        versions.add_report(connection, "t", "1", "r", Stage.STAGED, Moment(1.0, f"id-{number}"))
    (report,) = versions.read_reports(connection, 10)
    assert report.report_id == "id-0"
    versions.delete_reports(connection, ["id-0"])
    assert versions.read_reports(connection, 10) == []


def test_forgetting_what_runs_lets_the_previous_version_run_and_reports_nothing(connection):
    staged_and_active(connection)
    finish(connection, queue_run(connection))
    staged_and_active(connection, "2")
    before = len(versions.read_reports(connection, 100))
    versions.forget(connection, "t", "2")
    assert versions.profile(connection) == ["t@1"]
    assert len(versions.read_reports(connection, 100)) == before


def test_what_a_failure_says_fits_what_the_cloud_keeps(connection):
    entry = Entry("t", "1", "sha256:0", "tenants/a/releases/r")
    versions.fail_staged(connection, entry, "LOAD_ERROR", "\0" + "é" * 4096, Moment(1.0, "id"))
    (report,) = versions.read_reports(connection, 10)
    assert report.failure_message.startswith("\ufffdéé")
    assert 4090 < len(report.failure_message.encode()) <= 4096


def test_notes_of_failed_versions_stay_bounded(connection):
    for number in range(40):
        entry = Entry("t", f"v{number}", "d", "r")
        versions.fail_staged(connection, entry, "LOAD_ERROR", "x" * 10_000, Moment(1.0, f"id-{number}"))
    here = versions.list_versions(connection)
    assert len(here) == 16
    assert all(len(version.failure_message) == 4096 for version in here)


def test_a_store_of_the_last_release_becomes_one_of_today_with_what_it_holds():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in schema.MIGRATIONS[0]:
        connection.execute(statement)
    connection.execute("PRAGMA user_version=1")
    connection.execute(
        "INSERT INTO events (event_id, user, type, page, time_s, fields, size, receive_time_s)"
        " VALUES ('e1', 'u', 'go', '', 1.0, '{\"n\":1}', 10, 1.0)"
    )
    waiting = '[{"event_id":"e1","type":"go","page":"","user":"u","time_s":1.0,"fields":{"n":1}}]'
    connection.execute(
        "INSERT INTO runs (task, version, last_seq, event_time_s, trigger_time_s, events)"
        " VALUES ('t', '1', 1, 1.0, 1.0, ?)",
        (waiting,),
    )
    schema.migrate(connection)
    (stored,) = events.read_events(connection, 0, 10)
    assert (stored.event.fields, stored.traceparent) == ({"n": 1}, "")
    (queued,) = runs.list_runs(connection)
    run = runs.read_run(connection, queued.run_id)
    assert (run.events[0].event_id, run.traceparent) == ("e1", "")
    events.add_events(connection, [event(2)], 1.0, traceparent="00-aa-bb-01")
    assert events.read_events(connection, 1, 10)[0].traceparent == "00-aa-bb-01"
    connection.close()

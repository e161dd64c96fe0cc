"""Waiting runs, and all that a finished one leaves."""

from services.device_agent.domain.rollout import State, Verdict
from services.device_agent.domain.uploads import Outgoing
from services.device_agent.store import events, frames, runs, values, versions
from services.device_agent.store.runs import Bounds, Finished, NewRun
from services.device_agent.store.versions import Moment
from services.device_agent.testing.store import (
    BOUNDS,
    HEALTH,
    event,
    finish,
    new_run,
    queue_run,
    start_version,
)


def test_the_user_of_a_waiting_run_is_known_after_a_restart(connection):
    runs_ = [new_run(event(1, user="ann")), new_run(event(2, user="bob"))]
    added, _ = runs.add_runs(connection, 2, runs_, {})
    assert runs.list_runs(connection) == added
    connection.execute("UPDATE runs SET events = '[7]'")
    assert [run.user for run in runs.list_runs(connection)] == ["", ""]
    connection.execute("UPDATE runs SET events = '{'")
    assert [run.user for run in runs.list_runs(connection)] == ["", ""]


def test_a_finished_run_has_its_effects_once(connection):
    start_version(connection)
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
    start_version(connection)
    run = queue_run(connection)
    kept = {"health": HEALTH, "bounds": BOUNDS, "now_s": 2.0, "offset_s": 0.0, "moment": Moment(2.0, "x")}
    for _ in range(2):
        runs.finish_run(
            connection, run, Finished("{}"), counts={"request_count": 3, "answer_count": 2}, **kept
        )
    counters = values.read_counters(connection)
    assert (counters["request_count"], counters["answer_count"], counters["success_count"]) == (6, 4, 1)


def test_the_trace_of_an_event_is_kept_for_its_runs(connection):
    start_version(connection)
    events.add_events(connection, [event(1)], 1.0, traceparent="00-aa-bb-01")
    events.add_events(connection, [event(2)], 1.0)
    first, second = events.read_events(connection, 0, 10)
    assert (first.traceparent, second.traceparent) == ("00-aa-bb-01", "")
    new = NewRun("t", "1", 1, 1.0, (event(1),), first.traceparent)
    added, _ = runs.add_runs(connection, 1, [new], {"t": 100})
    assert added[0].run.traceparent == "00-aa-bb-01"
    assert runs.read_run(connection, added[0].run_id).traceparent == "00-aa-bb-01"


def test_a_failed_run_leaves_its_reason_with_the_version_and_its_text_with_the_result(connection):
    start_version(connection)
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
    start_version(connection)
    run = queue_run(connection)
    versions.roll_back(connection, "t", "1", "EXCEPTION", "no", Moment(1.0, "x"))
    assert finish(connection, run) == (None, Verdict.NOTHING)
    counters = values.read_counters(connection)
    assert (counters["dropped_run_count"], counters["withdrawn_run_count"]) == (1, 1)
    assert runs.read_results(connection, 0, "", 10) == []


def test_a_task_keeps_its_newest_runs_and_never_drops_one_in_flight(connection):
    start_version(connection)
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
    start_version(connection)
    for number in range(1, 6):
        finish(connection, queue_run(connection, number), bounds=Bounds(10, 10**6, 2))
    assert [result.sequence for result in runs.read_results(connection, 0, "", 10)] == [4, 5]
    assert runs.read_results(connection, 4, "other", 10) == []

"""A store that an older agent has written becomes one of today, with all that it holds."""

import sqlite3
from pathlib import Path

import pytest

from libs.task.event import Event
from services.device_agent.domain.rollout import State, Verdict
from services.device_agent.store import events, frames, runs, schema, values, versions
from services.device_agent.store.database import Database
from services.device_agent.testing.store import finish, memory_store, new_run

# Dumps of stores that those agents have written: two events, the first one's run made, the second's waiting.
STORES = sorted((Path(__file__).parent / "stores").glob("*.sql"))


@pytest.fixture(params=STORES, ids=lambda path: path.stem)
async def old(request, tmp_path):
    """A store of an older agent, opened by today's."""
    path = tmp_path / "agent.db"
    connection = sqlite3.connect(path)
    connection.executescript(request.param.read_text("utf-8"))
    connection.close()
    database = Database(path)
    await database.open()
    yield database
    await database.close()


def columns(connection):
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: {row[1:] for row in connection.execute(f"PRAGMA table_info({table})")} for table in tables}


async def test_its_tables_are_those_of_a_new_store(old):
    fresh = memory_store()
    assert await old.run(columns) == columns(fresh)
    fresh.close()
    assert await old.run(lambda c: c.execute("PRAGMA user_version").fetchone()) == (len(schema.MIGRATIONS),)


async def test_nothing_that_it_holds_is_lost(old):
    stored = await old.run(lambda c: events.read_events(c, 0, 10))
    assert [(each.event.event_id, each.event.fields, each.traceparent) for each in stored] == [
        ("e1", {"n": 1}, ""),
        ("e2", {"n": 2}, ""),
    ]
    (result,) = await old.run(lambda c: runs.read_results(c, 0, "", 10))
    assert (result.user, result.result) == ("ann", '{"n":1}')
    (frame,) = await old.run(lambda c: frames.read_frames(c, "t/out", 0, 10, 1000))
    assert (frame.sequence, frame.payload) == (1, b'{"n":1}')
    (version,) = await old.run(versions.list_versions)
    assert (version.key, version.state) == ("t@1", State.CONFIRMED)
    counters = await old.run(values.read_counters)
    assert (counters["event_count"], counters["success_count"], counters["frame_count"]) == (2, 1, 1)


async def test_what_waits_in_it_is_made_and_new_events_bring_their_trace(old):
    (queued,) = await old.run(runs.list_runs)
    run = await old.run(lambda c: runs.read_run(c, queued.run_id))
    assert (run.events[0].event_id, run.user, run.traceparent) == ("e2", "ann", "")
    result, verdict = await old.run(lambda c: finish(c, run))
    assert (result.sequence, verdict) == (2, Verdict.NOTHING)

    third = Event("e3", "go", "item", "ann", 3.0, {"n": 3})
    await old.run(lambda c: events.add_events(c, [third], 8.0, traceparent="00-aa-bb-01"))
    (stored,) = await old.run(lambda c: events.read_events(c, 2, 10))
    assert (stored.seq, stored.traceparent) == (3, "00-aa-bb-01")
    new = new_run(third, last_seq=3, traceparent=stored.traceparent)
    added, _ = await old.run(lambda c: runs.add_runs(c, 3, [new], {"t": 100}))
    assert (await old.run(lambda c: runs.read_run(c, added[0].run_id))).traceparent == "00-aa-bb-01"

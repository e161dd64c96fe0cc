"""No row of the store, and no event of an app, ends the agent; least of all again after every restart."""

import asyncio
import json
import sqlite3

import pytest

from services.device_agent.app import Agent
from services.device_agent.domain.triggers import TriggerIndex
from services.device_agent.metrics import AgentCollector
from services.device_agent.store import events as event_store
from services.device_agent.store import runs as run_store
from services.device_agent.testing.app import event, running, states
from services.device_agent.testing.tasks import task

SENDS = 'def run(context):\n    context.send("out", {"n": context.events[-1].fields["n"]})\n    return {}\n'
UPLOADS = {"out": {"n": ("NUMBER", 0)}}
DROPPED = "rows couldn't be used"


@pytest.fixture
def sql(tmp_path):
    """Return what runs a statement on the store of an agent that doesn't run."""

    def run(statement, *arguments):
        connection = sqlite3.connect(tmp_path / "state" / "agent.db", isolation_level=None)
        try:
            return connection.execute(statement, arguments).fetchall()
        finally:
            connection.close()

    return run


async def installed(cloud, agent_config, **settings):
    cloud.publish(task(source=SENDS, uploads=UPLOADS))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config(**settings))) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go(n=0)
        await app.until(lambda s: s.counters.acked_frame_count == 1)
        await cloud.until(lambda: "CONFIRMED" in cloud.stages("hello@1"))


async def test_tunnel(cloud, agent_config, sql):
    await installed(cloud, agent_config)
    await cloud.stop()
    async with running(Agent(agent_config())) as app:
        for number in (1, 2, 3):
            await app.go(first=number, n=number)
        await app.until(lambda s: s.counters.frame_count == 4)
    sql("UPDATE frames SET schema_id = x'ff', event_time_s = 'noon' WHERE sequence = 3")
    await cloud.start()
    async with running(Agent(agent_config())) as app:
        await cloud.until(lambda: len(cloud.frames["d1", "hello/out"]) == 4)
        await app.until_problem(DROPPED)
        await app.until(lambda s: s.tunnel_connected)
    frames = [cloud.frames["d1", "hello/out"][sequence] for sequence in (2, 3, 4)]
    assert [frame.tombstone_reason for frame in frames] == ["", "UNREADABLE", ""]
    assert json.loads(frames[2].payload) == {"n": 3}


async def test_reports(cloud, agent_config, sql):
    await installed(cloud, agent_config)
    columns = "(report_id, task, version, release, stage, event_time_s)"
    for number, stage, time_s in ((1, "NEVER", 1.0), (2, "FAILED", 1e300), (3, "STAGED", 1.0)):
        sql(f"INSERT INTO reports {columns} VALUES (?, 'x', '1', 'r', ?, ?)", f"bad-{number}", stage, time_s)
    sql("UPDATE reports SET task = x'ff' WHERE report_id = 'bad-3'")
    async with running(Agent(agent_config())) as app:
        await cloud.until(lambda: "bad-2" in cloud.reports)
        await app.until_problem(f"2 {DROPPED}")
    assert cloud.reports["bad-2"].event_time.ToDatetime().year == 9999
    assert not {"bad-1", "bad-3"} & cloud.reports.keys()
    assert sql("SELECT * FROM reports") == []


async def test_runs(cloud, agent_config, sql):
    await installed(cloud, agent_config)
    columns = "(task, version, last_seq, event_time_s, trigger_time_s, events)"
    for events in ("{", "[7]", '[{"type": "go"}]'):
        sql(f"INSERT INTO runs {columns} VALUES ('hello', '1', 1, 1.0, 1.0, ?)", events)
    agent = Agent(agent_config())
    async with running(agent) as app:
        await app.go(first=1, n=1)
        await app.results(2)
        status = await app.until_problem(f"3 {DROPPED}")
        families = await asyncio.to_thread(lambda: list(AgentCollector(agent).collect()))
        (bad,) = [family for family in families if family.name == "isthmus_device_agent_bad_rows"]
        assert bad.samples[0].value == 3
        assert status.counters.dropped_run_count == 3
        assert states(status) == {"hello@1": "CONFIRMED"}
    async with running(Agent(agent_config())) as app:
        assert not (await app.status()).problems


async def test_triggers(cloud, agent_config, sql):
    await installed(cloud, agent_config)
    columns = "(event_id, user, type, page, time_s, fields, size, receive_time_s)"
    sql("UPDATE events SET fields = '{'")  # processed: read again when the triggers' state is rebuilt
    sql(f"INSERT INTO events {columns} VALUES ('b', 'u1', 'go', '', 1.0, '[', 9, 1.0)")
    async with running(Agent(agent_config())) as app:
        await app.go(first=1, n=1)
        await app.results(2)
        await app.until_problem(DROPPED)


async def test_an_event_that_the_triggers_cannot_take(cloud, agent_config, monkeypatch):
    await installed(cloud, agent_config)
    advance = TriggerIndex.advance

    def fails(index, given):
        if given.user == "bad":
            raise AttributeError("a fault of ours")
        return advance(index, given)

    monkeypatch.setattr(TriggerIndex, "advance", fails)
    async with running(Agent(agent_config())) as app:
        await app.go(first=1, user="bad", n=1)
        await app.go(first=2, n=2)
        await app.results(2)
        await app.until_problem("can't be matched")


async def test_events_file(cloud, agent_config, tmp_path, monkeypatch):
    await installed(cloud, agent_config)
    path = tmp_path / "events.jsonl"
    lines = [
        {"event_id": f"f{n}", "type": "go", "user": "u", "time_s": n, "fields": {"n": n}} for n in range(5)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    add = event_store.add_events

    def fails(connection, events, *arguments):
        if any(e.event_id == "f2" for e in events):
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no")
        return add(connection, events, *arguments)

    monkeypatch.setattr(event_store, "add_events", fails)
    for first in (True, False):
        async with running(Agent(agent_config(events_file=str(path)))) as app:
            await app.until(lambda s: s.counters.event_count == 5)
            await app.results(5)
            if first:
                await app.until_problem("1 lines are no events")


async def test_a_result_that_cannot_be_stored_is_a_failure_of_its_version(cloud, agent_config, monkeypatch):
    await installed(cloud, agent_config)

    def fails(*_):
        raise LookupError("a fault of ours")

    monkeypatch.setattr(run_store, "add_frame", fails)
    async with running(Agent(agent_config())) as app:
        await app.go(3, first=1, n=1)
        results = await app.results(4)
        assert [result.failure_reason for result in results] == ["", *["INTERNAL"] * 3]
        await app.until_state("hello@1", "FAILED")
        await cloud.until(lambda: "FAILED" in cloud.stages("hello@1"))


async def test_the_last_moment_there_is_by_a_gateway_whose_clock_is_ahead(cloud, agent_config):
    cloud.clock_ahead_s = 100 * 86400.0
    cloud.publish(task(source=SENDS, uploads=UPLOADS))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.send(event("go", "last", time_s=253_402_300_799.5, n=1))
        await app.send(event("go", "first", time_s=0.0, n=2))
        assert [result.event_time.seconds for result in await app.results(2)] == [253_402_300_799, 0]
        await cloud.until(lambda: len(cloud.frames["d1", "hello/out"]) == 2)
        await app.until(lambda s: s.counters.acked_frame_count == 2)
    assert cloud.frames["d1", "hello/out"][1].event_time.seconds == 253_402_300_799

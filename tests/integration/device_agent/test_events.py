"""Events: durable once, in order, within limits; features over their windows; files with their positions."""

import asyncio
import json
import sqlite3
from datetime import timedelta

import grpc
import pytest

from isthmus.device_agent.v1 import device_agent_pb2 as pb
from libs.common.clock import SystemClock
from services.device_agent.app import Agent
from services.device_agent.store import events as event_store
from services.device_agent.testing.app import config, event, running
from services.device_agent.testing.tasks import task


class JumpingClock(SystemClock):
    """The machine's clock, set by somebody."""

    ahead_s = 0.0

    def now(self):
        return super().now() + timedelta(seconds=self.ahead_s)


COLLECT = 'def run(context):\n    return {"ids": [e.event_id for e in context.events], **context.features}\n'


def lines(*events):
    return "".join(json.dumps(value) + "\n" for value in events)


def go(number, **extra):
    return {"event_id": f"e{number}", "type": "go", "user": "u1", "time_s": 1000.0 + number, **extra}


async def test_events_are_taken_once_by_their_id(agent_config):
    async with running(Agent(agent_config())) as app:
        first = await app.send(event("a", "1"), event("a", "2"), event("a", "1"))
        again = await app.send(event("a", "2"), event("a", "3"), event("a"), event("a"))
        assert (first.accepted_count, first.duplicate_count) == (2, 1)
        assert (again.accepted_count, again.duplicate_count) == (3, 1)
        status = await app.status()
        assert status.counters.event_count == 5
        assert status.counters.event_bytes > 100


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (event("a b"), "events[1]: type"),
        (event(""), "events[1]"),
        (event("a", "x" * 65), "event_id"),
        (event("a", user="u" * 129), "user"),
        (event("a", text="x" * 70_000), "65536"),
        (pb.Event(type="a", fields_json="{"), "fields_json: line 1, column 2"),
        (pb.Event(type="a", fields_json="[1]"), "must be an object"),
        (pb.Event(type="a", fields_json='{"a": {"b": 1}}'), "fields.a"),
        (pb.Event(type="a", fields_json=json.dumps({f"f{i}": i for i in range(65)})), "65 fields"),
        (event("a", time_s=-5.0), "time_s"),
    ],
)
async def test_a_bad_event_refuses_the_batch_and_says_which_and_why(agent_config, message, text):
    async with running(Agent(agent_config(gateway_target=""))) as app:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await app.send(event("a", "1"), message)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert text in refused.value.details()
        assert (await app.status()).counters.event_count == 0


async def test_too_many_events_at_once_and_too_large_messages_are_refused(agent_config):
    async with running(Agent(agent_config(gateway_target=""))) as app:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await app.send(*(event("a") for _ in range(1001)))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await app.send(*(event("a", text="x" * 60_000) for _ in range(100)))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_backlog_is_refused_early_with_a_hint(agent_config):
    agent = Agent(agent_config(gateway_target="", max_unprocessed_events=10))
    async with running(agent) as app, agent.tasks.lock:  # nothing is processed meanwhile
        await app.send(*(event("a") for _ in range(10)))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await app.send(event("a"))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "10 events wait" in refused.value.details()


async def test_a_sequence_over_a_restart_fires_once_and_only_for_events_after_the_activation(
    cloud, agent_config
):
    trigger = {"sequence": [{"event": "a"}, {"followed_by": {"event": "b"}}], "within": "1h"}
    cloud.publish(task(source=COLLECT, trigger=trigger))
    async with running(Agent(agent_config())) as app:
        await app.send(event("a", "before", time_s=1000))
        await app.until(lambda s: s.counters.event_count == 1)
        await cloud.want("d1", {"hello": "1"})
        await app.until_state("hello@1", "ACTIVE")
        await app.send(event("a", "after", user="u2", time_s=1001))
    async with running(Agent(agent_config())) as app:
        await app.send(event("b", "1", user="u1", time_s=1002), event("b", "2", user="u2", time_s=1003))
        (result,) = await app.results(1)
        assert json.loads(result.result_json)["ids"] == ["after", "2"]
        assert (await app.status()).counters.trigger_count == 1
    async with running(Agent(agent_config())) as app:
        await app.send(event("b", "3", user="u2", time_s=1004))
        await app.until(lambda s: s.counters.event_count == 5)
        assert len(await app.all_results()) == 1


async def test_features_see_the_window_before_the_trigger_and_nothing_after_it(cloud, agent_config):
    pipeline = {
        "likes": {
            "source": {"event": "rate", "where": {"ge": ["rating", 4]}},
            "ops": [{"window": {"size": "1h"}}, {"reduce": {"by": {"fn": "count", "by": "genres"}}}],
        },
        "last": {
            "source": {"event": "*"},
            "ops": [{"window": {"size": "1h", "max_events": 2}}, {"reduce": {"n": {"fn": "count"}}}],
        },
        "item": {
            "source": {"event": "rate"},
            "key_by": "item",
            "ops": [{"window": {"size": "1h"}}, {"reduce": {"mean": {"fn": "mean", "field": "rating"}}}],
        },
    }
    cloud.publish(task(source=COLLECT, pipeline=pipeline, trigger={"sequence": [{"event": "go"}]}))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.send(
            event("rate", "1", time_s=1000, rating=5, genres=["old"], item=1),
            event("rate", "2", time_s=5000, rating=5, genres=["drama", "war"], item=1),
            event("rate", "3", time_s=5001, rating=4, genres=["drama"], item=2),
            event("rate", "4", time_s=5002, rating=3, genres=["noir"], item=1),
            event("rate", "5", user="u2", time_s=5003, rating=1, genres=["war"], item=1),
            event("go", "6", time_s=5004, item=1),
            event("rate", "7", time_s=5003, rating=5, genres=["late"], item=1),
        )
        (result,) = await app.results(1)
        assert json.loads(result.result_json) == {
            "ids": ["6"],
            "likes": {"by": {"drama": 2, "war": 1}},
            "last": {"n": 2},
            "item": {"mean": 3.0},
        }


async def test_waiting_runs_beyond_the_limit_are_dropped_oldest_first_and_counted(cloud, agent_config):
    cloud.publish(task(source=COLLECT, pending=2))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go(50)
        status = await app.until(
            lambda s: (
                s.counters.success_count + s.counters.dropped_run_count == s.counters.trigger_count == 50
            )
        )
        assert status.counters.dropped_run_count > 0
        ids = [json.loads(result.result_json)["ids"][0] for result in await app.all_results()]
        assert "go-49" in ids


async def test_a_file_is_read_with_its_bad_lines_told_by_number(cloud, agent_config, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(
        lines(go(1))
        + "{not json\n"
        + "\n"
        + '{"type": "go"}\n'
        + json.dumps(go(2, fields={"text": "x" * 70_000}))
        + "\n"
        + "x" * 600_000
        + "\n"
        + lines(go(3))
        + json.dumps(go(4))
    )
    cloud.publish(task(source=COLLECT))
    await cloud.want("d1", {"hello": "1"})
    agent = Agent(agent_config(events_file=str(path)))
    async with running(agent) as app:
        await agent.reader.finished.wait()
        status = await app.status()
        assert status.counters.event_count == 3
        assert agent.reader.bad_lines == 4
        (problem,) = [p for p in status.problems if p.startswith("events file lines")]
        assert "4 lines are no events" in problem
        for text in ("line 4, column 1:", "line 5:", "line 6: longer than"):
            assert text in problem


async def test_a_followed_file_goes_on_where_it_stopped_and_notices_another_one(agent_config, tmp_path):
    path = tmp_path / "events.jsonl"
    settings = {"gateway_target": "", "events_file": str(path), "events_follow": True}
    async with running(Agent(agent_config(**settings))) as app:
        await app.until_problem("events.jsonl")  # it isn't there yet
        path.write_text(lines(go(1), go(2)) + '{"type": "go", ')
        await app.until(lambda s: s.counters.event_count == 2)
        with path.open("a") as file:
            file.write('"time_s": 5}\n' + lines(go(3)))
        await app.until(lambda s: s.counters.event_count == 4)
    with path.open("a") as file:
        file.write(lines(go(4)))
    async with running(Agent(agent_config(**settings))) as app:
        await app.until(lambda s: s.counters.event_count == 5)
        path.rename(tmp_path / "old")
        path.write_text(lines(go(5)))
        status = await app.until(lambda s: s.counters.event_count == 6)
        assert not status.problems


@pytest.mark.parametrize("extra", [{}, {"event_id": ""}])
async def test_a_fast_file_waits_for_its_runs_and_drops_none(cloud, agent_config, tmp_path, extra):
    path = tmp_path / "events.jsonl"
    path.write_text(lines(*(go(i, **extra) for i in range(300))))
    cloud.publish(task(source=COLLECT, pending=8))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
    async with running(Agent(agent_config(events_file=str(path)))) as app:
        status = await app.until(lambda s: s.counters.success_count == 300)
        assert status.counters.dropped_run_count == 0


async def test_a_replayed_file_keeps_its_pace(agent_config, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(lines(go(0), go(1), go(200_000)))
    agent = Agent(agent_config(gateway_target="", events_file=str(path), events_speed=1000.0))
    async with running(agent) as app:
        await app.until(lambda s: s.counters.event_count == 2)
        assert not agent.reader.finished.is_set()


async def test_a_file_that_is_no_file_is_told(agent_config, tmp_path):
    async with running(Agent(agent_config(gateway_target="", events_file=str(tmp_path)))) as app:
        await app.until_problem("no plain file")


async def test_retention_keeps_what_windows_need_and_tells_when_a_bound_cuts_them(
    cloud, agent_config, tmp_path
):
    pipeline = {
        "n": {
            "source": {"event": "*"},
            "ops": [{"window": {"size": "30d"}}, {"reduce": {"n": {"fn": "count"}}}],
        }
    }
    settings = {"max_events": 20, "max_event_age_s": 0.0, "housekeeping_s": 0.02}
    async with running(Agent(agent_config(**settings))) as app:
        await app.send(*(event("a", str(i)) for i in range(10)))
        # Nothing looks back: all of it may go.
        await asyncio.to_thread(_until_stored, tmp_path, 0)
        cloud.publish(task(source=COLLECT, pipeline=pipeline))
        await cloud.want("d1", {"hello": "1"})
        await app.until_state("hello@1", "ACTIVE")
        await app.send(*(event("a", str(i)) for i in range(10, 25)))
        await app.go(1)
        (result,) = await app.results(1)
        assert json.loads(result.result_json)["n"] == {"n": 16}
        await app.send(*(event("a", str(i)) for i in range(25, 50)))
        status = await app.until_problem("cut")
        assert "2592000 s" in str(status.problems)
        await asyncio.to_thread(_until_stored, tmp_path, 20)


def _until_stored(tmp_path, count):
    connection = sqlite3.connect(tmp_path / "state" / "agent.db")
    try:
        while connection.execute("SELECT COUNT(*) FROM events").fetchone() != (count,):
            connection.rollback()
    finally:
        connection.close()


async def test_a_clock_that_jumps_takes_no_event_away(cloud, agent_config, tmp_path):
    clock = JumpingClock()
    agent = Agent(agent_config(max_event_age_s=3600.0, housekeeping_s=0.02), clock=clock)
    async with running(agent) as app:
        await app.until(lambda s: s.device)
        await app.send(*(event("a", str(i)) for i in range(10)))
        clock.ahead_s = 400 * 86400.0
        await agent.housekeeper.cut_events()
        count, _ = await agent.database.run(event_store.stored_size)
        assert count == 10


async def test_a_script_reads_its_resources(cloud, agent_config):
    reads = 'def run(context):\n    return {"text": context.resource("data/words.txt").read_text()}\n'
    cloud.publish(task(source=reads, resources={"data/words.txt": b"hello there"}))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go()
        (result,) = await app.results(1)
        assert json.loads(result.result_json) == {"text": "hello there"}


async def test_an_agent_without_a_cloud_serves_what_it_has(tmp_path):
    async with running(Agent(config(tmp_path / "state"))) as app:
        await app.send(event("a"))
        status = await app.status()
        assert (status.device, status.counters.event_count) == ("", 1)

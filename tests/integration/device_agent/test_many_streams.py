"""More streams than a connection carries: none is left behind, and streams of tasks that are gone go too."""

import asyncio
import sqlite3

from isthmus.tunnel.v1 import tunnel_pb2
from services.device_agent import tunnelling
from services.device_agent.app import Agent
from services.device_agent.metrics import AgentCollector
from services.device_agent.testing.app import running, states
from services.device_agent.testing.tasks import task

STREAMS = [f"s{number:02}" for number in range(16)]
SENDS = f"""
def run(context):
    for stream in {STREAMS}:
        context.send(stream, {{"n": 1}})
    return {{}}
"""
UPLOADS = {stream: {"n": ("NUMBER", 0)} for stream in STREAMS}
NAMES = [f"task-{letter}" for letter in "abcde"]


async def metric(agent, name):
    families = await asyncio.to_thread(lambda: list(AgentCollector(agent).collect()))
    return next(family.samples[0].value for family in families if family.name == name)


def count(cloud):
    return sum(len(frames) for (device, _), frames in cloud.frames.items() if device == "d1")


def streams(tmp_path):
    connection = sqlite3.connect(tmp_path / "state" / "agent.db")
    try:
        return {stream for (stream,) in connection.execute("SELECT stream FROM streams")}
    finally:
        connection.close()


async def test_eighty_streams_with_frames_take_turns_and_the_status_says_so(cloud, agent_config, monkeypatch):
    monkeypatch.setattr(tunnelling, "_TURN_S", 0.05)
    for name in NAMES:
        cloud.publish(task(name, source=SENDS, uploads=UPLOADS))
    await cloud.want("d1", dict.fromkeys(NAMES, "1"))
    agent = Agent(agent_config())
    async with running(agent) as app:
        await app.until(lambda s: states(s) == {f"{name}@1": "ACTIVE" for name in NAMES})
        await cloud.stop()
        await app.go()
        await app.until(lambda s: s.counters.frame_count == 80)
        await app.until_problem("80 streams have frames and a connection carries 64")
        assert await metric(agent, "isthmus_device_agent_left_out_streams") == 16
        await cloud.start()
        await cloud.until(lambda: count(cloud) == 80)
        await app.until(lambda s: s.counters.acked_frame_count == 80 and not s.problems)
        # And again while it is connected.
        await app.go(first=1)
        await cloud.until(lambda: count(cloud) == 160)
    hellos = [
        message.hello
        for message in map(tunnel_pb2.ConnectRequest.FromString, cloud.wire["Connect"])
        if message.HasField("hello")
    ]
    assert max(len(hello.streams) for hello in hellos) == 64


async def test_a_stream_with_frames_takes_the_place_of_one_without(cloud, agent_config, monkeypatch):
    """The last by name, so that it isn't among the first 64."""
    monkeypatch.setattr(tunnelling, "_TURN_S", 0.05)
    for name in NAMES[:4]:
        cloud.publish(task(name, source=SENDS, uploads=UPLOADS, trigger={"sequence": [{"event": "other"}]}))
    cloud.publish(task(NAMES[4], source=SENDS, uploads=UPLOADS))
    await cloud.want("d1", dict.fromkeys(NAMES, "1"))
    async with running(Agent(agent_config())) as app:
        await app.until(lambda s: states(s) == {f"{name}@1": "ACTIVE" for name in NAMES})
        await app.until(lambda s: s.tunnel_connected)
        await app.go()
        await cloud.until(lambda: count(cloud) == 16)
        assert not (await app.until(lambda s: s.counters.acked_frame_count == 16)).problems


async def test_streams_of_tasks_that_are_gone_go_when_they_are_empty(cloud, agent_config, tmp_path):
    cloud.publish(task("gone", source=SENDS, uploads=UPLOADS))
    cloud.publish(task("kept", source=SENDS, uploads=UPLOADS))
    await cloud.want("d1", {"gone": "1", "kept": "1"})
    settings = {"housekeeping_s": 0.05}
    async with running(Agent(agent_config(**settings))) as app:
        await app.until(lambda s: states(s) == {"gone@1": "ACTIVE", "kept@1": "ACTIVE"})
        await app.go()
        await app.until(lambda s: s.counters.acked_frame_count == 32)
        first = cloud.frames["d1", "gone/s00"][1].epoch
        await cloud.want("d1", {"kept": "1"})
        await app.until(lambda _: streams(tmp_path) == {f"kept/{stream}" for stream in STREAMS})
        # What begins again begins a new epoch, so that nothing of it is taken for a repetition.
        await cloud.want("d1", {"gone": "1", "kept": "1"}, "r2")
        await app.until(lambda s: states(s).get("gone@1") == "ACTIVE")
        del cloud.frames["d1", "gone/s00"]
        await app.go(first=1)
        await app.until(lambda s: s.counters.acked_frame_count == 64)
        assert cloud.frames["d1", "gone/s00"][1].epoch != first


async def test_streams_of_a_task_that_is_gone_are_emptied_first(cloud, agent_config, tmp_path):
    cloud.publish(task("gone", source=SENDS, uploads=UPLOADS))
    await cloud.want("d1", {"gone": "1"})
    async with running(Agent(agent_config(housekeeping_s=0.05))) as app:
        await app.until_state("gone@1", "ACTIVE")
        cloud.hold["Connect"] = held = asyncio.Event()
        await cloud.stop()
        await cloud.start()
        await app.go()
        await app.until(lambda s: s.counters.frame_count == 16)
        await cloud.want("d1", {})
        await app.until(lambda s: states(s) == {})
        assert len(streams(tmp_path)) == 16
        cloud.hold.clear()
        held.set()
        await cloud.until(lambda: count(cloud) == 16)
        await app.until(lambda _: streams(tmp_path) == set())

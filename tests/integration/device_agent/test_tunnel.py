"""Frames: each once, in order, over broken connections, restarts, fencing and months without a network."""

import asyncio
import json

from isthmus.tunnel.v1 import tunnel_pb2
from services.device_agent.app import Agent
from services.device_agent.testing.app import event, running
from services.device_agent.testing.tasks import task

SENDS = 'def run(context):\n    context.send("out", {"n": context.events[-1].fields["n"]})\n    return {}\n'
UPLOADS = {"out": {"n": ("NUMBER", 0)}}


def numbers(cloud, stream="hello/out"):
    frames = cloud.frames["d1", stream]
    return [json.loads(frames[s].payload)["n"] for s in sorted(frames) if not frames[s].tombstone_reason]


async def sending(cloud, app):
    cloud.publish(task(source=SENDS, uploads=UPLOADS, pending=4096))
    await cloud.want("d1", {"hello": "1"})
    await app.until_state("hello@1", "ACTIVE")


async def go(app, *values):
    for value in values:
        await app.go(first=value, n=value)


async def test_frames_made_without_a_network_arrive_in_order_once_it_is_back(cloud, agent_config):
    async with running(Agent(agent_config())) as app:
        await sending(cloud, app)
        await go(app, 0)
        await cloud.until(lambda: numbers(cloud) == [0])
        await cloud.stop()
        await go(app, *range(1, 6))
        await app.until(lambda s: s.counters.frame_count == 6)
        await cloud.start()
        await cloud.until(lambda: numbers(cloud) == list(range(6)))
        status = await app.until(lambda s: s.counters.acked_frame_count == 6)
        assert status.tunnel_connected
        await app.until(lambda s: not s.problems)


async def test_a_time_at_the_edge_of_what_an_event_may_have_arrives(cloud, agent_config):
    cloud.clock_ahead_s = 86400.0  # by the gateway's clock the event lies beyond what a time can be
    async with running(Agent(agent_config())) as app:
        await sending(cloud, app)
        await app.send(event("go", "far", time_s=253_402_300_799.0, n=1))
        await app.until(lambda s: s.counters.acked_frame_count == 1)
    assert numbers(cloud) == [1]


async def test_frames_sent_and_not_acknowledged_are_sent_again_after_a_restart_and_kept_once(
    cloud, agent_config
):
    async with running(Agent(agent_config())) as app:
        await sending(cloud, app)
        cloud.hold["ack"] = asyncio.Event()
        await go(app, *range(3))
        await cloud.until(lambda: numbers(cloud)[:1] == [0])
    cloud.hold.clear()
    async with running(Agent(agent_config())) as app:
        await app.until(lambda s: s.counters.acked_frame_count == 3)
        assert numbers(cloud) == [0, 1, 2]


async def test_a_cloud_that_lost_its_tail_gets_it_again(cloud, agent_config):
    """A gap: the same ack comes again, and the device goes back to the frame after it."""
    async with running(Agent(agent_config())) as app:
        await sending(cloud, app)
        cloud.hold["ack"] = asyncio.Event()
        await go(app, *range(5))
        await cloud.until(lambda: 1 in cloud.frames["d1", "hello/out"])
        await app.until(lambda s: s.counters.frame_count == 5)
        # The log had taken the first and then lost it before its ack.
        del cloud.frames["d1", "hello/out"][1]
        cloud.hold.pop("ack").set()
        await cloud.until(lambda: numbers(cloud) == [0, 1, 2, 3, 4])
        await app.until(lambda s: s.counters.acked_frame_count == 5)


async def test_a_fenced_agent_says_so_and_waits(cloud, agent_config):
    async with running(Agent(agent_config())) as app:
        await sending(cloud, app)
        await go(app, 0)
        await cloud.until(lambda: numbers(cloud) == [0])
        cloud.fence("d1")
        await go(app, 1)
        await app.until_problem("another agent uses this device's identity")
        await cloud.until(lambda: numbers(cloud) == [0, 1])
        await app.until(lambda s: not s.problems)


async def test_a_day_without_network_keeps_the_newest_and_leaves_tombstones(cloud, agent_config):
    async with running(Agent(agent_config(max_frames=3))) as app:
        await sending(cloud, app)
        await app.until(lambda s: s.tunnel_connected)
        await cloud.stop()
        await go(app, *range(10))
        await app.until(lambda s: s.counters.frame_count == 10)
        await cloud.start()
        await cloud.until(lambda: len(cloud.frames["d1", "hello/out"]) == 10)
    reasons = [cloud.frames["d1", "hello/out"][s].tombstone_reason for s in range(1, 11)]
    assert reasons == ["DROPPED"] * 7 + [""] * 3
    assert numbers(cloud) == [7, 8, 9]


async def test_months_without_network_start_a_new_epoch(cloud, agent_config):
    settings = {"max_frames": 2, "max_tombstones": 5, "housekeeping_s": 0.05}
    async with running(Agent(agent_config(**settings))) as app:
        await sending(cloud, app)
        await app.until(lambda s: s.tunnel_connected)
        await cloud.stop()
        await go(app, *range(10))
        await app.until_problem("begins anew")
        await cloud.start()
        await go(app, 100)
        await cloud.until(lambda: numbers(cloud)[-1:] == [100])
    epochs = {
        request.frame.epoch
        for request in map(tunnel_pb2.ConnectRequest.FromString, cloud.wire["Connect"])
        if request.HasField("frame")
    }
    assert len(epochs) == 1


async def test_a_cloud_ahead_of_the_store_starts_a_new_epoch_and_nothing_is_taken_for_a_repetition(
    cloud, agent_config, tmp_path
):
    """The state folder was restored from an older copy: its numbers were used already."""
    async with running(Agent(agent_config())) as app:
        await sending(cloud, app)
        await app.until(lambda s: s.tunnel_connected)
    copy = (tmp_path / "state" / "agent.db").read_bytes()
    async with running(Agent(agent_config())) as app:
        await go(app, 0, 1, 2)
        await app.until(lambda s: s.counters.acked_frame_count == 3)
    (tmp_path / "state" / "agent.db").write_bytes(copy)
    before = dict(cloud.frames.pop(("d1", "hello/out")))
    cloud.frames["d1", "hello/out"].update(before)
    await cloud.stop()
    async with running(Agent(agent_config())) as app:
        await go(app, 10)
        await app.until(lambda s: s.counters.frame_count == 1)
        await cloud.start()
        await app.until(lambda s: s.counters.acked_frame_count == 1)
    sent = [tunnel_pb2.ConnectRequest.FromString(data) for data in cloud.wire["Connect"]]
    last = [request.frame for request in sent if request.HasField("frame")][-1]
    assert json.loads(last.payload) == {"n": 10}
    assert last.epoch != before[1].epoch


async def test_many_frames_arrive_each_once(cloud, agent_config):
    async with running(Agent(agent_config(vm_workers=2))) as app:
        await sending(cloud, app)
        for start in range(0, 1000, 100):
            await app.send(*(event("go", f"e{n}", n=n) for n in range(start, start + 100)))
        await cloud.until(lambda: len(cloud.frames["d1", "hello/out"]) == 1000)
        assert sorted(numbers(cloud)) == list(range(1000))
        await app.until(lambda s: s.counters.acked_frame_count == 1000)

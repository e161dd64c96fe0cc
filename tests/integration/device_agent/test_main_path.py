"""The agent's main job: enrol, pull, trigger, run, send."""

import json

from services.device_agent.app import Agent
from services.device_agent.testing.app import event, running, states
from services.device_agent.testing.tasks import task

SENDS = """
def run(context):
    event = context.events[-1]
    context.send("out", {"score": 0.5, "kind": event.type})
    return {"user": event.user, "n": event.fields["n"]}
"""
UPLOADS = {"out": {"score": ("NUMBER", 0), "kind": ("STRING", 0)}}


async def test_a_task_is_pulled_triggered_and_its_frames_reach_the_cloud(cloud, agent_config):
    cloud.publish(task(source=SENDS, uploads=UPLOADS))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.send(event("go", "e1", n=7))
        (result,) = await app.results(1)
        assert json.loads(result.result_json) == {"user": "u1", "n": 7}
        await cloud.until(lambda: 1 in cloud.frames["d1", "hello/out"])
        frame = cloud.frames["d1", "hello/out"][1]
        assert json.loads(frame.payload) == {"score": 0.5, "kind": "go"}
        assert frame.schema_id == "hello@1/out"
        await cloud.until(lambda: "CONFIRMED" in cloud.stages("hello@1"))
        status = await app.until(lambda s: s.counters.acked_frame_count == 1)
    assert cloud.stages("hello@1") == ["DOWNLOADED", "VERIFIED", "STAGED", "ACTIVATED", "CONFIRMED"]
    assert states(status) == {"hello@1": "CONFIRMED"}
    assert status.device == "tenants/acme/devices/d1"
    assert status.tunnel_connected
    assert list(status.problems) == []


USERS = ("ann", "bob")
SLOW_FIRST = """
import time

def run(context):
    n = context.events[-1].fields["n"]
    time.sleep(0.4 if n == 0 else 0.0)
    return {"n": n}
"""


async def test_results_of_one_user_come_in_the_order_of_the_events(cloud, agent_config):
    cloud.publish(task(source=SLOW_FIRST))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config(vm_workers=3))) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.send(
            *(event("go", f"{user}-{n}", user, n=n + (user == "bob")) for n in range(4) for user in USERS)
        )
        results = await app.results(8)
    for user, first in zip(USERS, (0, 1), strict=True):
        numbers = [json.loads(result.result_json)["n"] for result in results if result.user == user]
        assert numbers == list(range(first, first + 4))

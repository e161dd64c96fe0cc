"""A day without a network: the device works on, and then everything arrives once and asking works again."""

import json
from datetime import datetime, timedelta
from struct import pack

from isthmus.tunnel.v1 import tunnel_pb2
from libs.common.clock import SystemClock
from services.device_agent.app import Agent
from services.device_agent.testing.app import event, running
from services.device_agent.testing.tasks import task

DAY_S = 86400.0
EVENTS = 288
SOURCE = """
def run(context):
    n = context.events[-1].fields["n"]
    found = context.ask("ranker", {"item": n}, timeout="20s")
    context.send("out", {"n": n})
    return {"n": n, "answered": found is not None, "log": context.log_lines}
"""


class JumpingClock(SystemClock):
    """A clock whose hours pass when a test says so."""

    def __init__(self):
        self.ahead_s = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.ahead_s)

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


async def score(request):
    output = tunnel_pb2.Tensor(name="score", datatype="FP32", shape=[1], content=pack("<f", 0.5))
    return tunnel_pb2.Answer(id=request.id, model_version="1", outputs=[output])


async def test_after_a_day_without_network_everything_arrives_once_and_asking_works_again(
    cloud, agent_config
):
    cloud.tunnel.model = score
    clock = JumpingClock()
    async with running(Agent(agent_config(), clock=clock)) as app:
        version = task(
            source=SOURCE,
            pending=4096,
            uploads={"out": {"n": ("NUMBER", 0)}},
            endpoints={"ranker": {"item": ("INT64", 1)}},
        )
        cloud.publish(version)
        await cloud.want("d1", {"hello": "1"})
        await app.until_state("hello@1", "ACTIVE")
        await app.until(lambda status: status.tunnel_connected)
        await app.send(event("go", "before", n=0))
        assert json.loads((await app.results(1))[0].result_json) == {"n": 0, "answered": True, "log": []}
        asked = len(cloud.tunnel.requests)

        await cloud.stop()
        await app.until(lambda status: not status.tunnel_connected)
        start_s = clock.now().timestamp()
        for hour in range(24):
            numbers = range(hour * 12, hour * 12 + 12)
            await app.send(*(event("go", f"m{n}", time_s=start_s + n * 300, n=n + 1) for n in numbers))
            clock.ahead_s += DAY_S / 24
        results = await app.results(1 + EVENTS)
        made = [json.loads(result.result_json) for result in results[1:]]
        assert [each["n"] for each in made] == list(range(1, EVENTS + 1))
        assert {each["answered"] for each in made} == {False}
        assert {each["log"][0] for each in made} == {"ask ranker: not connected to the cloud"}
        assert len(cloud.tunnel.requests) == asked

        cloud.clock_ahead_s += DAY_S
        await cloud.start()
        status = await app.until(lambda status: status.counters.acked_frame_count == 1 + EVENTS)
        frames = cloud.frames["d1", "hello/out"]
        assert [json.loads(frames[s].payload)["n"] for s in sorted(frames)] == list(range(EVENTS + 1))
        assert status.counters.request_count == 1 + EVENTS
        assert status.counters.answer_count == 1
        await app.send(event("go", "after", n=EVENTS + 1))
        last = (await app.results(2 + EVENTS))[-1]
        assert json.loads(last.result_json) == {"n": EVENTS + 1, "answered": True, "log": []}
        await app.until(lambda status: not status.problems)

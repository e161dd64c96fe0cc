"""A fleet that is told of a release at one moment doesn't ask for it at one moment."""

import asyncio

from libs.common.clock import SystemClock
from libs.common.rand import SystemRandomness
from services.device_agent.app import Agent
from services.device_agent.testing.app import running
from services.device_agent.testing.tasks import task

JITTER_S = 7.25


class _Longest(SystemRandomness):
    """Draws the longest wait there may be before a hinted pull."""

    def uniform(self, a, b):
        return b if b == JITTER_S else super().uniform(a, b)


class _Gated(SystemClock):
    """Sleeps that long when it is told to, and not by the time."""

    def __init__(self):
        self.asleep, self.over = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds):
        if seconds != JITTER_S:
            return await super().sleep(seconds)
        self.asleep.set()
        await self.over.wait()


async def test_a_hinted_pull_waits_for_a_drawn_time_and_the_first_one_does_not(cloud, agent_config):
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2"))
    clock = _Gated()
    await cloud.want("d1", {"hello": "1"})
    agent = Agent(agent_config(hint_jitter_s=JITTER_S), clock=clock, randomness=_Longest())
    async with running(agent) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.until(lambda s: s.push_connected)
        plans = cloud.calls["Plan"]
        await cloud.want("d1", {"hello": "2"}, "r2")
        await clock.asleep.wait()
        assert cloud.calls["Plan"] == plans
        clock.over.set()
        await app.until_state("hello@2", "ACTIVE")


async def test_without_jitter_it_does_not_wait(cloud, agent_config):
    cloud.publish(task())
    clock = _Gated()
    async with running(Agent(agent_config(hint_jitter_s=0.0), clock=clock, randomness=_Longest())) as app:
        await app.until(lambda s: s.push_connected)
        await cloud.want("d1", {"hello": "1"})
        await app.until_state("hello@1", "ACTIVE")
    assert not clock.asleep.is_set()

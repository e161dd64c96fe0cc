import asyncio
import logging

from libs.common.testing import FakeClock
from services.device_agent.signals import Bell, Problems


async def test_a_ring_before_the_wait_is_not_missed():
    bell = Bell()
    seen = bell.rings
    bell.ring()
    assert await bell.wait(seen) == 1


async def test_everybody_who_waits_is_woken():
    bell = Bell()
    waits = [asyncio.create_task(bell.wait(0)) for _ in range(3)]
    await asyncio.sleep(0)
    bell.ring()
    assert await asyncio.gather(*waits) == [1, 1, 1]


async def test_a_wait_ends_with_its_time_and_leaves_nothing_behind():
    bell, clock = Bell(), FakeClock()
    wait = asyncio.create_task(bell.wait_or_sleep(0, clock, 10))
    await clock.wait_for_sleepers()
    clock.advance(10)
    assert await wait == 0
    wait = asyncio.create_task(bell.wait_or_sleep(0, clock, 10))
    await clock.wait_for_sleepers()
    bell.ring()
    assert await wait == 1
    assert clock.sleepers == 0


def test_a_problem_is_logged_once_and_its_end_too(caplog):
    problems = Problems()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            problems.set("pull", "the cloud is away", "UNAVAILABLE")
        assert problems.texts() == ["pull: the cloud is away"]
        problems.clear("pull")
        problems.clear("pull")
    assert len(caplog.records) == 2
    problems.set("version a", "x")
    problems.set("version b", "y")
    problems.clear_all("version ", keep=["version b"])
    assert problems.texts() == ["version b: y"]

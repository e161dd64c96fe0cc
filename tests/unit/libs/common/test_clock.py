import asyncio
from datetime import UTC, timedelta

import pytest

from libs.common.clock import Clock, SystemClock
from libs.common.testing import START, FakeClock


async def test_sleepers_wake_in_the_order_of_their_deadlines() -> None:
    clock = FakeClock()
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
            group.create_task(sleeper(name, seconds))
        await clock.wait_for_sleepers(3)
        assert clock.sleepers == 3
        clock.advance(0.5)
        await asyncio.sleep(0)
        assert woken == []
        clock.advance(10.0)
    assert woken == ["a", "b", "c"]
    assert clock.sleepers == 0


async def test_a_cancelled_sleeper_does_not_disturb_the_others() -> None:
    clock = FakeClock()
    first = asyncio.create_task(clock.sleep(1.0))
    second = asyncio.create_task(clock.sleep(2.0))
    await clock.wait_for_sleepers(2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert clock.sleepers == 1
    clock.advance(2.0)
    await second


def test_both_hands_move_together_and_the_wall_clock_can_step_alone() -> None:
    clock = FakeClock()
    clock.advance(1.5)
    assert (clock.now() - START, clock.monotonic()) == (timedelta(seconds=1.5), 1.5)
    clock.step(-60)
    assert (clock.now() - START, clock.monotonic()) == (timedelta(seconds=-58.5), 1.5)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1.0)


async def test_the_system_clock_is_a_clock() -> None:
    clock: Clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(-1.0)
    assert clock.monotonic() >= before
    assert clock.now().tzinfo is UTC

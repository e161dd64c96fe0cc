"""What was pinned for a job after it was deleted is released."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.common.errors import Unavailable
from libs.common.names import JobName
from libs.common.testing import FakeClock, FakeRandomness, eventually
from services.scheduler.domain.strays import Strays

GONE, THERE = JobName("acme", "gone"), JobName("acme", "there")


class Pins:
    def __init__(self, failures: int = 0) -> None:
        self.released: list[JobName] = []
        self.failures = failures

    async def release(self, job: JobName) -> None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("away")
        self.released.append(job)


@asynccontextmanager
async def running(pins: Pins, clock: FakeClock) -> AsyncIterator[Strays]:
    strays = Strays(pins.release, lambda job: job == THERE, clock, FakeRandomness())
    task = asyncio.create_task(strays.run())
    try:
        yield strays
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_pins_of_jobs_that_are_gone_are_released_and_those_of_others_kept() -> None:
    pins = Pins()
    async with running(pins, FakeClock()) as strays:
        strays.note(THERE)
        strays.note(GONE)
        await eventually(lambda: pins.released == [GONE])
        strays.note(GONE)
        await eventually(lambda: pins.released == [GONE, GONE])


async def test_it_is_tried_again_until_the_deployer_is_there() -> None:
    pins, clock = Pins(failures=2), FakeClock()
    async with running(pins, clock) as strays:
        strays.note(GONE)
        for _ in range(2):
            await clock.wait_for_sleepers()
            clock.advance(30.0)
        await eventually(lambda: pins.released == [GONE])

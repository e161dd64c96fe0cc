import asyncio
import logging
from typing import cast

import pytest

from libs.common.client import Channel
from libs.common.clock import Clock, SystemClock
from libs.common.errors import Unavailable
from libs.common.names import NodeName
from libs.common.rand import SystemRandomness
from services.scheduler.domain.objects import Facts, Resources
from services.scheduler.runner.attachment import Attachment
from services.scheduler.runner.workers import Workers


class Hurried(SystemClock):
    """A clock that sleeps no longer than others need to go on."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


async def test_a_scheduler_that_is_not_up_yet_is_no_warning_but_one_that_stays_away_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dialled, enough = 0, asyncio.Event()

    def away(target: str) -> Channel:
        nonlocal dialled
        dialled += 1
        if dialled > 8:
            enough.set()
        raise Unavailable("nobody is there")

    facts, clock = Facts(Resources(4000, 2**30)), cast("Clock", Hurried())
    attachment = Attachment(
        NodeName("n"), facts, ["127.0.0.1:1"], away, clock=clock, randomness=SystemRandomness()
    )
    with caplog.at_level(logging.INFO, logger="services.scheduler.runner.attachment"):
        task = asyncio.create_task(attachment.run(cast("Workers", None)))
        await asyncio.wait_for(enough.wait(), 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    levels = [record.levelno for record in caplog.records if "not attached" in record.getMessage()]
    assert levels[:7] == [logging.INFO] * 5 + [logging.WARNING] * 2

import asyncio
import errno
import os

import pytest

from libs.common.errors import Exhausted, Invalid
from libs.common.testing import FakeClock
from services.device_agent.patience import Patience
from services.device_agent.signals import Problems


class Disk:
    """Fails as often as told, by each error in turn."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def use(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "done"


FULL = (Exhausted("full", reason="DISK_FULL"), OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)))


@pytest.mark.parametrize("method", ["until_done", "forever"])
async def test_what_passes_is_told_and_waited_for(method):
    clock, problems = FakeClock(), Problems()
    disk = Disk(*FULL)
    waiting = asyncio.create_task(getattr(Patience(clock, problems), method)(disk.use))
    for text in ("disk: full", "Disk quota exceeded"):
        await clock.wait_for_sleepers()
        assert text in problems.texts()[0]
        clock.advance(60.0)
    assert await waiting == "done"
    assert problems.texts() == []


@pytest.mark.parametrize("method", ["until_done", "forever"])
@pytest.mark.parametrize(
    "error", [Invalid("bad"), Exhausted("busy", reason="BACKLOG"), OSError(errno.EACCES, "no")]
)
async def test_anything_else_ends_it(method, error):
    with pytest.raises(type(error)):
        await getattr(Patience(FakeClock(), Problems()), method)(Disk(error).use)

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from libs.common.testing import FakeClock, FakeRandomness
from services.gateway.tunnel.store.files import LogSettings, open_log
from services.gateway.tunnel.store.log import Log
from services.gateway.tunnel.store.memory import MemoryLog

DAY = 86400.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def _memory(clock: FakeClock, folder: Path) -> Log:
    return MemoryLog(clock, partitions=4, retention_age_s=DAY)


async def _files(clock: FakeClock, folder: Path) -> Log:
    # Small segments, so that every test of some size crosses their borders.
    settings = LogSettings(partitions=4, segment_bytes=2048, retention_age_s=DAY)
    return await open_log(folder / "log", settings, clock=clock, randomness=FakeRandomness())


MAKERS: dict[str, Callable[[FakeClock, Path], Awaitable[Log]]] = {"memory": _memory, "files": _files}


@pytest.fixture(params=sorted(MAKERS))
async def log(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Log]:
    log = await MAKERS[request.param](clock, tmp_path)
    yield log
    await log.close()

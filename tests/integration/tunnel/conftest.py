from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from libs.common.testing import FakeClock, FakeRandomness
from services.gateway.tunnel.store.disk import Disk
from services.gateway.tunnel.store.files import FileLog, LogSettings, open_log

Opener = Callable[..., Coroutine[Any, Any, FileLog]]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def opener(clock: FakeClock, tmp_path: Path) -> Opener:
    """Return a function that opens the one log of a test, again and again."""
    randomness = FakeRandomness()

    async def open_it(disk: Disk | None = None, **settings: Any) -> FileLog:
        return await open_log(
            tmp_path / "log",
            LogSettings(**{"partitions": 1, **settings}),
            clock=clock,
            randomness=randomness,
            disk=disk,
        )

    return open_it

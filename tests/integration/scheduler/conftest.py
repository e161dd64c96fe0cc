from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common.etcd.testing import EtcdServer
from services.scheduler.testing import Running, running_scheduler


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    """A scheduler that leads, over a store in memory."""
    async with running_scheduler(tmp_path) as made:
        yield made


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[EtcdServer]:
    folder = tmp_path / "etcd"
    folder.mkdir()
    async with EtcdServer(folder) as server:
        yield server

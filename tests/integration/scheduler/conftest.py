from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common.clock import SystemClock
from libs.common.etcd import EtcdClient
from libs.common.etcd.testing import EtcdServer
from libs.common.rand import SystemRandomness
from services.scheduler.stores.etcd import EtcdStore
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


def etcd_store(server: EtcdServer, *, leader_ttl_s: float = 2.0, liveness_s: float = 5.0) -> EtcdStore:
    client = EtcdClient(server.endpoints, clock=SystemClock(), randomness=SystemRandomness())
    return EtcdStore(client, leader_ttl_s=leader_ttl_s, liveness_s=liveness_s)

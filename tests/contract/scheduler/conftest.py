from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common.clock import SystemClock
from libs.common.etcd import EtcdClient
from libs.common.etcd.testing import EtcdServer
from libs.common.rand import SystemRandomness
from services.scheduler.store import Store
from services.scheduler.stores.etcd import EtcdStore
from services.scheduler.stores.memory import MemoryStore


@pytest.fixture(params=["memory", "etcd"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "memory":
        made: Store = MemoryStore()
        yield made
        await made.close()
        return
    async with EtcdServer(tmp_path) as server:
        client = EtcdClient(server.endpoints, clock=SystemClock(), randomness=SystemRandomness())
        made = EtcdStore(client, leader_ttl_s=2.0, liveness_s=2.0)
        yield made
        await made.close()

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from libs.common.etcd.testing import EtcdServer
from services.scheduler.store import Store
from services.scheduler.stores.memory import MemoryStore
from services.scheduler.testing import etcd_store


@dataclass(frozen=True, slots=True)
class Stored:
    """A store, and how to make it forget its history up to a revision."""

    store: Store
    compact: Callable[[int], Awaitable[None]]


@pytest.fixture(params=["memory", "etcd"])
async def stored(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stored]:
    if request.param == "memory":
        memory = MemoryStore()
        yield Stored(memory, lambda revision: memory.compact())
        await memory.close()
        return
    async with EtcdServer(tmp_path) as server:
        store = etcd_store(server.endpoints)
        yield Stored(store, server.compact)
        await store.close()


@pytest.fixture
def store(stored: Stored) -> Store:
    return stored.store


@pytest.fixture
def compact(stored: Stored) -> Callable[[int], Awaitable[None]]:
    """Make the store forget its history up to a revision."""
    return stored.compact

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.deployer.store import Store
from services.deployer.stores.memory import MemoryStore
from services.deployer.testing import sql_store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else await sql_store(tmp_path)
    yield made
    await made.close()

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common.sql import open_database
from services.deployer.app import MIGRATIONS
from services.deployer.store import Store
from services.deployer.stores.memory import MemoryStore
from services.deployer.stores.sql import SqlStore


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the store is; empty for the one in memory."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql_url"))
    return f"sqlite:///{tmp_path}/deployer.db" if request.param == "sqlite" else ""


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    made: Store
    if database_url:
        made = SqlStore(await open_database(database_url, script_location=MIGRATIONS))
    else:
        made = MemoryStore()
    yield made
    await made.close()

"""An empty store."""

import sqlite3
from collections.abc import Iterator

import pytest

from services.device_agent.testing.store import memory_store


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    """An empty store in memory."""
    connection = memory_store()
    yield connection
    connection.close()

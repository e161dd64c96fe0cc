from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.deployer.testing import Client, Running, running_deployer


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_deployer(tmp_path) as made:
        yield made


@pytest.fixture
async def client(running: Running) -> Client:
    """A tenant's client, with a root installed and a task made."""
    made = running.client()
    await made.install_root()
    await made.create_task()
    return made

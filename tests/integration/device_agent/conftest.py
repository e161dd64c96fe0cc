from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from services.device_agent.testing.app import config
from services.device_agent.testing.cloud import FakeCloud


@pytest.fixture
async def cloud() -> AsyncIterator[FakeCloud]:
    async with FakeCloud() as cloud:
        yield cloud


@pytest.fixture
def agent_config(tmp_path: Path, cloud: FakeCloud) -> Callable[..., Any]:
    """Return what makes the configuration of an agent of this cloud."""
    return lambda **settings: config(tmp_path / "state", cloud, **settings)

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.device_agent.simulator.testing import Bench, running_bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running_bench(tmp_path) as made:
        yield made

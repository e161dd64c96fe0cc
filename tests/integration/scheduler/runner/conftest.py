from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from libs.common.testing import ServerChannel
from libs.common.testing_blobs import MemoryBlobService
from services.scheduler.runner.folder import WorkerFolder
from services.scheduler.runner.keepers import sweep
from services.scheduler.runner.testing import FakeScheduler, RunnerUnderTest, fake_services, running_runner


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
def blobs() -> MemoryBlobService:
    return MemoryBlobService()


@pytest.fixture
async def services(scheduler: FakeScheduler, blobs: MemoryBlobService) -> AsyncIterator[ServerChannel]:
    async with fake_services(scheduler, blobs) as channel:
        yield channel


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The workers' folder; whatever a failed test left running in it is killed."""
    workers = tmp_path / "workers"
    yield workers
    for left in workers.iterdir():
        (left / "stop.none").unlink(missing_ok=True)
        sweep(WorkerFolder(left))


@pytest.fixture
async def runner(folder: Path, services: ServerChannel) -> AsyncIterator[RunnerUnderTest]:
    async with running_runner(folder, services) as made:
        yield made

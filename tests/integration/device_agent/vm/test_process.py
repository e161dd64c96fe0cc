"""One worker process, without the pool."""

import os
import signal
from pathlib import Path

import pytest

from libs.common.errors import Unavailable
from services.device_agent.vm import VmConfig
from services.device_agent.vm.process import WorkerDied, WorkerProcess
from services.device_agent.vm.testing import until
from services.device_agent.vm.wire import unload_request


def names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


@pytest.fixture
def config(tmp_path: Path) -> VmConfig:
    return VmConfig(scratch_dir=tmp_path)


async def test_a_worker_answers_and_ends(config: VmConfig, tmp_path: Path) -> None:
    worker = await WorkerProcess.start(config, tmp_path / "w")
    assert worker.usable
    assert (await worker.call(unload_request("none"), 30.0))["ok"] is True
    ended = await worker.kill()
    assert str(ended) == "signal SIGKILL"
    assert await worker.kill() == ended
    assert names(tmp_path) == []


async def test_a_killed_worker_gets_no_more_work_though_it_may_live_on(
    config: VmConfig, tmp_path: Path
) -> None:
    worker = await WorkerProcess.start(config, tmp_path / "w")
    worker.kill_now()
    assert not worker.usable
    await worker.kill()


async def test_a_worker_whose_stream_has_ended_gets_no_more_work(config: VmConfig, tmp_path: Path) -> None:
    worker = await WorkerProcess.start(config, tmp_path / "w")
    os.kill(worker.pid, signal.SIGKILL)
    await until(lambda: not worker.usable, "the death is seen")
    with pytest.raises(WorkerDied):
        await worker.call(unload_request("none"), 30.0)
    await worker.kill()


async def test_nothing_is_left_when_a_process_cannot_be_watched(
    config: VmConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def refuse(pid: int, flags: int = 0) -> int:
        started.append(pid)
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    descriptors = len(names(Path("/proc/self/fd")))
    with pytest.raises(Unavailable, match="Function not implemented"):
        await WorkerProcess.start(config, tmp_path / "w")
    assert str(started[0]) not in names(Path("/proc"))
    assert len(names(Path("/proc/self/fd"))) == descriptors
    assert names(tmp_path) == []

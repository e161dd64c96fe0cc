"""Workers with users of their own: what they can't reach, and that they end like others."""

import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from libs.common.testing import ServerChannel, eventually
from libs.common.testing_blobs import MemoryBlobService
from services.scheduler.runner.folder import WorkerFolder
from services.scheduler.runner.keepers import sweep
from services.scheduler.runner.testing import FakeScheduler, RunnerUnderTest, running_runner
from services.scheduler.runner.users import Users

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs as other users")

# Another range for each process that tests: what one leaves behind is killed by its user.
FIRST = 1_000_000 + 10 * os.getpid()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that others get through; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="isthmus-runner-") as name:
        Path(name).chmod(0o711)
        yield Path(name) / "workers"
        for user_id in range(FIRST, FIRST + 10):
            sweep(WorkerFolder(Path(name)), user_id)


@pytest.fixture
async def runner(open_folder: Path, services: ServerChannel) -> AsyncIterator[RunnerUnderTest]:
    async with running_runner(open_folder, services, users=Users(FIRST, FIRST + 9)) as made:
        yield made


async def test_a_worker_is_somebody_else_and_owns_what_it_works_on(
    runner: RunnerUnderTest, scheduler: FakeScheduler, blobs: MemoryBlobService
) -> None:
    script = blobs.put("acme", b"#!/bin/sh\nid -u; id -g; id -G; echo x > in/out; cat in/out; rm run.sh\n")
    data = blobs.put("acme", b"data")
    worker = scheduler.start(
        ["./run.sh"],
        files=[("run.sh", script, True), ("in/data", data, False)],
        artefacts=[("made", "in/out")],
    )
    report = await scheduler.until_ended(worker)
    log = await scheduler.whole_log(worker)
    assert (report.worker.exit_code, log) == (0, f"{FIRST}\n{FIRST}\n{FIRST}\nx\n".encode())
    assert [kept.id for kept in report.artefacts] == ["made"]


async def test_workers_reach_neither_each_other_nor_the_runner(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    first = scheduler.start(["sh", "-c", "echo secret > mine; echo ready; sleep 1000"], "one")
    await scheduler.until(lambda: scheduler.log(first) == b"ready\n")
    other = runner.folder / "oneuid-1-0"
    script = f"""
cat {other}/job/mine && echo READ
cat ../start && echo READ
cat {other}/launch && echo READ
ls {runner.folder} && echo READ
touch ../exit && echo WROTE
rm -f ../stop.none && echo WROTE
kill -9 {os.getpid()} && echo KILLED
echo tried
"""
    second = scheduler.start(["sh", "-c", script], "two")
    log = await scheduler.whole_log(second)
    assert b"tried" in log
    assert not [word for word in (b"READ", b"WROTE", b"KILLED", b"secret\n") if word in log]
    scheduler.stop(first)
    assert (await scheduler.until_ended(first)).worker.reason == "CANCELLED"


async def test_one_dies_with_its_keeper_and_whatever_it_hid(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    # Without the mark in its environment only its user tells whose it is.
    script = "env -i setsid sleep 5551212 & echo $!; echo $$; sleep 1000"
    worker = scheduler.start(["sh", "-c", script])
    await scheduler.until(lambda: scheduler.log(worker).count(b"\n") == 2)
    keeper = int((runner.folder / "trainuid-1-0" / "shim").read_bytes().split(b"\0")[0].partition(b"=")[2])
    os.kill(keeper, signal.SIGKILL)
    assert (await scheduler.until_ended(worker)).worker.reason == "LOST"
    assert [pid for pid in scheduler.log(worker).split() if is_alive(int(pid))] == []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_users_go_back_when_their_workers_are_forgotten_and_stay_over_a_restart(
    open_folder: Path, services: ServerChannel, scheduler: FakeScheduler
) -> None:
    async with running_runner(open_folder, services, users=Users(FIRST, FIRST + 1)):
        first = scheduler.start(["sleep", "1000"], "one")
        await scheduler.until_running(first)
    async with running_runner(open_folder, services, users=Users(FIRST, FIRST + 1)) as runner:
        second = scheduler.start(["id", "-u"], "two")
        assert await scheduler.whole_log(second) == f"{FIRST + 1}\n".encode()
        third = scheduler.start(["true"], "three")
        ended = (await scheduler.until_ended(third)).worker
        assert (ended.reason, "--worker-users" in ended.message) == ("START_FAILED", True)
        scheduler.forget(second)
        await eventually(lambda: runner.folders == ["oneuid-1-0"])
        fourth = scheduler.start(["id", "-u"], "four")
        assert await scheduler.whole_log(fourth) == f"{FIRST + 1}\n".encode()
        scheduler.forget(first)
        scheduler.forget(fourth)
        await eventually(lambda: runner.folders == [])

"""Runners, keepers and schedulers that go away: nothing is started twice, lost or left behind."""

import os
import signal
from pathlib import Path

from isthmus.scheduler.v1 import object_pb2
from libs.common.retry import RetryPolicy
from libs.common.testing import ServerChannel, eventually
from libs.common.testing_blobs import MemoryBlobService
from services.scheduler.runner.folder import WorkerFolder
from services.scheduler.runner.testing import (
    FakeScheduler,
    RunnerUnderTest,
    fake_services,
    running_runner,
    worker_id,
)

EXITED, FAILED = object_pb2.Worker.STATE_EXITED, object_pb2.Worker.STATE_FAILED
STARTING = object_pb2.Worker.STATE_STARTING
PATIENT = RetryPolicy(attempts=1_000_000, base_s=0.01, cap_s=0.02)


def keeper(runner: RunnerUnderTest, name: str = "trainuid-1-0") -> int:
    """Return the process id of a worker's keeper."""
    record = WorkerFolder(runner.folder / name).keeper()
    assert record is not None
    return int(record["pid"])


def works_in(pid: int) -> Path:
    """Return a process's working directory."""
    return Path(f"/proc/{pid}/cwd").readlink()


def alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_the_next_runner_goes_on_with_what_runs(
    folder: Path, services: ServerChannel, scheduler: FakeScheduler, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = f"echo one; while [ ! -e {go} ]; do sleep 0.05; done; echo two; exit 9"
    async with running_runner(folder, services):
        worker = scheduler.start(["sh", "-c", script])
        started = await scheduler.until_running(worker)
        await scheduler.until(lambda: scheduler.log(worker) == b"one\n")
    async with running_runner(folder, services):
        await scheduler.until(lambda: len(scheduler.hellos) == 2)
        again = await scheduler.until_running(worker)
        assert again.start_time == started.start_time
        go.touch()
        ended = (await scheduler.until_ended(worker)).worker
        assert (ended.exit_code, ended.start_time) == (9, started.start_time)
        assert await scheduler.whole_log(worker) == b"one\ntwo\n"


async def test_what_ended_meanwhile_is_told_by_the_next_runner(
    folder: Path, services: ServerChannel, scheduler: FakeScheduler, blobs: MemoryBlobService, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.05; done; echo made > out"
    async with running_runner(folder, services) as runner:
        worker = scheduler.start(["sh", "-c", script], artefacts=[("model", "out")])
        await scheduler.until_running(worker)
        pid = keeper(runner)
    go.touch()
    await eventually(lambda: not alive(pid))
    assert blobs.blobs == {}
    async with running_runner(folder, services):
        report = await scheduler.until_ended(worker)
    assert (report.worker.exit_code, report.worker.reason) == (0, "")
    assert list(blobs.blobs.values()) == [b"made\n"]
    assert [kept.id for kept in report.artefacts] == ["model"]


async def test_a_worker_that_ended_is_told_again_until_it_is_forgotten(
    folder: Path, services: ServerChannel, scheduler: FakeScheduler
) -> None:
    async with running_runner(folder, services):
        worker = scheduler.start(["sh", "-c", "exit 4"])
        await scheduler.until_ended(worker)
    scheduler.reports.clear()
    async with running_runner(folder, services) as runner:
        assert (await scheduler.until_ended(worker)).worker.exit_code == 4
        scheduler.forget(worker)
        await eventually(lambda: runner.folders == [])
    async with running_runner(folder, services):
        await scheduler.until(lambda: len(scheduler.hellos) == 3)
    assert list(scheduler.hellos[-1].workers) == []


async def test_an_end_that_was_asked_for_comes_though_nobody_waits_for_it(
    folder: Path, services: ServerChannel, scheduler: FakeScheduler
) -> None:
    ignores = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    async with running_runner(folder, services) as runner:
        worker = scheduler.start(["sh", "-c", ignores], grace_s=0.5)
        await scheduler.until(lambda: scheduler.log(worker) == b"ready\n")
        pid = keeper(runner)
        scheduler.stop(worker)
        stop = runner.folder / "trainuid-1-0" / "stop.CANCELLED"
        await eventually(stop.exists)
    await eventually(lambda: not alive(pid))
    async with running_runner(folder, services):
        ended = (await scheduler.until_ended(worker)).worker
    assert (ended.reason, ended.exit_code) == ("CANCELLED", 137)


async def test_one_whose_keeper_is_killed_dies_and_is_lost(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    script = "(setsid sh -c 'echo $$; sleep 1000' &) ; echo $$; sleep 1000"
    worker = scheduler.start(["sh", "-c", script])
    await scheduler.until(lambda: scheduler.log(worker).count(b"\n") == 2)
    pids = [int(line) for line in scheduler.log(worker).split()]
    os.kill(keeper(runner), signal.SIGKILL)
    ended = (await scheduler.until_ended(worker)).worker
    assert (ended.state, ended.reason) == (FAILED, "LOST")
    assert ended.HasField("start_time")
    await eventually(lambda: not any(map(alive, pids)))


async def test_a_keeper_heeds_no_signal_that_is_meant_for_the_runner(
    runner: RunnerUnderTest, scheduler: FakeScheduler, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    worker = scheduler.start(["sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done; exit 8"])
    await scheduler.until_running(worker)
    assert works_in(keeper(runner)) == runner.folder / "trainuid-1-0"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        os.kill(keeper(runner), number)
    go.touch()
    ended = (await scheduler.until_ended(worker)).worker
    assert (ended.exit_code, ended.reason) == (8, "")


async def test_one_whose_keeper_was_killed_meanwhile_is_lost(
    folder: Path, services: ServerChannel, scheduler: FakeScheduler
) -> None:
    async with running_runner(folder, services) as runner:
        worker = scheduler.start(["sh", "-c", "echo $$; sleep 1000"])
        await scheduler.until(lambda: scheduler.log(worker).endswith(b"\n"))
        pid = keeper(runner)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not alive(pid))
    async with running_runner(folder, services):
        ended = (await scheduler.until_ended(worker)).worker
    assert (ended.state, ended.reason) == (FAILED, "LOST")
    await eventually(lambda: not alive(int(scheduler.log(worker))))


async def test_a_process_that_took_the_keepers_number_is_left_alone(
    folder: Path, services: ServerChannel, scheduler: FakeScheduler
) -> None:
    async with running_runner(folder, services) as runner:
        worker = scheduler.start(["sleep", "1000"])
        await scheduler.until_running(worker)
        pid, path = keeper(runner), runner.folder / "trainuid-1-0"
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not alive(pid))
    # As if the number had been given to somebody else: to this very process.
    record = (path / "shim").read_bytes().replace(f"pid={pid}".encode(), f"pid={os.getpid()}".encode())
    (path / "shim").write_bytes(record)
    async with running_runner(folder, services):
        assert (await scheduler.until_ended(worker)).worker.reason == "LOST"


async def test_a_worker_whose_files_were_being_fetched_is_started_by_the_next_runner(
    folder: Path, services: ServerChannel, scheduler: FakeScheduler, blobs: MemoryBlobService
) -> None:
    ref = blobs.put("acme", b"data")
    blobs.fail = 1_000_000
    async with running_runner(folder, services, fetching=PATIENT):
        worker = scheduler.start(["cat", "x"], files=[("x", ref, False)])
        await eventually(lambda: "ReadBlob" in blobs.calls)
        scheduler.hang_up()
        await scheduler.until(lambda: len(scheduler.hellos) == 2)
        assert [told.worker.state for told in scheduler.hellos[-1].workers] == [STARTING]
    blobs.fail = 0
    async with running_runner(folder, services):
        assert (await scheduler.until_ended(worker)).worker.exit_code == 0
        assert await scheduler.whole_log(worker) == b"data"


async def test_one_that_is_cancelled_while_its_files_are_fetched_never_starts(
    folder: Path, services: ServerChannel, scheduler: FakeScheduler, blobs: MemoryBlobService
) -> None:
    ref = blobs.put("acme", b"data")
    blobs.fail = 1_000_000
    async with running_runner(folder, services, fetching=PATIENT) as runner:
        worker = scheduler.start(["cat", "x"], files=[("x", ref, False)])
        await eventually(lambda: "ReadBlob" in blobs.calls)
        scheduler.stop(worker)
        ended = (await scheduler.until_ended(worker)).worker
        assert (ended.state, ended.reason) == (FAILED, "CANCELLED")
        assert not (runner.folder / "trainuid-1-0" / "launch").exists()


async def test_one_that_is_cancelled_while_its_artefacts_are_kept_is_over(
    folder: Path, services: ServerChannel, scheduler: FakeScheduler, blobs: MemoryBlobService
) -> None:
    blobs.fail = 1_000_000
    async with running_runner(folder, services, keeping=PATIENT):
        worker = scheduler.start(["touch", "out"], artefacts=[("model", "out")])
        await eventually(lambda: "BeginBlob" in blobs.calls)
        scheduler.stop(worker)
        assert (await scheduler.until_ended(worker)).worker.reason == "ARTEFACT_MISSING"


async def test_a_scheduler_that_goes_away_gets_everything_when_it_is_back(
    runner: RunnerUnderTest, scheduler: FakeScheduler, tmp_path: Path
) -> None:
    scheduler.acknowledges = False
    go = tmp_path / "go"
    script = f"echo one; while [ ! -e {go} ]; do sleep 0.05; done; echo two; exit 3"
    worker = scheduler.start(["sh", "-c", script])
    await scheduler.until_running(worker)
    scheduler.refuse = 2
    scheduler.hang_up()
    go.touch()
    await scheduler.until(lambda: len(scheduler.hellos) == 2)
    assert worker in [told.id for told in scheduler.hellos[-1].workers]
    assert (await scheduler.until_ended(worker)).worker.exit_code == 3
    assert await scheduler.whole_log(worker) == b"one\ntwo\n"


async def test_reports_are_repeated_until_they_are_acknowledged(
    folder: Path, services: ServerChannel, scheduler: FakeScheduler
) -> None:
    scheduler.acknowledges = False
    async with running_runner(folder, services, repeat_s=0.05) as runner:
        worker = scheduler.start(["true"])
        await scheduler.until(lambda: sum(r.worker.state == EXITED for r in scheduler.reports) >= 3)
        scheduler.acknowledges = True
        await eventually(lambda: len(runner.workers.outbox) == 0)
        assert (await scheduler.until_ended(worker)).worker.exit_code == 0


async def test_a_runner_says_that_it_is_there(folder: Path, blobs: MemoryBlobService) -> None:
    scheduler = FakeScheduler(liveness_s=0.5)
    async with fake_services(scheduler, blobs) as channel, running_runner(folder, channel):
        await scheduler.until(lambda: scheduler.heartbeats >= 3)


async def test_a_log_survives_a_scheduler_that_loses_pieces(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    scheduler.lose_log = 3
    worker = scheduler.start(["sh", "-c", "seq 200000"])
    log = await scheduler.whole_log(worker)
    assert log == "".join(f"{number}\n" for number in range(1, 200_001)).encode()


async def test_a_scheduler_that_forgot_part_of_a_log_gets_it_again(
    runner: RunnerUnderTest, scheduler: FakeScheduler, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    worker = scheduler.start(["sh", "-c", f"echo one; while [ ! -e {go} ]; do sleep 0.05; done; echo two"])
    await scheduler.until(lambda: scheduler.log(worker) == b"one\n")
    scheduler.logs[worker.job_uid, 1, 0] = b"o"
    go.touch()
    assert await scheduler.whole_log(worker) == b"one\ntwo\n"


async def test_a_log_that_nobody_wants_doesnt_hold_the_report(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    scheduler.unwanted_logs = True
    worker = scheduler.start(["echo", "x"])
    assert (await scheduler.until_ended(worker)).worker.exit_code == 0
    scheduler.forget(worker)
    await eventually(lambda: runner.folders == [])
    assert worker == worker_id("train")

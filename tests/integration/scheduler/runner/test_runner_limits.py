"""What a worker may not do: take more than it was given, stay for longer, leave something behind."""

import errno
import os
import sys
from pathlib import Path

import pytest

from isthmus.scheduler.v1 import object_pb2
from libs.common.testing import ServerChannel, eventually
from services.scheduler.runner.folder import WorkerFolder
from services.scheduler.runner.keepers import sweep
from services.scheduler.runner.testing import FakeScheduler, RunnerUnderTest, running_runner

EXITED = object_pb2.Worker.STATE_EXITED
MIB = 2**20
# How long a process sleeps that is looked for: a number that no other process that tests uses.
LONG = str(10**8 + os.getpid())
HUNGRY = """
import sys, time
kept = []
while True:
    kept.append(bytearray(b"x") * (8 * 2**20))
    time.sleep(0.01)
"""
IGNORES = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


def processes_with(text: str) -> list[int]:
    """Return the processes whose command line holds a text."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            try:
                line = (path / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in line:
                found.append(int(path.name))
    return found


async def test_one_that_takes_too_much_memory_is_ended(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    worker = scheduler.start([sys.executable, "-c", HUNGRY], memory_bytes=128 * MIB)
    ended = (await scheduler.until_ended(worker)).worker
    assert (ended.state, ended.reason, ended.exit_code) == (EXITED, "OUT_OF_MEMORY", 137)
    assert ended.peak_memory_bytes > 128 * MIB
    assert "128 MiB" in ended.message


async def test_the_memory_of_a_workers_children_counts(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HUNGRY!r}])"
    worker = scheduler.start([sys.executable, "-c", script], memory_bytes=128 * MIB)
    assert (await scheduler.until_ended(worker)).worker.reason == "OUT_OF_MEMORY"


async def test_memory_that_processes_share_counts_once(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    script = """
import os, time
shared = bytearray(b"x") * (60 * 2**20)
children = []
for _ in range(4):
    pid = os.fork()
    if not pid:
        time.sleep(1)
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
"""
    worker = scheduler.start([sys.executable, "-c", script], memory_bytes=160 * MIB)
    ended = (await scheduler.until_ended(worker)).worker
    assert (ended.exit_code, ended.reason) == (0, "")
    assert 60 * MIB < ended.peak_memory_bytes < 160 * MIB


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(f"for i in $(seq 40); do sleep {LONG} & done; wait", id="many"),
        # Each makes two more, seven generations long.
        pytest.param(
            f"f() {{ [ $1 = 7 ] && sleep {LONG}; f $(($1+1)) & f $(($1+1)) & wait; }}; f 0", id="a bomb"
        ),
    ],
)
async def test_one_with_too_many_processes_is_ended(
    folder: Path, services: ServerChannel, scheduler: FakeScheduler, script: str
) -> None:
    async with running_runner(folder, services, process_count=20):
        worker = scheduler.start(["sh", "-c", script])
        ended = (await scheduler.until_ended(worker)).worker
        assert ended.reason == "TOO_MANY_PROCESSES"
        assert "processes and may have" in ended.message
    assert processes_with(LONG) == []


async def test_at_the_deadline_it_is_over(runner: RunnerUnderTest, scheduler: FakeScheduler) -> None:
    worker = scheduler.start(["sleep", "1000"], deadline_s=0.5)
    ended = (await scheduler.until_ended(worker)).worker
    assert (ended.state, ended.reason, ended.exit_code) == (EXITED, "DEADLINE", 143)


async def test_who_heeds_sigterm_ends_in_his_own_way(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    script = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    worker = scheduler.start(["sh", "-c", script], grace_s=60)
    await scheduler.until(lambda: scheduler.log(worker) == b"ready\n")
    scheduler.stop(worker)
    ended = (await scheduler.until_ended(worker)).worker
    assert (ended.reason, ended.exit_code) == ("CANCELLED", 3)
    assert (await scheduler.whole_log(worker)).endswith(b"bye\n")


async def test_who_ignores_sigterm_is_killed_after_the_grace(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    worker = scheduler.start(["sh", "-c", IGNORES], grace_s=0.3)
    await scheduler.until(lambda: scheduler.log(worker) == b"ready\n")
    scheduler.stop(worker, "SIBLING_FAILED")
    ended = (await scheduler.until_ended(worker)).worker
    assert (ended.reason, ended.exit_code) == ("SIBLING_FAILED", 137)


async def test_a_stopped_process_can_be_ended_too(runner: RunnerUnderTest, scheduler: FakeScheduler) -> None:
    script = "import os, signal; print('ready', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    worker = scheduler.start([sys.executable, "-c", script], grace_s=60)
    await scheduler.until(lambda: scheduler.log(worker) == b"ready\n")
    scheduler.stop(worker)
    assert (await scheduler.until_ended(worker)).worker.exit_code == 143


async def test_the_first_reason_to_end_stays(runner: RunnerUnderTest, scheduler: FakeScheduler) -> None:
    worker = scheduler.start(["sh", "-c", IGNORES], grace_s=0.3)
    await scheduler.until(lambda: scheduler.log(worker) == b"ready\n")
    scheduler.stop(worker, "SIBLING_FAILED")
    scheduler.stop(worker, "CANCELLED")
    assert (await scheduler.until_ended(worker)).worker.reason == "SIBLING_FAILED"


async def test_whatever_a_worker_leaves_behind_ends_with_it(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    script = f"sleep {LONG} & setsid sleep {LONG} & (setsid sh -c 'sleep {LONG} & sleep {LONG}' &) ; exit 5"
    worker = scheduler.start(["sh", "-c", script])
    ended = (await scheduler.until_ended(worker)).worker
    assert (ended.exit_code, ended.reason) == (5, "")
    assert processes_with(LONG) == []


async def test_the_end_of_one_leaves_the_others_alone(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    first, second = scheduler.start(["sleep", "1000"], "one"), scheduler.start(["sleep", "1000"], "two")
    await scheduler.until_running(first)
    await scheduler.until_running(second)
    scheduler.stop(first)
    await scheduler.until_ended(first)
    assert scheduler.state(second) == object_pb2.Worker.STATE_RUNNING
    scheduler.stop(second)
    await scheduler.until_ended(second)


async def test_much_output_is_kept_up_to_the_bound_and_the_rest_counted(
    folder: Path, services: ServerChannel, scheduler: FakeScheduler
) -> None:
    async with running_runner(folder, services, log_bytes=3 * MIB):
        worker = scheduler.start(["sh", "-c", "echo begin; head -c 100000000 /dev/zero; echo end"])
        assert (await scheduler.until_ended(worker)).worker.exit_code == 0
        log = await scheduler.whole_log(worker)
    written = 100_000_000 + len("begin\nend\n")
    assert log.startswith(b"begin\n\0\0")
    kept, note = log[: 3 * MIB], log[3 * MIB :]
    assert kept == b"begin\n" + bytes(3 * MIB - 6)
    assert note == f"\n[isthmus: {written - 3 * MIB} more bytes of output were dropped]\n".encode()


async def test_output_may_be_any_bytes_and_needs_no_line_ends(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4096)"
    worker = scheduler.start([sys.executable, "-c", script])
    assert await scheduler.whole_log(worker) == bytes(range(256)) * 4096


async def test_one_that_closes_its_output_goes_on(runner: RunnerUnderTest, scheduler: FakeScheduler) -> None:
    worker = scheduler.start(["sh", "-c", "echo x; exec >&- 2>&-; sleep 0.3; exit 4"])
    assert (await scheduler.until_ended(worker)).worker.exit_code == 4
    assert await scheduler.whole_log(worker) == b"x\n"


async def test_a_full_disk_costs_output_but_not_the_worker(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    script = (
        "ls ../log >/dev/null; rm ../log; ln -s /dev/full ../log; for i in 1 2 3; do echo x; done; exit 6"
    )
    worker = scheduler.start(["sh", "-c", script])
    # The keeper holds the old file open: it must neither fail nor follow the link.
    assert (await scheduler.until_ended(worker)).worker.exit_code == 6


@pytest.mark.parametrize("name", ["exit", "running", "shim", "launch"])
async def test_a_worker_that_takes_its_own_records_away_ends_all_the_same(
    runner: RunnerUnderTest, scheduler: FakeScheduler, name: str
) -> None:
    worker = scheduler.start(["sh", "-c", f"sleep 0.2; rm -f ../{name} ../{name}.tmp; exit 6"])
    ended = (await scheduler.until_ended(worker)).worker
    assert ended.state in (EXITED, object_pb2.Worker.STATE_FAILED)
    assert ended.exit_code == 6 or ended.reason == "LOST"


async def test_nobody_is_left_when_a_worker_is_killed_from_outside(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    worker = scheduler.start(["sh", "-c", f"echo $$; sleep {LONG}"])
    await scheduler.until(lambda: scheduler.log(worker).endswith(b"\n"))
    os.kill(int(scheduler.log(worker)), 9)
    ended = (await scheduler.until_ended(worker)).worker
    assert (ended.state, ended.exit_code, ended.reason) == (EXITED, 137, "")
    assert "SIGKILL" in ended.message
    await eventually(lambda: processes_with(LONG) == [])


def test_sweeping_what_was_never_there_is_well(tmp_path: Path) -> None:
    assert sweep(WorkerFolder(tmp_path))


@pytest.mark.parametrize("name", ["exit", "running", "shim", "launch", "lock", "log", "start"])
@pytest.mark.parametrize(
    "how", ["echo garbage > {}", "rm -f {0}; mkfifo {0}", "rm -f {0}; ln -s /dev/zero {0}"]
)
async def test_a_worker_that_scribbles_over_its_records_harms_only_itself(
    runner: RunnerUnderTest, scheduler: FakeScheduler, name: str, how: str
) -> None:
    scribbler = scheduler.start(["sh", "-c", f"{how.format('../' + name)}; kill -9 $PPID; sleep 1000"])
    assert (await scheduler.until_ended(scribbler)).worker.reason == "LOST"
    scheduler.forget(scribbler)
    other = scheduler.start(["sh", "-c", "exit 3"], "other")
    assert (await scheduler.until_ended(other)).worker.exit_code == 3


async def test_a_node_without_room_for_a_worker_says_so(
    runner: RunnerUnderTest, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("services.scheduler.runner.folder.Path.touch", full)
        worker = scheduler.start(["true"])
        ended = (await scheduler.until_ended(worker)).worker
    assert (ended.state, ended.reason) == (object_pb2.Worker.STATE_FAILED, "START_FAILED")
    assert "the disk is full" in ended.message
    assert runner.folders == []


async def test_a_fault_of_the_runner_ends_the_worker_and_not_the_runner(
    runner: RunnerUnderTest, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    with monkeypatch.context() as patched:
        patched.setattr("services.scheduler.runner.life.assignments.running", broken)
        worker = scheduler.start(["sh", "-c", f"echo $$; sleep {LONG}"])
        assert (await scheduler.until_ended(worker)).worker.reason == "LOST"
        patched.setattr("services.scheduler.runner.folder.Path.touch", broken)
        other = scheduler.start(["true"], "other")
        assert (await scheduler.until_ended(other)).worker.reason == "START_FAILED"
    assert processes_with(LONG) == []
    third = scheduler.start(["sh", "-c", "exit 3"], "third")
    assert (await scheduler.until_ended(third)).worker.exit_code == 3

"""Starting, queueing, cancelling, unloading, closing."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from libs.common.clock import SystemClock
from libs.common.errors import Exhausted, NotFound, Unavailable
from libs.common.rand import SystemRandomness
from services.device_agent.vm import Execution, Outcome, Reason, TaskVm, VmConfig
from services.device_agent.vm.testing import build_task, until

FINE = "def post(c): return {'pid': __import__('os').getpid()}"
GATED = """
    import os, time
    def post(c):
        open(f"started-{c.task}", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.005)
        return {"task": c.task}
    """


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


class Gate:
    """Holds the runs of a one-worker VM until it is opened."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch

    async def wait(self, task: str) -> None:
        await until(lambda: any(self._scratch.glob(f"worker-*/started-{task}")), f"{task} has started")

    def open(self) -> None:
        for folder in self._scratch.glob("worker-*"):
            (folder / "go").touch()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "scratch")


async def test_a_task_prefers_the_worker_that_has_it_loaded(make_vm) -> None:
    vm = await make_vm(workers=2)
    for name in ("a", "b"):
        await vm.load(build_task(FINE, task=name))
    for name in ("a", "b"):
        pids = {str((await vm.execute(Execution(name, "1"))).value) for _ in range(10)}
        assert len(pids) == 1


async def test_runs_use_all_workers_at_once(make_vm, tmp_path: Path, gate: Gate) -> None:
    vm = await make_vm(workers=2)
    await vm.load(build_task(GATED))
    runs = [asyncio.create_task(vm.execute(Execution("probe", "1"))) for _ in range(2)]
    await until(lambda: len(list((tmp_path / "scratch").glob("worker-*/started-probe"))) == 2, "both run")
    assert vm.stats().running == 2
    gate.open()
    assert all(o.ok for o in await asyncio.gather(*runs))


async def test_one_tasks_backlog_does_not_starve_another(vm: TaskVm, gate: Gate) -> None:
    order: list[str] = []
    for name in ("greedy", "modest"):
        await vm.load(build_task(GATED, task=name))

    async def execute(name: str) -> None:
        assert (await vm.execute(Execution(name, "1"))).ok
        order.append(name)

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(execute("greedy"))
        await gate.wait("greedy")
        group.create_task(execute("modest"))
        await until(lambda: vm.stats().queued == 20, "twenty runs wait")
        gate.open()
    assert "modest" in order[:3]


async def test_the_oldest_waiting_run_of_a_task_gives_way(vm: TaskVm, gate: Gate) -> None:
    await vm.load(build_task(GATED, pending_count=2))
    runs = [asyncio.create_task(vm.execute(Execution("probe", "1")))]
    await gate.wait("probe")
    runs += [asyncio.create_task(vm.execute(Execution("probe", "1"))) for _ in range(4)]
    await until(lambda: vm.stats().dropped == 2, "two runs were dropped")
    gate.open()
    results = await asyncio.gather(*runs, return_exceptions=True)
    assert [type(r) for r in results] == [Outcome, Exhausted, Exhausted, Outcome, Outcome]
    assert isinstance(results[1], Exhausted)
    assert results[1].reason == "RUN_DROPPED"


async def test_a_full_queue_refuses_new_runs(make_vm, gate: Gate) -> None:
    vm = await make_vm(workers=1, max_queued=1)
    await vm.load(build_task(GATED))
    runs = [asyncio.create_task(vm.execute(Execution("probe", "1")))]
    await gate.wait("probe")
    runs.append(asyncio.create_task(vm.execute(Execution("probe", "1"))))
    await until(lambda: vm.stats().queued == 1, "one run waits")
    with pytest.raises(Exhausted) as caught:
        await vm.execute(Execution("probe", "1"))
    assert caught.value.reason == "VM_QUEUE_FULL"
    assert caught.value.retry_after_s
    gate.open()
    assert all(o.ok for o in await asyncio.gather(*runs))


async def test_a_run_waits_only_so_long(make_vm, gate: Gate) -> None:
    vm = await make_vm(workers=1, max_wait_s=0.2)
    await vm.load(build_task(GATED))
    first = asyncio.create_task(vm.execute(Execution("probe", "1")))
    await gate.wait("probe")
    with pytest.raises(Exhausted, match=r"has waited 0\.2 s"):
        await vm.execute(Execution("probe", "1"))
    gate.open()
    assert (await first).ok


async def test_cancelling_a_waiting_run_leaves_the_worker_alone(vm: TaskVm, gate: Gate) -> None:
    await vm.load(build_task(GATED))
    first = asyncio.create_task(vm.execute(Execution("probe", "1")))
    await gate.wait("probe")
    second = asyncio.create_task(vm.execute(Execution("probe", "1")))
    await until(lambda: vm.stats().queued == 1, "one run waits")
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert vm.stats().queued == 0
    gate.open()
    assert (await first).ok
    assert vm.stats().starts == 1


async def test_cancelling_a_started_run_kills_its_worker(vm: TaskVm, gate: Gate) -> None:
    await vm.load(build_task(GATED))
    (pid,) = vm.worker_pids()
    run = asyncio.create_task(vm.execute(Execution("probe", "1")))
    await gate.wait("probe")
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await until(lambda: vm.stats().deaths == {"cancelled": 1}, "the worker was killed")
    await vm.load(build_task(FINE, task="fine"))
    outcome = await vm.execute(Execution("fine", "1"))
    assert outcome.value != {"pid": pid}
    assert outcome.ok


async def test_runs_cancelled_at_any_moment_never_fail_another(make_vm) -> None:
    vm = await make_vm(workers=2)
    await vm.load(build_task(FINE))
    for turns in range(100):
        victim = asyncio.create_task(vm.execute(Execution("probe", "1")))
        others = [asyncio.create_task(vm.execute(Execution("probe", "1"))) for _ in range(3)]
        await asyncio.sleep(turns % 20 * 1e-4)
        victim.cancel()
        await asyncio.wait([victim])
        for other in others:
            assert (await other).ok
    assert set(vm.stats().deaths) <= {"cancelled"}


async def test_unloading_ends_waiting_runs_and_refuses_new_ones(vm: TaskVm, gate: Gate) -> None:
    await vm.load(build_task(GATED))
    first = asyncio.create_task(vm.execute(Execution("probe", "1")))
    await gate.wait("probe")
    second = asyncio.create_task(vm.execute(Execution("probe", "1")))
    await until(lambda: vm.stats().queued == 1, "one run waits")
    await vm.unload("probe", "1")
    assert (await second).reason is Reason.UNLOADED
    with pytest.raises(NotFound) as caught:
        await vm.execute(Execution("probe", "1"))
    assert caught.value.reason == "TASK_NOT_LOADED"
    gate.open()
    assert (await first).ok
    await vm.unload("probe", "1")  # nothing happens


async def test_a_worker_lets_go_of_what_was_unloaded(vm: TaskVm) -> None:
    source = "import sys\ndef post(c): return {'n': sum(name.startswith('task:') for name in sys.modules)}"
    for n in range(3):
        await vm.load(build_task(source, task=f"t{n}"))
    assert (await vm.execute(Execution("t0", "1"))).value == {"n": 3}
    await vm.unload("t1", "1")
    await vm.unload("t2", "1")
    assert (await vm.execute(Execution("t0", "1"))).value == {"n": 1}


async def test_closing_ends_everything(vm: TaskVm, gate: Gate, tmp_path: Path) -> None:
    await vm.load(build_task(GATED))
    pids = vm.worker_pids()
    runs = [asyncio.create_task(vm.execute(Execution("probe", "1")))]
    await gate.wait("probe")
    runs.append(asyncio.create_task(vm.execute(Execution("probe", "1"))))
    await until(lambda: vm.stats().queued == 1, "one run waits")
    await vm.close()
    for result in await asyncio.gather(*runs, return_exceptions=True):
        assert isinstance(result, Unavailable)
        assert result.reason == "VM_CLOSING"
    assert not any(alive(pid) for pid in pids)
    assert list((tmp_path / "scratch").iterdir()) == []
    with pytest.raises(Unavailable):
        await vm.execute(Execution("probe", "1"))
    await vm.close()


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/false"])
async def test_a_python_that_cannot_start_is_named(tmp_path: Path, python: str) -> None:
    config = VmConfig(scratch_dir=tmp_path / "scratch", python=python)
    vm = TaskVm(config, clock=SystemClock(), randomness=SystemRandomness())
    with pytest.raises(Unavailable, match="worker"):
        await vm.start()
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_a_worker_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    config = VmConfig(scratch_dir=tmp_path / "scratch", python=str(python), start_timeout_s=0.2)
    vm = TaskVm(config, clock=SystemClock(), randomness=SystemRandomness())
    with pytest.raises(Unavailable, match="did not get ready: TimeoutError"):
        await vm.start()
    assert vm.worker_pids() == []


async def test_restarts_go_on_until_one_succeeds(
    make_vm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    vm = await make_vm(workers=1, python=str(python), restart_delay_s=0.001)
    await vm.load(build_task(FINE))

    def point_at(target: str) -> None:
        (tmp_path / "next").symlink_to(target)
        (tmp_path / "next").replace(python)

    point_at("/bin/false")
    os.kill(vm.worker_pids()[0], signal.SIGKILL)
    await until(lambda: len(caplog.records) >= 3, "three starts have failed")
    assert "did not get ready" in caplog.text
    run = asyncio.create_task(vm.execute(Execution("probe", "1")))
    await until(lambda: vm.stats().queued == 1, "the run waits for a worker")
    point_at(sys.executable)
    assert (await run).ok

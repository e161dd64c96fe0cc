"""What a script can do to its process: nothing of it reaches the agent or another run."""

import asyncio
import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from services.device_agent.vm import Execution, Reason, TaskVm
from services.device_agent.vm.model import MIB
from services.device_agent.vm.testing import build_task, until

FINE = build_task("def post(c): return {'fine': True}", task="fine")


async def check_fine(vm: TaskVm) -> None:
    """Whatever has happened, the next run works."""
    assert (await vm.load(FINE)).ok
    assert (await vm.execute(Execution("fine", "1"))).value == {"fine": True}


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "while True:\n        try:\n            while True: pass\n        except BaseException: pass",
        "any(iter(int, 1))",  # a loop in C
        "__import__('time').sleep(1000)",
        "__import__('threading').Event().wait()",
        "__import__('signal').pthread_sigmask(0, range(1, 32)); any(iter(int, 1))",
    ],
)
async def test_a_run_without_end_is_killed(vm: TaskVm, run, body: str) -> None:
    outcome = await run(f"def post(c):\n    {body}\n", wall_time_s=0.3)
    assert outcome.reason is Reason.TIMEOUT
    assert outcome.message.startswith("ran longer than 0.3 s and was killed")
    await check_fine(vm)
    assert vm.stats().deaths == {"timeout": 1}


@pytest.mark.parametrize("depth", [1, 200])
async def test_a_timeout_names_the_line(make_vm, depth: int) -> None:
    vm = await make_vm(workers=1, place_timeout_s=30.0)
    source = f"""
        def loop(n):
            while n == 0: pass
            loop(n - 1)
        def post(c):
            loop({depth})
        """
    assert (await vm.load(build_task(source, wall_time_s=2.0))).ok
    outcome = await vm.execute(Execution("probe", "1"))
    assert outcome.message == "ran longer than 2 s and was killed in probe@1/post.py, line 3, in loop"
    assert outcome.output == ""


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("os._exit(3)", "exit status 3"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("os.abort()", "SIG"),
        ("os.closerange(0, 256)", "ended"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    ],
)
async def test_a_process_that_ends_fails_its_run_only(vm: TaskVm, run, body: str, says: str) -> None:
    outcome = await run(f"import os\ndef post(c):\n    {body}\n")
    assert outcome.reason is Reason.CRASH, outcome
    assert says in outcome.message
    await check_fine(vm)


async def test_a_crash_in_c_leaves_its_place_in_the_output(run) -> None:
    outcome = await run("import ctypes\ndef post(c): ctypes.string_at(0)")
    assert "Segmentation fault" in outcome.output
    assert 'File "probe@1/post.py", line 2 in post' in outcome.output


async def test_sys_exit_is_an_exception(vm: TaskVm, run) -> None:
    pids = vm.worker_pids()
    outcome = await run("import sys\ndef post(c): sys.exit(1)")
    assert outcome.reason is Reason.EXCEPTION
    assert "sys.exit(1) in probe@1/post.py, line 2" in outcome.message
    assert vm.worker_pids() == pids


@pytest.mark.parametrize(
    "body",
    [
        "x = []\n    while True: x.append(bytes(1 << 20))",
        "x = 'x'\n    while True: x += x",
        "x = {}\n    while True: x[len(x)] = [len(x)]",
        "__import__('mmap').mmap(-1, 4 << 30).write(b'x')",
    ],
)
async def test_a_memory_hog_is_told_so_and_its_worker_lives(vm: TaskVm, run, body: str) -> None:
    outcome = await run(f"def post(c):\n    {body}\n", memory_bytes=64 * MIB)
    assert outcome.reason is Reason.MEMORY, outcome
    assert "67108864 bytes of memory" in outcome.message
    assert "probe@1/post.py" in outcome.message
    await check_fine(vm)
    assert vm.stats().starts == 1


async def test_recursion_without_limit_ends_at_the_memory(vm: TaskVm, run) -> None:
    source = """
        import sys
        def f(n): return f(n + 1)
        def post(c):
            sys.setrecursionlimit(10**9)
            return f(0)
        """
    outcome = await run(source, memory_bytes=64 * MIB)
    assert outcome.reason is Reason.MEMORY, outcome
    await check_fine(vm)


@pytest.mark.skipif(find_spec("numpy") is None, reason="numpy isn't installed")
async def test_a_memory_hog_in_c_is_told_so(run) -> None:
    outcome = await run("import numpy\ndef post(c): return {'n': float(numpy.ones(1 << 28).sum())}")
    assert outcome.reason is Reason.MEMORY
    assert "Unable to allocate" in outcome.message


async def test_memory_kept_by_one_run_is_not_taken_from_the_next(vm: TaskVm, run) -> None:
    source = "KEPT = []\ndef post(c):\n    KEPT.append(bytes(40 << 20))\n    return {'kept': len(KEPT)}"
    task = build_task(source, memory_bytes=64 * MIB)
    assert (await vm.load(task)).ok
    for _ in range(8):  # 320 MiB in one process, were it not replaced
        assert (await vm.execute(Execution("probe", "1"))).ok
    assert vm.stats().deaths["retired"] >= 1


async def test_endless_recursion_is_a_short_exception(run) -> None:
    outcome = await run("def f(n): return f(n + 1)\ndef post(c): return f(0)")
    assert outcome.reason is Reason.EXCEPTION
    assert "RecursionError" in outcome.message
    assert len(outcome.message) < 4200


async def test_output_of_every_kind_is_captured_and_bounded(vm: TaskVm, run) -> None:
    outcome = await run(
        """
        import os, sys
        def post(c):
            print("print")
            print("error", file=sys.stderr)
            os.write(1, b"raw\\n")
            os.system  # spawning is refused, writing isn't
            sys.__stdout__.write("original\\n")
            sys.__stdout__.flush()
            return {}
        """
    )
    assert outcome.ok, outcome
    assert sorted(outcome.output.split()) == ["error", "original", "print", "raw"]
    outcome = await run(
        "def post(c):\n    for _ in range(100): print('x' * 10_000)\n    return {}", version="2"
    )
    assert outcome.ok
    assert 0 < len(outcome.output) <= 16 * 1024
    outcome = await run("import sys\ndef post(c):\n    sys.stdout.close()\n    return {}", version="3")
    assert outcome.ok
    await check_fine(vm)


async def test_a_flood_of_output_does_not_hold_the_agent(run) -> None:
    async def beat() -> None:
        for _ in range(20):
            await asyncio.sleep(0.001)

    flood = asyncio.create_task(
        run("import os\ndef post(c):\n    while True: os.write(1, b'x' * 65536)\n", wall_time_s=1.0)
    )
    await beat()
    assert (await flood).reason is Reason.TIMEOUT


@pytest.mark.parametrize(
    "data",
    [
        "b'garbage garbage garbage'",
        "b'\\xff\\xff\\xff\\xff'",
        "b'\\0\\0\\0\\2{}'",
        "b'\\0\\0\\0\\2[]'",
        "b'\\0\\0\\0\\x0d{\"id\": 999999}'[:17]",
        "b'\\0\\0\\1\\0' + b'[' * 256",
        'b\'\\0\\0\\0\\x2c\' + b\'{"id": 2, "ok": true, "value": {"a": 1e999}}\'',
    ],
)
async def test_bytes_on_the_protocols_socket_end_the_worker_only(vm: TaskVm, run, data: str) -> None:
    outcome = await run(
        f"""
        import os
        def post(c):
            for fd in range(3, 64):
                try:
                    os.write(fd, {data})
                except OSError:
                    pass
            return {{}}
        """
    )
    assert outcome.reason is Reason.CRASH
    await check_fine(vm)


async def test_bytes_after_the_answer_are_not_taken_for_the_next_one(vm: TaskVm, run) -> None:
    outcome = await run(
        """
        import gc, os, sys
        def post(c):
            main = sys.modules["_isthmus_worker.main"]
            write = main.write_frame
            def twice(fd, body):
                write(fd, body)
                write(fd, body)
            main.write_frame = twice
            return {}
        """
    )
    assert outcome.ok
    for _ in range(20):
        await check_fine(vm)


async def test_threads_and_timers_left_behind_cost_the_worker_not_the_next_run(vm: TaskVm, run) -> None:
    outcome = await run(
        "import threading\n"
        "def post(c):\n    threading.Thread(target=threading.Event().wait).start()\n    return {}"
    )
    assert outcome.ok
    outcome = await run(
        "import signal\ndef post(c):\n    signal.setitimer(0, 0.5)\n    return {}", version="2"
    )
    assert outcome.ok
    await check_fine(vm)
    assert vm.stats().deaths == {"retired": 2}


async def test_a_module_that_leaves_a_thread_behind_still_gets_its_run(vm: TaskVm, run) -> None:
    """Its worker is replaced after each; what a run returns is never what loading did."""
    source = (
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
        "def post(c): return {'made': True}"
    )
    for version in ("1", "2"):
        assert (await run(source, version=version)).value == {"made": True}
        assert (await vm.execute(Execution("probe", version))).value == {"made": True}
    await check_fine(vm)


async def test_what_a_run_does_to_its_interpreter_does_not_reach_the_next(vm: TaskVm, run) -> None:
    outcome = await run(
        "import sys\ndef post(c):\n    sys.setrecursionlimit(60)\n    sys.stdout = None\n    return {}"
    )
    assert outcome.ok
    outcome = await run(
        "def f(n): return n and f(n - 1)\ndef post(c):\n    print(f(500))\n    return {}", version="2"
    )
    assert outcome.ok, outcome
    assert outcome.output == "0\n"


async def test_a_killed_worker_fails_its_run_and_not_its_siblings(make_vm, tmp_path: Path) -> None:
    vm = await make_vm(workers=2)
    source = """
        import os, time
        def post(c):
            with open(c.task, "w") as file:
                file.write(str(os.getpid()))
            while not os.path.exists("go"):
                time.sleep(0.01)
            return {"pid": os.getpid()}
        """
    runs = {}
    for name in ("victim", "sibling"):
        assert (await vm.load(build_task(source, task=name))).ok
        runs[name] = asyncio.create_task(vm.execute(Execution(name, "1")))

    def place(name: str) -> Path | None:
        found = [p for p in (tmp_path / "scratch").glob(f"worker-*/{name}") if p.read_text()]
        return found[0] if found else None

    await until(lambda: all(place(name) for name in runs), "both runs have started")
    victim, sibling = place("victim"), place("sibling")
    assert victim is not None
    assert sibling is not None
    pid = int(sibling.read_text())
    os.kill(int(victim.read_text()), signal.SIGKILL)
    outcome = await runs["victim"]
    assert outcome.reason is Reason.CRASH
    assert "SIGKILL" in outcome.message
    (sibling.parent / "go").touch()
    assert (await runs["sibling"]).value == {"pid": pid}
    await check_fine(vm)


async def test_an_idle_worker_that_is_killed_is_replaced_and_no_run_fails(vm: TaskVm) -> None:
    await check_fine(vm)
    (pid,) = vm.worker_pids()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: vm.stats().deaths == {"idle": 1}, "the death is noticed")
    await check_fine(vm)
    assert vm.worker_pids() != [pid]


async def test_a_thousand_runs_after_fifty_crashes_leak_nothing(make_vm, tmp_path: Path) -> None:
    vm = await make_vm(workers=2)
    assert (await vm.load(build_task("import os\ndef post(c): os._exit(1)"))).ok
    await check_fine(vm)

    def held() -> tuple[int, int, int]:
        return (
            len(list(Path("/proc/self/fd").iterdir())),
            len(vm.worker_pids()),
            len(list((tmp_path / "scratch").iterdir())),
        )

    before = held()
    for _ in range(25):
        outcomes = await asyncio.gather(*(vm.execute(Execution("probe", "1")) for _ in range(2)))
        assert [o.reason for o in outcomes] == [Reason.CRASH] * 2
    for _ in range(100):
        outcomes = await asyncio.gather(*(vm.execute(Execution("fine", "1")) for _ in range(10)))
        assert all(o.ok for o in outcomes)
    await until(lambda: held() == before, f"back to {before} descriptors, workers and folders")
    assert vm.stats().starts == 52
    assert vm.stats().deaths == {"crash": 50}


async def test_folders_nested_deeper_than_a_walk_can_follow_are_removed(make_vm, tmp_path: Path) -> None:
    deep = """
        import os
        def post(c):
            for _ in range(1500):
                os.mkdir("d")
                os.chdir("d")
        """
    vm = await make_vm(workers=1)
    assert (await vm.load(build_task(deep, wall_time_s=30.0))).ok
    await vm.execute(Execution("probe", "1"))
    await check_fine(vm)
    await vm.close()
    scratch = tmp_path / "scratch"
    assert not list(scratch.glob("worker-*"))


async def test_such_folders_left_by_an_earlier_agent_keep_no_vm_from_starting(
    make_vm, tmp_path: Path
) -> None:
    left = os.open(tmp_path, os.O_RDONLY)
    for name in ["scratch", "worker-old", *["d"] * 1500]:
        os.mkdir(name, dir_fd=left)
        inner = os.open(name, os.O_RDONLY, dir_fd=left)
        os.close(left)
        left = inner
    os.close(left)
    await check_fine(await make_vm(workers=1))
    assert not (tmp_path / "scratch" / "worker-old").exists()

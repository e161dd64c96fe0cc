"""What a script can see and reach from inside its worker."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from services.device_agent.vm import Execution, Reason, TaskVm
from services.device_agent.vm.testing import build_task, until

NEEDS = {"seccomp": "this kernel has no seccomp filters", "landlock": "this kernel has no Landlock"}


def need(vm: TaskVm, what: str) -> None:
    if what not in vm.stats().confinement:
        pytest.skip(NEEDS[what])


async def test_the_agents_own_packages_cannot_be_imported(run) -> None:
    outcome = await run(
        """
        import importlib, sys
        def post(c):
            refused = []
            for name in ("libs", "libs.common.errors", "services.device_agent", "deploy", "tests"):
                try:
                    importlib.import_module(name)
                except ModuleNotFoundError:
                    refused.append(name)
            return {"refused": refused, "path": sys.path}
        """
    )
    assert outcome.value is not None
    assert len(outcome.value["refused"]) == 5
    root = Path(__file__).parents[4]
    assert str(root) not in outcome.value["path"]
    assert "" not in outcome.value["path"]


async def test_a_worker_imports_nothing_heavy_by_itself(run) -> None:
    outcome = await run("import sys\ndef post(c): return {'modules': sorted(sys.modules)}")
    assert outcome.value is not None
    heavy = {"numpy", "grpc", "google", "asyncio", "sqlalchemy", "cryptography"}
    assert not heavy & set(outcome.value["modules"])


def test_the_agents_side_imports_nothing_heavy_either() -> None:
    import subprocess

    code = (
        "import sys, services.device_agent.vm, services.device_agent.domain.triggers\n"
        "print(sorted({'numpy', 'grpc', 'google', 'sqlalchemy', 'aiohttp', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_the_environment_and_the_arguments_tell_nothing(
    make_vm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISTHMUS_SECRET", "hunter2")
    vm = await make_vm(workers=1)
    await vm.load(
        build_task("import os, sys\ndef post(c): return {'env': dict(os.environ), 'argv': sys.argv}")
    )
    outcome = await vm.execute(Execution("probe", "1"))
    assert outcome.value is not None
    assert "hunter2" not in str(outcome.value)
    assert outcome.value["argv"] == [""]


@pytest.mark.parametrize(
    "body",
    [
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "subprocess.run(['true'])",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "socket.socket(socket.AF_INET)",
        "socket.socket(socket.AF_UNIX)",
        "os.kill(os.getppid(), 0)",
        "os.kill(1, 0)",
        "os.kill(-1, 0)",
        "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)",
    ],
)
async def test_processes_sockets_and_signals_are_refused(vm: TaskVm, run, body: str) -> None:
    need(vm, "seccomp")
    outcome = await run(f"import os, resource, socket, subprocess\ndef post(c): return {{'got': {body}}}")
    assert outcome.reason is Reason.EXCEPTION, outcome
    assert "PermissionError" in outcome.message


async def test_threads_and_event_loops_work(run) -> None:
    outcome = await run(
        """
        import asyncio, threading
        def post(c):
            found = []
            thread = threading.Thread(target=found.append, args=(1,))
            thread.start()
            thread.join()
            async def two(): return 2
            return {"found": [*found, asyncio.run(two())]}
        """
    )
    assert outcome.value == {"found": [1, 2]}, outcome


async def test_files_outside_are_out_of_reach_and_resources_are_not(make_vm, tmp_path: Path) -> None:
    resources = tmp_path / "tasks" / "t1"
    (resources / "data").mkdir(parents=True)
    (resources / "data" / "genres.txt").write_text("drama")
    secret = tmp_path / "device.key"
    secret.write_text("private")
    vm = await make_vm(workers=1, readable=(tmp_path / "tasks",))
    need(vm, "landlock")
    source = f"""
        import os, tempfile
        def attempt(action, *args):
            try:
                action(*args)
                return "allowed"
            except OSError as error:
                return type(error).__name__
        def post(c):
            with tempfile.TemporaryFile() as file:
                file.write(b"scratch")
            return {{
                "resource": c.resource("data/genres.txt").read_text(),
                "write_resource": attempt(open, c.resource("data/genres.txt"), "w"),
                "secret": attempt(open, {str(secret)!r}),
                "list": attempt(os.listdir, {str(tmp_path)!r}),
                "passwd": attempt(open, "/etc/passwd"),
                "agent": attempt(open, f"/proc/{{os.getppid()}}/environ"),
                "unlink": attempt(os.unlink, {str(secret)!r}),
            }}
        """
    task = build_task(source, resource_root=resources, resources=("data/genres.txt",))
    assert (await vm.load(task)).ok
    outcome = await vm.execute(Execution("probe", "1"))
    assert outcome.value == {
        "resource": "drama",
        "write_resource": "PermissionError",
        "secret": "PermissionError",
        "list": "PermissionError",
        "passwd": "PermissionError",
        "agent": "PermissionError",
        "unlink": "PermissionError",
    }, outcome


async def test_a_file_beyond_the_limit_is_refused(make_vm) -> None:
    vm = await make_vm(workers=1, max_file_bytes=1 << 20)
    await vm.load(build_task("def post(c): open('big', 'wb').write(bytes(2 << 20))"))
    outcome = await vm.execute(Execution("probe", "1"))
    assert outcome.reason is Reason.EXCEPTION
    assert "File too large" in outcome.message


async def test_without_confinement_children_die_with_their_run(make_vm, tmp_path: Path) -> None:
    """Where the kernel can't refuse processes, the group is killed whole, a fork bomb's children too."""
    vm = await make_vm(workers=1, confine=False)
    assert "seccomp" not in vm.stats().confinement
    source = """
        import os
        def post(c):
            for n in range(4):
                if os.fork() == 0:
                    open(f"child-{os.getpid()}", "w").close()
                    while True: pass
            while True: pass
        """
    await vm.load(build_task(source, wall_time_s=30.0))
    run = asyncio.create_task(vm.execute(Execution("probe", "1")))
    scratch = tmp_path / "scratch"
    await until(lambda: len(list(scratch.glob("worker-*/child-*"))) == 4, "four children run")
    pids = [int(p.name.partition("-")[2]) for p in scratch.glob("worker-*/child-*")]
    run.cancel()
    await until(lambda: not any(_runs(pid) for pid in pids), "the children are gone")
    await vm.load(build_task("def post(c): return {}", task="fine"))
    assert (await vm.execute(Execution("fine", "1"))).ok


async def test_a_forked_child_does_not_speak_for_its_parent(make_vm) -> None:
    vm = await make_vm(workers=1, confine=False)
    await vm.load(build_task("import os\ndef post(c): return {'child': os.fork() == 0}"))
    for _ in range(5):
        assert (await vm.execute(Execution("probe", "1"))).value == {"child": False}


AGENT = """
import asyncio, pathlib, sys
from libs.common.clock import SystemClock
from libs.common.rand import SystemRandomness
from services.device_agent.vm import Execution, TaskVm, VmConfig
from services.device_agent.vm.testing import build_task

async def main():
    config = VmConfig(scratch_dir=pathlib.Path(sys.argv[1]), workers=2)
    vm = TaskVm(config, clock=SystemClock(), randomness=SystemRandomness())
    await vm.start()
    await vm.load(build_task("def post(c):\\n    while True: pass"))
    run = asyncio.create_task(vm.execute(Execution("probe", "1")))
    while vm.stats().running == 0:
        await asyncio.sleep(0.01)
    print(*vm.worker_pids(), flush=True)
    await run

asyncio.run(main())
"""


async def test_workers_die_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, str(tmp_path / "scratch"), stdout=asyncio.subprocess.PIPE
    )
    assert agent.stdout is not None
    pids = [int(text) for text in (await agent.stdout.readline()).split()]
    assert len(pids) == 2
    assert all(_runs(pid) for pid in pids)
    agent.send_signal(signal.SIGKILL)
    await agent.wait()
    await until(lambda: not any(_runs(pid) for pid in pids), "both workers are gone, the looping one too")


def _runs(pid: int) -> bool:
    """Whether a process runs; a zombie doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_the_private_folder_is_empty_private_and_removed(vm: TaskVm, run, tmp_path: Path) -> None:
    outcome = await run(
        "import os\ndef post(c):\n    files = os.listdir('.')\n    open('left', 'w').close()\n"
        "    return {'cwd': os.getcwd(), 'files': files, 'mode': os.stat('.').st_mode & 0o777}"
    )
    assert outcome.value is not None
    folder = Path(str(outcome.value["cwd"]))
    assert folder.parent == tmp_path / "scratch"
    assert outcome.value["files"] == []
    assert outcome.value["mode"] == 0o700
    await vm.close()
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_folders_left_by_an_agent_that_was_killed_are_removed(make_vm, tmp_path: Path) -> None:
    left = tmp_path / "scratch" / "worker-old-0"
    left.mkdir(parents=True)
    (left / "file").touch()
    await make_vm(workers=1)
    assert left not in (tmp_path / "scratch").iterdir()

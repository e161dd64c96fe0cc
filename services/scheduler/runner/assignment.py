"""What a runner is asked to start, and what its program gets to see."""

import errno
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from signal import Signals

from libs.common.clock import Clock
from libs.common.errors import Invalid
from libs.common.names import shown
from libs.common.service_config import is_loopback
from libs.common.sizes import size_text
from libs.common.suggest import did_you_mean
from services.scheduler.domain.objects import JobSpec, Worker, WorkerId, WorkerPlacement, WorkerState
from services.scheduler.runner.folder import Record, WorkerFolder

MARK = "ISTHMUS_WORKER"
"""In the environment of every process of a worker: its folder. What was left behind is found by it."""
# What a program needs of the runner's own environment; everything else may be secret.
_PASSED_ON = ("LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_LONGEST_MESSAGE = 2000
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


@dataclass(frozen=True, slots=True)
class Assignment:
    """A worker to start.

    Attributes:
        id: which.
        spec: the job's.
        placement: what it holds here.
        master_host: where worker 0 listens.
        master_port: and on which port.
        local_rank: how many workers of the gang come before it on this node.
        deadline: when it must have ended.
    """

    id: WorkerId
    spec: JobSpec
    placement: WorkerPlacement
    master_host: str = "127.0.0.1"
    master_port: int = 0
    local_rank: int = 0
    deadline: datetime | None = None


def inside(folder: Path, path: str, field: str) -> Path:
    """Return a job's path below `folder`; raise Invalid naming `field` for one that leads out of it."""
    pure = PurePosixPath(path)
    if not path or "\0" in path or pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise Invalid(
            f"{field}: {shown(path)} is no relative path without '..'",
            reason="BAD_PATH",
            metadata={"field": field},
        )
    return folder / pure


def environment(assignment: Assignment, folder: WorkerFolder, own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker's program.

    Args:
        assignment: gives the job's own variables, which win over ours where they may.
        folder: the worker's.
        own: the runner's environment, of which next to nothing is passed on.
    """
    spec, worker = assignment.spec, assignment.id
    threads = str(max(1, assignment.placement.resources.cpu_millis // 1000))
    python = str(Path(sys.executable).parent)
    env = {name: own[name] for name in _PASSED_ON if name in own}
    env["PATH"] = f"{python}{os.pathsep}{own.get('PATH', os.defpath)}"
    env["HOME"] = str(folder.job)
    env["TMPDIR"] = str(folder.job / "tmp")
    env["PYTHONUNBUFFERED"] = "1"
    env.update(dict.fromkeys(_THREADS, threads))
    if is_loopback(assignment.master_host):
        # The whole gang is here; gloo would look for the machine's name in the network otherwise.
        env["GLOO_SOCKET_IFNAME"] = "lo"
    env.update(spec.environment)
    env.update(
        {
            "RANK": str(worker.rank),
            "WORLD_SIZE": str(spec.worker_count),
            "LOCAL_RANK": str(assignment.local_rank),
            "MASTER_ADDR": assignment.master_host,
            "MASTER_PORT": str(assignment.master_port),
            "ISTHMUS_JOB": str(worker.job),
            "ISTHMUS_ATTEMPT": str(worker.attempt),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, assignment.placement.gpus)),
            MARK: str(folder.path),
        }
    )
    return env


def launch(
    assignment: Assignment,
    folder: WorkerFolder,
    own: Mapping[str, str],
    *,
    log_bytes: int,
    process_count: int,
) -> list[tuple[str, str]]:
    """Return what a worker's keeper is told.

    Raises:
        Invalid: when the command or a variable can't be passed to a program.
    """
    command = list(assignment.spec.command)
    if not command or not command[0]:
        raise Invalid("command: is empty; say what to run", reason="BAD_COMMAND")
    if command[0] == "python":
        command[0] = sys.executable
    env = environment(assignment, folder, own)
    if any("\0" in text for text in (*command, *env, *env.values())) or any("=" in key for key in env):
        raise Invalid("command, environment: hold a NUL byte, or a name with '='", reason="BAD_COMMAND")
    memory = assignment.placement.resources.memory_bytes
    deadline, user_id = assignment.deadline, folder.user_id()
    return [
        *(("arg", word) for word in command),
        *(("env", f"{key}={value}") for key, value in env.items()),
        ("cwd", str(folder.job)),
        ("memory_bytes", str(memory or 2**63)),
        ("deadline_time", repr(deadline.timestamp() if deadline is not None else 0.0)),
        ("grace_s", repr(assignment.spec.grace.total_seconds())),
        ("log_bytes", str(log_bytes)),
        ("process_count", str(process_count)),
        ("uid", str(user_id if user_id is not None else "")),
    ]


def failed(assignment: Assignment, reason: str, message: str, clock: Clock, exit_code: int = 0) -> Worker:
    """Return a worker that couldn't be started, or whose end is unknown."""
    return Worker(
        assignment.id.rank,
        assignment.placement.node,
        WorkerState.FAILED,
        exit_code=exit_code,
        reason=reason,
        message=message[:_LONGEST_MESSAGE],
        end_time=clock.now(),
    )


def running(assignment: Assignment, record: Record) -> Worker:
    """Return a worker that runs."""
    start = datetime.fromtimestamp(float(record["start_time"]), UTC)
    return Worker(assignment.id.rank, assignment.placement.node, WorkerState.RUNNING, start_time=start)


def ended(assignment: Assignment, folder: WorkerFolder, record: Record, clock: Clock) -> Worker:
    """Return a worker as its keeper wrote down its end."""
    reason = record["reason"]
    if reason == "START_FAILED":
        code, message = _not_started(assignment, folder, int(record["errno"]))
        return failed(assignment, reason, message, clock, code)
    if record["started"] != "1":
        return failed(assignment, reason, "ended before it was started", clock)
    status = int(record["status"]) if record["status"] != "None" else 0
    code = os.waitstatus_to_exitcode(status)
    started = folder.running()
    return Worker(
        assignment.id.rank,
        assignment.placement.node,
        WorkerState.EXITED,
        exit_code=code if code >= 0 else 128 - code,
        reason=reason,
        message=_how(assignment, reason, code, record),
        start_time=datetime.fromtimestamp(float(started["start_time"]), UTC) if started else None,
        end_time=datetime.fromtimestamp(float(record["end_time"]), UTC),
        peak_memory_bytes=int(record["peak_memory_bytes"]),
    )


def _how(assignment: Assignment, reason: str, code: int, record: Record) -> str:
    memory = assignment.placement.resources.memory_bytes
    peak = int(record["peak_memory_bytes"])
    told = {
        "OUT_OF_MEMORY": f"took {size_text(peak)} of memory and may take {size_text(memory)}; ask for more",
        "TOO_MANY_PROCESSES": _too_many(record),
        "DEADLINE": "still ran at its deadline",
        "CANCELLED": "ended because somebody asked",
        "SIBLING_FAILED": "ended because another worker of its gang failed",
        "LOST": "ended because its runner was shut down, or nobody wanted it any more",
    }.get(reason, "")
    if not reason and code < 0:
        told = f"ended by {_signal(-code)}"
        if -code == Signals.SIGKILL:
            told += "; somebody sent it, or the machine ran out of memory"
    if record["left_behind"] == "1":
        told += "; some of its processes couldn't be ended"
    return told


def _too_many(record: Record) -> str:
    if "processes" not in record:  # written by an older keeper
        return "started more processes than a worker may have"
    had, most = record["processes"], record["process_count"]
    return f"had {had} processes and may have {most} (the runner's --process-count); start fewer"


def _signal(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def _not_started(assignment: Assignment, folder: WorkerFolder, number: int) -> tuple[int, str]:
    """Return the exit code, as a shell gives it, and what was wrong with the command."""
    command = assignment.spec.command[0]
    file = folder.job / command
    if number == errno.ENOENT and "/" not in command:
        path = environment(assignment, folder, os.environ)["PATH"]
        hint = did_you_mean(command, _on_path(path))
        if (folder.job / command).is_file():
            hint = f"; did you mean './{command}'?"
        return _NOT_FOUND, f"command: {shown(command)} isn't on the PATH{hint} (PATH is {path})"
    if number == errno.ENOENT and file.is_file():
        return (
            _NOT_EXECUTABLE,
            f"command: {shown(command)}: its first line names an interpreter that isn't here",
        )
    if number in (errno.ENOENT, errno.ENOTDIR):
        hint = did_you_mean(command, [f"./{given.path}" for given in assignment.spec.files])
        return _NOT_FOUND, f"command: {shown(command)} isn't there; put it among the job's `files`{hint}"
    if number == errno.EACCES:
        given = any(inside(folder.job, each.path, "") == file for each in assignment.spec.files)
        hint = "set `executable` on the file" if given else "its user on this node lacks the right"
        return _NOT_EXECUTABLE, f"command: {shown(command)} may not be executed; {hint}"
    if number == errno.ENOEXEC:
        return (
            _NOT_EXECUTABLE,
            f"command: {shown(command)} is no program; give it a first line such as '#!/bin/sh', "
            "or start it with its interpreter",
        )
    if number == errno.E2BIG:
        return _NOT_EXECUTABLE, "command, environment: are longer than the machine takes"
    return 0, f"command: {shown(command)} couldn't be started: {os.strerror(number)}"


def _on_path(path: str) -> Iterable[str]:
    for folder in path.split(os.pathsep):
        try:
            yield from os.listdir(folder or ".")  # noqa: PTH208 - names are all that is wanted
        except OSError:
            continue

"""Processes that a trial needs: they die with the tuner, and what is known of them is read from /proc."""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from libs.common.errors import Error, Invalid, Unavailable

_PR_SET_PDEATHSIG = 1
_TERM_S = 5.0
# For what serves on one machine in one process; whatever else the tuner's own environment holds stays here.
_PASSED = ("PATH", "PYTHONPATH", "HOME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TMPDIR")

_LEASH = "import sys; from services.tuner.processes import leash; leash(int(sys.argv[1]), sys.argv[2:])"


def leash(parent: int, command: Sequence[str]) -> None:
    """Become `command`, which is killed when `parent` dies. Runs in the new process."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked
        raise SystemExit(1)
    os.execv(command[0], list(command))


@asynccontextmanager
async def running(
    module: str, arguments: Sequence[str], *, stdin: int | None = None, stdout: int | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `python -m module arguments` inside the block; afterwards it has ended, whatever happened.

    It must be called on the main thread's loop: the kernel's leash holds to the thread that started it.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _LEASH,
        str(os.getpid()),
        sys.executable,
        "-m",
        module,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
        stdout=asyncio.subprocess.DEVNULL if stdout is None else stdout,
        stderr=asyncio.subprocess.PIPE,
        env={name: os.environ[name] for name in _PASSED if name in os.environ},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        # No further cancellation may leave it behind.
        await _shielded(_end(process))


async def _shielded(work: Coroutine[Any, Any, None]) -> None:
    """Do `work` to its end, however often the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _TERM_S)
    # Its own children, if any, are of its session.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def serving_port(process: asyncio.subprocess.Process, name: str) -> tuple[int, asyncio.Task[None]]:
    """Return the port that a service logs when it serves, and the task that reads its log from then on.

    Raises:
        Unavailable: when it ends before; the message holds the last error that it logged.
    """
    assert process.stderr is not None
    last = ""
    while line := await process.stderr.readline():
        entry = _entry(line)
        if "port" in entry:
            return int(str(entry["port"])), asyncio.create_task(_drain(process.stderr))
        if entry.get("level") in ("ERROR", "CRITICAL", "error", "critical") or not entry:
            last = str(entry.get("message") or line.decode("utf-8", "replace")).strip()[:500]
    await process.wait()
    raise Unavailable(
        f"{name} didn't start: {last or f'exit status {process.returncode}'}", reason="NO_START"
    )


def _entry(line: bytes) -> Mapping[str, object]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(65536):
        pass


def cpu_clock(pid: int) -> Callable[[], float]:
    """Return what reads the processor seconds, user and system, that a process has used (proc(5), stat)."""
    tick = os.sysconf("SC_CLK_TCK")
    path = Path(f"/proc/{pid}/stat")

    def read() -> float:
        # The name, in parentheses, may hold anything.
        fields = path.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / tick

    return read


def peak_memory(pid: int) -> Callable[[], int]:
    """Return what reads the largest resident memory of a process in bytes (proc(5), status, VmHWM)."""
    path = Path(f"/proc/{pid}/status")

    def read() -> int:
        for line in path.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0

    return read


def error_named(name: str, message: str, reason: str) -> Error:
    """Return the error of another process of ours as one of this."""
    kinds: dict[str, type[Error]] = {kind.__name__: kind for kind in Error.__subclasses__()}
    return kinds.get(name, Invalid)(message, reason=reason)

"""A simulation's process, seen from the simulator: it dies with whoever started it, and is killed at need."""

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Collection, Mapping
from pathlib import Path
from typing import Any

from libs.common.errors import Internal

_log = logging.getLogger("isthmus.simulator")

_PR_SET_PDEATHSIG = 1
_MAX_OUTPUT = 64 * 1024
_MAX_SHOWN = 4000
# Whatever else the simulator's own environment holds stays here.
_PASSED = ("PATH", "PYTHONPATH", "HOME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TMPDIR")


def hold(parent: int) -> None:
    """Have this process killed when `parent` dies; to be called first."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


async def run_child(folder: Path, deadline_s: float, demanded: Collection[str] = ()) -> Mapping[str, Any]:
    """Run a simulation's process over `folder` and return what it said; it has ended then, whatever happened.

    Call it on the main thread's loop: the kernel's leash holds to the thread that started the process.
    `demanded` names what must confine scripts.

    Raises:
        Internal: when it ended without a word.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.device_agent",
        "simulation",
        str(os.getpid()),
        str(folder),
        str(deadline_s),
        *demanded,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: os.environ[name] for name in _PASSED if name in os.environ},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        said, fault = await asyncio.gather(_tail(process.stdout), _tail(process.stderr))
        status = await process.wait()
    finally:
        await to_its_end(_kill(process))
    try:
        found = json.loads(said)
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    _log.error(
        "a simulation's process ended without a verdict",
        extra={"status": status, "said": fault.decode("utf-8", "replace").strip()[-_MAX_SHOWN:]},
    )
    raise Internal(
        f"the simulation's process ended without a verdict (exit status {status}); see the simulator's log",
        reason="SIMULATION_BROKEN",
    )


async def _tail(stream: asyncio.StreamReader) -> bytes:
    """Return the end of what comes out of a pipe."""
    tail = bytearray()
    while block := await stream.read(_MAX_OUTPUT):
        tail += block
        del tail[:-_MAX_OUTPUT]
    return bytes(tail)


async def _kill(process: asyncio.subprocess.Process) -> None:
    # Its workers are told by the kernel.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def to_its_end(work: Awaitable[object]) -> None:
    """Do `work` to its end, also when the caller is cancelled again meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise

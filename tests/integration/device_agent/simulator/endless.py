"""A simulation whose run doesn't end, and its processes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from services.device_agent.simulator.testing import Bench, lines
from services.device_agent.vm.testing import until

ENDLESS = "def pre(context):\n    while True: pass\n"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [each for each in map(int, found) if alive(each)]
    return []


@contextlib.asynccontextmanager
async def endless(bench: Bench, **change: Any) -> AsyncIterator[tuple[asyncio.Task[object], list[int]]]:
    """Have a version simulated whose run doesn't end; yields the call, and its processes once they run."""
    recording = bench.recording(lines(1))
    manifest = bench.version(ENDLESS, wall_time_s=60, **change)
    call = asyncio.create_task(bench.caller.simulate(manifest, recording))
    try:
        processes: list[int] = []

        def running() -> bool:
            processes[:] = children(bench.simulator.pid)
            processes.extend(worker for child in tuple(processes) for worker in children(child))
            return len(processes) > 1 or call.done()

        await until(running, "a simulation with a worker")
        yield call, processes
    finally:
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

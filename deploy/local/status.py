"""What is known of each process of a running stack."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from deploy.local.layout import Layout
from deploy.local.supervision import Crashes, Supervised, crashes
from deploy.local.topology import Process


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one process of the stack.

    Attributes:
        name: the process.
        state: running, starting, backing off, given up, stopping or stopped; or unsupervised: it runs and the
            supervisor doesn't.
        pid: process id, or 0.
        uptime_s: seconds since its last start.
        restarts: how often it ended by itself since the stack was started.
        last_exit: how and when it ended by itself the last time, or "".
        rss_bytes: resident memory.
        health: "" when it serves, else why not.
        addresses: what it listens on.
    """

    name: str
    state: str
    pid: int
    uptime_s: float
    restarts: int
    last_exit: str
    rss_bytes: int
    health: str
    addresses: tuple[str, ...]


_STATES = {
    "STARTING": "starting",
    "RUNNING": "running",
    "BACKOFF": "backing off",
    "FATAL": "given up",
    "STOPPING": "stopping",
}


def why_down(state: Supervised | None) -> str:
    """Return why a process isn't up, in words."""
    if state is None:
        return "it isn't running"
    return f"{_STATES.get(state.state, 'stopped')}: {state.description}"


def _memory(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss) if pid else 0
    except psutil.Error:
        return 0


def left_behind(members: Sequence[psutil.Process], processes: Sequence[Process]) -> list[Row]:
    """Return one row for each of a stack's processes that run on without a supervisor that answers."""
    pids = {member.pid for member in members}
    found = []
    for member in members:
        try:
            command, parent, age_s = member.cmdline(), member.ppid(), time.time() - member.create_time()
        except psutil.Error:
            continue
        known = [process for process in processes if _runs(process, command)]
        # What a process has started itself looks like it, and ends with it.
        if known and not (parent in pids and _same(member, parent)):
            process = max(known, key=lambda known: len(known.command))
            found.append(
                Row(
                    process.name,
                    "unsupervised",
                    member.pid,
                    age_s,
                    0,
                    "",
                    _memory(member.pid),
                    "nothing would start it again",
                    tuple(endpoint.address for endpoint in process.endpoints),
                )
            )
    return sorted(found, key=lambda row: [process.name for process in processes].index(row.name))


def _runs(process: Process, command: Sequence[str]) -> bool:
    """Say whether a command line is the process's; where its program lies doesn't matter."""
    arguments = list(process.command[1:])
    return list(command[1 : len(arguments) + 1]) == arguments


def _same(member: psutil.Process, parent: int) -> bool:
    try:
        return psutil.Process(parent).cmdline() == member.cmdline()
    except psutil.Error:
        return False


def rows(
    layout: Layout,
    states: Mapping[str, Supervised],
    processes: Iterable[Process],
    fault: Callable[[Process], str],
) -> list[Row]:
    """Return one row for each of the processes that the supervisor knows.

    Args:
        layout: of the stack.
        states: what the supervisor says.
        processes: to look at.
        fault: returns why one that is up doesn't serve, or "".
    """
    ends = crashes(layout)
    found = []
    for process in processes:
        state = states.get(process.name)
        if state is None:
            continue
        reason = fault(process) if state.up else why_down(state)
        ended = ends.get(process.name, Crashes())
        found.append(
            Row(
                process.name,
                "running" if state.up and not reason else _STATES.get(state.state, "stopped"),
                state.pid,
                state.uptime_s,
                ended.count,
                ended.last,
                _memory(state.pid),
                reason,
                tuple(endpoint.address for endpoint in process.endpoints),
            )
        )
    return found

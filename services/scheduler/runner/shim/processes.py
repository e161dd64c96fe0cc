"""The processes below one: which there are, what they take, how to end them all. Linux only."""

import os
import signal

# pathlib and contextlib would cost each start as much as everything that is imported here.
# ruff: noqa: PTH123, PTH208, SIM105

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; raise OSError when there is none."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def children(pid: int) -> list[int]:
    """Return the children of a process, of all its threads; none for one that is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def descendants(pid: int) -> list[int]:
    """Return all processes below one, parents before their children."""
    found: list[int] = []
    stack = children(pid)
    while stack:
        found.append(stack.pop())
        stack += children(found[-1])
    return found


def resident_bytes(pid: int) -> int:
    """Return the memory of a process, with what it shares; 0 for one that is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def proportional_bytes(pid: int) -> int:
    """Return the memory of a process, with its part of what it shares. Dear: it walks the page tables."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return resident_bytes(pid)
    return 0


def freeze(pid: int) -> list[int]:
    """Stop all processes below one, parents first, until no new ones appear; return them.

    What is stopped neither forks nor reaps, so that a fork bomb holds still and no id is taken by another.
    """
    frozen: dict[int, None] = {}
    for _ in range(100):
        before = len(frozen)
        stack = children(pid)
        while stack:
            child = stack.pop()
            if child not in frozen:
                frozen[child] = None
                send(child, signal.SIGSTOP)
            stack += children(child)
        if len(frozen) == before:
            break
    return list(frozen)


def send(pid: int, number: int) -> None:
    """Send a signal to a process, if it is still there."""
    try:
        os.kill(pid, number)
    except OSError:
        pass

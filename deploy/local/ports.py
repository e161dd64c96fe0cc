"""Who holds a port."""

import os
import random
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

MARKER = "ISTHMUS_STACK"
"""Variable in the environment of every process of a stack; its value is the stack's home."""
WORKER = "ISTHMUS_WORKER"
"""Variable in the environment of every process of a job: the folder that its runner keeps it in."""
KEEPER = ("-I", "-S", "-E", "boot.py")
"""What a job's keeper is started with; its folder follows."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that listens on a port; what another user's process hides is empty.

    Attributes:
        pid: process id, or 0.
        command: its command line.
        stack: the home of the stack that it belongs to.
    """

    pid: int = 0
    command: str = ""
    stack: str = ""

    def __str__(self) -> str:
        """Name it for people."""
        if not self.pid:
            return "a process of another user"
        belongs = f", of the stack in {self.stack}" if self.stack else ""
        return f"process {self.pid} ({self.command}){belongs}"


def stack_of(process: psutil.Process) -> str:
    """Return the home of the stack that a process belongs to, or "" (also where that can't be seen)."""
    try:
        return process.environ().get(MARKER, "")
    except (psutil.Error, OSError):
        return ""


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Say whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def holders(ports: Iterable[int]) -> dict[int, Holder]:
    """Return who holds each of the ports that aren't free."""
    taken = {port for port in ports if not is_free(port)}
    if not taken:
        return {}
    found = dict.fromkeys(sorted(taken), Holder())
    for connection in psutil.net_connections("tcp"):
        listens = connection.laddr if connection.status == psutil.CONN_LISTEN else None
        if not listens or listens.port not in taken or not connection.pid:
            continue
        try:
            process = psutil.Process(connection.pid)
            command = " ".join(process.cmdline()) or process.name()
        except psutil.Error:
            continue
        shown = command if len(command) <= 120 else command[:117] + "..."
        found[listens.port] = Holder(connection.pid, shown, stack_of(process))
    return found


def _works_below(process: psutil.Process, folder: Path) -> bool:
    """Say whether a process is a job's, or its keeper, whose runner keeps them in ``folder``.

    Both outlive their runner, and neither has the stack's variable.
    """
    try:
        environ, command = process.environ(), process.cmdline()
    except (psutil.Error, OSError):
        return False
    if Path(environ.get(WORKER, "/")).is_relative_to(folder):
        return True
    keeper = [Path(word).name for word in command[1 : len(KEEPER) + 1]] == list(KEEPER)
    return keeper and any(Path(word).is_relative_to(folder) for word in command[len(KEEPER) + 1 :])


def members(home: str) -> list[psutil.Process]:
    """Return the processes that belong to the stack in ``home``, except this one and its ancestors.

    Those of jobs belong to it as well.
    """
    runner = Path(home) / "runner"
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [
        process
        for process in psutil.process_iter()
        if process.pid not in spared and (stack_of(process) == home or _works_below(process, runner))
    ]


def free_offset(ports: Iterable[int]) -> int:
    """Return an offset by which all the ports are free now: for a stack beside another."""
    wanted = list(ports)
    candidates = list(range(2000, 24000, 100))
    random.shuffle(candidates)
    return next(offset for offset in candidates if all(is_free(port + offset) for port in wanted))

"""Starting a worker's keeper, waiting for the end of one, and ending what one left behind."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from services.scheduler.runner.assignment import MARK
from services.scheduler.runner.folder import WorkerFolder

_BOOT = Path(__file__).parent / "shim" / "boot.py"
# How long the end of processes that were left behind is waited for, in seconds.
_SWEEP_S = 30.0
# How often a keeper that another runner started is looked at until it has said who it is, in seconds.
_LOOK_S = 0.02


class Keeper:
    """A keeper that lives or has lived; `pid` is its process's."""

    def __init__(self, pid: int, pidfd: int, ready_fd: int | None) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._ready_fd = ready_fd

    @classmethod
    def start(cls, folder: WorkerFolder, lock_fd: int) -> "Keeper":
        """Start the keeper of a worker whose `launch` is written; blocks for a few milliseconds.

        Args:
            folder: the worker's.
            lock_fd: holds the folder's lock; it becomes the keeper's, and is closed here.

        Raises:
            OSError: when no process can be started.
        """
        ready, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_inheritable(lock_fd, True)
            os.set_inheritable(theirs, True)
            with contextlib.ExitStack() as opened:
                null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                opened.callback(os.close, null)
                errors = os.open(folder.path / "shim.err", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                opened.callback(os.close, errors)
                pid = os.posix_spawn(
                    sys.executable,
                    [
                        sys.executable,
                        "-I",
                        "-S",
                        "-E",
                        str(_BOOT),
                        str(folder.path),
                        str(lock_fd),
                        str(theirs),
                    ],
                    {},
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, null, 0),
                        (os.POSIX_SPAWN_DUP2, null, 1),
                        (os.POSIX_SPAWN_DUP2, errors, 2),
                    ],
                    # A session of its own: what ends the runner's mustn't end the workers.
                    setsid=True,
                )
        except OSError:
            os.close(ready)
            raise
        finally:
            os.close(lock_fd)
            os.close(theirs)
        return cls(pid, os.pidfd_open(pid), ready)

    @classmethod
    async def find(cls, folder: WorkerFolder) -> "Keeper | None":
        """Return the keeper of a worker, started by an earlier runner; None when none lives."""
        while _is_locked(folder):
            record = await asyncio.to_thread(folder.keeper)
            if record is None:  # it starts just now
                await asyncio.sleep(_LOOK_S)
                continue
            try:
                pid = int(record["pid"])
                pidfd = os.pidfd_open(pid)
            except (KeyError, ValueError, OSError):
                # It has just ended, or its worker has scribbled over the record: then only the lock tells.
                await asyncio.sleep(_LOOK_S)
                continue
            # The lock's holder wrote the record, so that as long as it is held the id is the keeper's.
            if _is_locked(folder):
                return cls(pid, pidfd, None)
            os.close(pidfd)
        return None

    async def started(self, folder: WorkerFolder) -> bool:
        """Wait until the program runs; False when it won't."""
        if self._ready_fd is None:
            while folder.running() is None:
                if not _is_locked(folder):
                    return False
                await asyncio.sleep(_LOOK_S)
            return True
        await _readable(self._ready_fd)
        ready = os.read(self._ready_fd, 1) == b"R"
        os.close(self._ready_fd)
        self._ready_fd = None
        return ready

    def wake(self) -> None:
        """Make it look for stop requests now."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGUSR1)

    async def ended(self) -> None:
        """Wait until it has ended."""
        await _readable(self._pidfd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)  # noqa: ASYNC222 - it has ended

    def close(self) -> None:
        """Let go of it; it lives on."""
        os.close(self._pidfd)
        if self._ready_fd is not None:
            os.close(self._ready_fd)


def _is_locked(folder: WorkerFolder) -> bool:
    lock = folder.take_lock()
    if lock is not None:
        os.close(lock)
    return lock is None


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: None if future.done() else future.set_result(None))
    try:
        await future
    finally:
        loop.remove_reader(fd)


def sweep(folder: WorkerFolder, user_id: int | None = None) -> bool:
    """Kill every process of a worker whose keeper is gone; blocks. False when some don't end.

    They are known by their user where workers have their own, and else by the mark in their environment,
    which a process can take off.
    """
    give_up = time.monotonic() + _SWEEP_S
    mark = os.fsencode(f"{MARK}={folder.path}")
    while time.monotonic() < give_up:
        found = False
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and _is_of(path, mark, user_id):
                found = True
                _kill(path, mark, user_id)
        if not found:
            return True
        time.sleep(0.01)
    return False


def _kill(path: Path, mark: bytes, user_id: int | None) -> None:
    """Kill a process, and no other that has taken its number meanwhile."""
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(int(path.name))
        try:
            if _is_of(path, mark, user_id):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _is_of(path: Path, mark: bytes, user_id: int | None) -> bool:
    """Tell whether a process is a worker's; one that has ended and waits to be reaped isn't."""
    try:
        if user_id is not None and path.stat().st_uid == user_id:
            return b"\nState:\tZ" not in (path / "status").read_bytes()
        return mark in (path / "environ").read_bytes().split(b"\0")
    except OSError:
        return False

"""A worker's folder: everything that is known of it, so that a runner that was killed goes on with it.

    start        what the scheduler asked for, as it came
    launch       what its keeper is to do; `shim` reads it
    lock         held by its keeper as long as that lives
    shim         who the keeper is
    running      what it started
    stop.none    renamed to stop.<REASON> when the worker is to end
    log          what the worker wrote
    exit         how it ended; the last file to appear
    job/         where it works
    uid          whose its processes are, where workers have users of their own

Every method blocks on the disk; call them on a thread where the loop mustn't wait.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from libs.common.errors import Invalid
from libs.common.fsio import disk_errors, fsync_dir, remove_tree
from services.scheduler.domain.objects import WorkerId
from services.scheduler.runner.shim.records import decode, encode

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_NEW, _GONE = ".new-", ".gone-"
_NO_STOP = "stop.none"
_RECORD_BYTES = 64 * 1024
_REASON = re.compile(r"[A-Z_]{1,32}", re.ASCII)

Record = Mapping[str, str]


def key_of(worker: WorkerId) -> str:
    """Return the name of a worker's folder; raise Invalid for a uid that can't be part of one."""
    if not _UID.fullmatch(worker.job_uid):
        raise Invalid(f"id.job_uid: {worker.job_uid[:80]!r} is not a uid", reason="BAD_ID")
    return f"{worker.job_uid}-{worker.attempt}-{worker.rank}"


@dataclass(frozen=True, slots=True)
class WorkerFolder:
    """The folder of one worker."""

    path: Path

    @property
    def job(self) -> Path:
        """Where the worker works."""
        return self.path / "job"

    @property
    def log(self) -> Path:
        """What it wrote."""
        return self.path / "log"

    def start(self) -> bytes:
        """Return what the scheduler asked for."""
        return (self.path / "start").read_bytes()

    def write_launch(self, entries: list[tuple[str, str]]) -> None:
        """Say what the keeper is to do; raise Exhausted when the disk is full."""
        part = self.path / "launch.tmp"
        with disk_errors(part):
            part.write_bytes(encode(entries))
            part.chmod(0o600)
            part.replace(self.path / "launch")

    def keeper(self) -> Record | None:
        """Return who the keeper is: `pid`, `start_ticks`, `boot_id`; None when there never was one."""
        return self._record("shim")

    def running(self) -> Record | None:
        """Return what was started: as for the keeper, and `start_time`; None when nothing was."""
        return self._record("running")

    def exit(self) -> Record | None:
        """Return how the worker ended; None when it hasn't."""
        return self._record("exit")

    def _record(self, name: str) -> Record | None:
        """Read a record. A worker of the runner's own user may have put anything there, or nothing."""
        try:
            fd = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return MappingProxyType(dict(decode(os.read(fd, _RECORD_BYTES))))
        except OSError:
            return None
        finally:
            os.close(fd)

    def user_id(self) -> int | None:
        """Return whose the worker's processes are; None for the runner's own."""
        try:
            return int((self.path / "uid").read_text())
        except FileNotFoundError:
            return None

    def give_away(self) -> None:
        """Give the folder where the worker works to the worker's user."""
        user_id = self.user_id()
        if user_id is None:
            return
        for folder, _, files in os.walk(self.job):
            os.chown(folder, user_id, user_id)
            for file in files:
                os.chown(f"{folder}/{file}", user_id, user_id, follow_symlinks=False)

    def take_lock(self) -> int | None:
        """Return a descriptor that holds the keeper's lock; None while a keeper lives."""
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def request_stop(self, reason: str) -> None:
        """Note, durably and without needing room, that the worker is to end; the first reason stays."""
        if not _REASON.fullmatch(reason):
            reason = "CANCELLED"
        with contextlib.suppress(FileNotFoundError):
            (self.path / _NO_STOP).rename(self.path / f"stop.{reason}")
            fsync_dir(self.path)

    def stop_requested(self) -> str | None:
        """Return why the worker is to end; None when it isn't."""
        if (self.path / _NO_STOP).exists():
            return None
        return next((path.name.partition(".")[2] for path in self.path.glob("stop.*")), "LOST")


class Folders:
    """The folders of all workers."""

    def __init__(self, path: Path, *, own_users: bool = False) -> None:
        """Make the folder that holds them, and remove what was left half made or half removed.

        It is 0700, or 0711 where workers have users of their own, who must get through to theirs.
        """
        self._path = path
        self._mode = 0o711 if own_users else 0o700
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(self._mode)
        for left in [*path.glob(f"{_NEW}*"), *path.glob(f"{_GONE}*")]:
            remove_tree(left)

    def make(self, key: str, start: bytes, user_id: int | None = None) -> WorkerFolder:
        """Make a worker's folder: whole or not at all; `user_id` says whose its processes will be.

        Raises:
            Exhausted: when the disk is full.
        """
        new = self._path / f"{_NEW}{key}"
        with disk_errors(new):
            try:
                (new / "job" / "tmp").mkdir(parents=True)
                (new / "job").chmod(0o700)
                new.chmod(self._mode)
                (new / "start").write_bytes(start)
                (new / "start").chmod(0o600)
                if user_id is not None:
                    (new / "uid").write_text(str(user_id))
                (new / _NO_STOP).touch(mode=0o600)
                new.rename(self._path / key)
            except OSError:
                remove_tree(new)
                raise
        return WorkerFolder(self._path / key)

    def all(self) -> list[WorkerFolder]:
        """Return those that are there."""
        return [WorkerFolder(path) for path in sorted(self._path.iterdir()) if not path.name.startswith(".")]

    def remove(self, folder: WorkerFolder) -> None:
        """Remove a worker's folder; one that isn't there is fine."""
        gone = self._path / f"{_GONE}{folder.path.name}"
        with contextlib.suppress(FileNotFoundError):
            folder.path.rename(gone)
        remove_tree(gone)

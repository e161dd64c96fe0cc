"""One process for one SQLite file: a second replica would read stale state and lose writes."""

import fcntl
import os
from pathlib import Path
from typing import Self

from libs.common.errors import Precondition


class SqliteReplicaLock:
    """Holds `<database>.lock` from `acquire` to `release`; the kernel releases it when the process dies."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._fd = -1

    def acquire(self) -> Self:
        """Take the lock, at once.

        Raises:
            Precondition: when another process (or another lock of this one) has it; the message names it.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            database = self._path.with_suffix("")
            raise Precondition(
                f"{database}: process {holder} uses this SQLite file; run one replica, or use PostgreSQL",
                reason="SECOND_REPLICA",
                metadata={"pid": holder},
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd
        return self

    def release(self) -> None:
        """Give the lock back; doing it again is harmless."""
        if self._fd >= 0:
            # The file stays: removing it would let two processes lock two files of the same name.
            os.close(self._fd)
            self._fd = -1

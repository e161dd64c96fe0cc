"""What keeps the store from writing, or reading, for now: told apart from faults, in this one place.

Such trouble is the device's and passes: a full disk, a quota, a limit on file sizes, a disk that gives
errors, another program that holds the file.
It reaches callers as Exhausted (DISK_FULL) or Unavailable (STORE_IO); whoever has to, tries again.
"""

import sqlite3

from libs.common.errors import Error, Exhausted, Precondition, Unavailable
from libs.common.fsio import FULL, NO_ROOM

DISK_FULL = "DISK_FULL"
STORE_IO = "STORE_IO"
RETRY_AFTER_S = 30.0
"""What whoever was refused is told to wait."""

# SQLite gives only ENOSPC a code of its own; a quota or a limit on file sizes is a write that fails.
_FULL = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_TRUNCATE,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMOPEN,
    }
)
# By the low byte, the kind.
_IO = frozenset(
    {
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    }
)
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def translate(error: BaseException) -> BaseException:
    """Return what a caller of the store gets for `error`, which may be SQLite's."""
    # Errors of the module itself (a wrong argument) have no code.
    code: int = getattr(error, "sqlite_errorcode", 0) if isinstance(error, sqlite3.Error) else 0
    told: Error
    if code in _FULL:
        text = f"the agent's store can't grow: {FULL}; free some space and try again"
        told = Exhausted(text, reason=DISK_FULL, retry_after_s=RETRY_AFTER_S)
    elif code & 0xFF in _IO:
        text = (
            f"the agent's store can't be used for now ({error}); see to the disk of the state folder, and "
            "that no other program holds agent.db"
        )
        told = Unavailable(text, reason=STORE_IO, retry_after_s=RETRY_AFTER_S)
    elif code & 0xFF in _DAMAGED:
        text = (
            "agent.db is damaged; move it out of the state folder and start again with an enrolment token: "
            "the key is still there, so the device enrols as itself and pulls its tasks anew"
        )
        told = Precondition(text, reason="STORE_DAMAGED")
    else:
        return error
    told.__cause__ = error
    return told


def passes(error: BaseException) -> bool:
    """Say whether an error is trouble that passes, of the store or of the files beside it."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    return isinstance(error, Error) and error.reason in (DISK_FULL, STORE_IO)

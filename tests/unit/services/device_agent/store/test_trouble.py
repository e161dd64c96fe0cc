import errno
import os
import sqlite3

import pytest

from libs.common.errors import Exhausted, Precondition, Unavailable
from services.device_agent.store.trouble import passes, translate


def sqlite_error(name):
    error = sqlite3.OperationalError("told by SQLite")
    error.sqlite_errorcode, error.sqlite_errorname = getattr(sqlite3, name), name
    return error


@pytest.mark.parametrize(
    "name", ["SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_TRUNCATE", "SQLITE_IOERR_SHMSIZE"]
)
def test_what_does_not_fit_is_a_full_disk(name):
    error = translate(sqlite_error(name))
    assert (type(error), error.reason, passes(error)) == (Exhausted, "DISK_FULL", True)
    assert error.retry_after_s


@pytest.mark.parametrize(
    "name", ["SQLITE_IOERR_READ", "SQLITE_IOERR_FSYNC", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_BUSY"]
)
def test_what_the_disk_may_do_again_passes(name):
    error = translate(sqlite_error(name))
    assert (type(error), error.reason, passes(error)) == (Unavailable, "STORE_IO", True)
    assert "told by SQLite" in error.message


def test_damage_and_faults_do_not_pass():
    damaged = translate(sqlite_error("SQLITE_CORRUPT"))
    assert (type(damaged), passes(damaged)) == (Precondition, False)
    for fault in (sqlite3.ProgrammingError("no code"), ValueError(), sqlite_error("SQLITE_ERROR")):
        assert translate(fault) is fault
        assert not passes(fault)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_files_meet_the_same_trouble(code):
    assert passes(OSError(code, os.strerror(code)))
    assert not passes(OSError(errno.EACCES, os.strerror(errno.EACCES)))

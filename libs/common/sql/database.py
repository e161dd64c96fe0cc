"""A database for code on the event loop: whole transactions, each a plain function, off the loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from libs.common.errors import Error, Exhausted, Unavailable
from libs.common.sql.engine import open_engine, parse_url, sqlite_path
from libs.common.sql.lock import SqliteReplicaLock
from libs.common.sql.migrations import migrate

T = TypeVar("T")

_POSTGRES_THREADS = 10


class Database:
    """Runs transactions on threads: one at a time for SQLite, up to ten at once for PostgreSQL.

    Safe to use from any number of tasks of one event loop. It owns the engine and the lock.
    """

    def __init__(self, engine: Engine, lock: SqliteReplicaLock | None = None) -> None:
        self._engine = engine
        self._lock = lock
        threads = 1 if engine.dialect.name == "sqlite" else _POSTGRES_THREADS
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="sql")

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`, for the few statements that differ."""
        return self._engine.dialect.name

    async def run(self, function: Callable[[Connection], T]) -> T:
        """Return what `function` returns, after committing the transaction that it ran in.

        The function runs on another thread: it takes what it needs and returns plain values. If it raises,
        everything is rolled back. If the caller is cancelled, the transaction still commits or rolls back
        as a whole; whether it did is then unknown to the caller.

        Raises:
            Exhausted: when the disk is full, with reason DISK_FULL.
            Unavailable: when the database doesn't answer or is locked for long.
            Exception: whatever else `function` raises, IntegrityError of SQLAlchemy included.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._transact, function)

    def _transact(self, function: Callable[[Connection], T]) -> T:
        try:
            with self._engine.begin() as connection:
                return function(connection)
        except DBAPIError as error:
            known = _known(error, self._engine)
            if known is None:
                raise
            raise known from error

    async def close(self) -> None:
        """Wait for the transactions in hand, then close every connection and release the lock."""
        await asyncio.to_thread(self._executor.shutdown)
        self._engine.dispose()
        if self._lock is not None:
            self._lock.release()


# SQLite gives only ENOSPC a code of its own; a quota or a limit on file sizes is a write that fails.
_FULL = frozenset({"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_TRUNCATE", "SQLITE_IOERR_SHMSIZE"})


def _known(error: DBAPIError, engine: Engine | None) -> Error | None:
    # Both drivers name the fault: SQLite by its result code, PostgreSQL by its SQLSTATE.
    code = getattr(error.orig, "sqlite_errorname", None) or ""
    state = getattr(error.orig, "sqlstate", None) or ""
    if code in _FULL or state == "53100":
        return Exhausted(
            f"{_disk(engine)} is full, or a quota or a limit on file sizes is reached: nothing of this was "
            "kept; let its operator free some space, then try again",
            reason="DISK_FULL",
            retry_after_s=30.0,
        )
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or state in ("40001", "40P01", "55P03"):
        return Unavailable("the database is busy; try again", reason="DATABASE_BUSY", retry_after_s=1.0)
    # A connection that is refused or breaks has no SQLSTATE; 08, 57P and 53300 are the server's own words
    # for it.
    never_reached = isinstance(error, OperationalError) and not code and not state
    if error.connection_invalidated or never_reached or state.startswith(("08", "57P", "53300")):
        return Unavailable("the database doesn't answer", reason="DATABASE_AWAY", retry_after_s=1.0)
    return None


def _disk(engine: Engine | None) -> str:
    """Say whose disk it is, but no path on it: callers read this."""
    name = engine.url.database if engine is not None else None
    if engine is None or name is None:
        return "the disk of the database"
    if engine.dialect.name == "sqlite":
        return f"the service's disk that holds its database, {Path(name).name},"
    return f"the disk of the PostgreSQL server that holds the database {name!r}"


async def open_database(url: str, *, script_location: Path | str | None = None) -> Database:
    """Return the database at `url`, locked against a second replica (SQLite) and migrated forward.

    Args:
        url: `sqlite:///FILE` or `postgresql+…://…`.
        script_location: folder of the Alembic scripts; None leaves the schema alone.

    Raises:
        Invalid: when the URL can't be used.
        Precondition: when another process uses the SQLite file, or a newer one has migrated the database.
        Unavailable: when the database has to be migrated and doesn't answer.
    """
    return await asyncio.to_thread(_open, url, script_location)


def _open(url: str, script_location: Path | str | None) -> Database:
    path = sqlite_path(parse_url(url))
    lock = SqliteReplicaLock(path).acquire() if path is not None else None
    engine: Engine | None = None
    try:
        engine = open_engine(url)
        if script_location is not None:
            migrate(engine, script_location)
    except DBAPIError as error:
        _discard(engine, lock)
        known = _known(error, engine)
        if known is None:
            raise
        raise known from error
    except BaseException:
        _discard(engine, lock)
        raise
    return Database(engine, lock)


def _discard(engine: Engine | None, lock: SqliteReplicaLock | None) -> None:
    if engine is not None:
        engine.dispose()
    if lock is not None:
        lock.release()

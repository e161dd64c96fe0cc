"""Engines: how connections are set up so that what is committed stays committed."""

from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import StaticPool

from libs.common.errors import Invalid

_BUSY_TIMEOUT_MS = 5_000


def sqlite_path(url: URL) -> Path | None:
    """Return the file of a SQLite URL; None for other databases and for one in memory."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    return Path(url.database)


def parse_url(url: str) -> URL:
    """Return the parsed URL.

    Raises:
        Invalid: when it isn't one of SQLite or PostgreSQL; the message doesn't hold a password.
    """
    try:
        parsed = sqlalchemy.make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None or parsed.get_backend_name() not in ("sqlite", "postgresql"):
        given = parsed.get_backend_name() if parsed is not None else "no URL"
        raise Invalid(
            f"database URL: {given}; use sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE",
            reason="BAD_DATABASE_URL",
        )
    return parsed


def open_engine(url: str) -> Engine:
    """Return an engine for `url`, `sqlite:///FILE` or `postgresql+…://…`; connects at first use.

    SQLite runs in WAL mode with synchronous=FULL (a commit survives a power cut), foreign keys on, and
    transactions that take the write lock as they begin, so that none fails half-way. Its folder is made.

    Raises:
        Invalid: when the URL is no such URL, or its driver isn't installed.
    """
    parsed = parse_url(url)
    try:
        if parsed.get_backend_name() != "sqlite":
            return sqlalchemy.create_engine(parsed, pool_pre_ping=True, pool_size=5, max_overflow=5)
        path = sqlite_path(parsed)
        options: dict[str, Any] = {"connect_args": {"check_same_thread": False}}
        if path is None:
            # Each connection to ":memory:" would be a database of its own.
            options["poolclass"] = StaticPool
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
        engine = sqlalchemy.create_engine(parsed, **options)
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise Invalid(
            f"database URL: the driver of {parsed.drivername!r} isn't installed ({error})",
            reason="NO_DATABASE_DRIVER",
        ) from None
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, record: object) -> None:
    # The driver would begin transactions late and commit them before DDL; SQLAlchemy's own BEGIN is used.
    connection.isolation_level = None
    cursor = connection.cursor()
    try:
        cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
    finally:
        cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")

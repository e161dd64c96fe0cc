"""Single values and counters."""

import sqlite3
from collections.abc import Mapping


def get_blob(connection: sqlite3.Connection, key: str) -> bytes | None:
    """Return the value under `key`."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else bytes(row[0])


def set_blob(connection: sqlite3.Connection, key: str, value: bytes) -> None:
    """Set the value under `key`."""
    connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))


def discard(connection: sqlite3.Connection, key: str) -> None:
    """Remove the value under `key`, if there is one."""
    connection.execute("DELETE FROM meta WHERE key = ?", (key,))


def get_int(connection: sqlite3.Connection, key: str) -> int:
    """Return the number under `key`, 0 when there is none."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return 0 if row is None else int(row[0])


def set_int(connection: sqlite3.Connection, key: str, value: int) -> None:
    """Set the number under `key`."""
    connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))


def add_counters(connection: sqlite3.Connection, **amounts: int) -> None:
    """Add to counters, in the transaction of what is counted."""
    for name, amount in amounts.items():
        if amount:
            connection.execute(
                "INSERT INTO counters (name, value) VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                (name, amount),
            )


def count(connection: sqlite3.Connection, amounts: Mapping[str, int]) -> None:
    """Add to counters as `add_counters` does, by names that come from elsewhere."""
    add_counters(connection, **amounts)


def read_counters(connection: sqlite3.Connection) -> dict[str, int]:
    """Return all counters that were ever touched."""
    return dict(connection.execute("SELECT name, value FROM counters").fetchall())

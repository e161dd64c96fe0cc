"""The tables, and how an older file becomes a newer one.

A migration is a list of statements; the file's `user_version` counts those applied. Never change one that was
released: append.
"""

import sqlite3

from libs.common.errors import Precondition

_FIRST = (
    # Single values: identity, trust, positions.
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    # What apps handed over. `seq` is the order in which it is processed and never reused.
    """CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        event_id TEXT,
        user TEXT NOT NULL,
        type TEXT NOT NULL,
        page TEXT NOT NULL,
        time_s REAL NOT NULL,
        fields TEXT NOT NULL,
        size INTEGER NOT NULL,
        receive_time_s REAL NOT NULL)""",
    "CREATE UNIQUE INDEX events_id ON events (event_id) WHERE event_id IS NOT NULL",
    "CREATE INDEX events_user ON events (user, time_s)",
    "CREATE INDEX events_time ON events (time_s)",
    # How far each events file was read, moved in the transaction that stores what was read.
    """CREATE TABLE files (
        path TEXT PRIMARY KEY, inode INTEGER NOT NULL, offset INTEGER NOT NULL, line INTEGER NOT NULL
        ) WITHOUT ROWID""",
    # Task versions on this device. Who runs: the one of each task that is ACTIVE or CONFIRMED.
    """CREATE TABLE versions (
        task TEXT NOT NULL,
        version TEXT NOT NULL,
        state TEXT NOT NULL,
        release TEXT NOT NULL,
        manifest_digest TEXT NOT NULL,
        manifest BLOB NOT NULL,
        activated_seq INTEGER NOT NULL DEFAULT 0,
        idle_s REAL NOT NULL DEFAULT 0,
        success_count INTEGER NOT NULL DEFAULT 0,
        failure_count INTEGER NOT NULL DEFAULT 0,
        failures_in_a_row INTEGER NOT NULL DEFAULT 0,
        successes_since INTEGER NOT NULL DEFAULT 0,
        failure_reason TEXT NOT NULL DEFAULT '',
        failure_message TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (task, version)) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX one_running ON versions (task) WHERE state IN ('ACTIVE', 'CONFIRMED')",
    "CREATE UNIQUE INDEX one_previous ON versions (task) WHERE state = 'PREVIOUS'",
    # Stage reports that the cloud hasn't acknowledged.
    """CREATE TABLE reports (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        report_id TEXT NOT NULL UNIQUE,
        task TEXT NOT NULL,
        version TEXT NOT NULL,
        release TEXT NOT NULL,
        stage TEXT NOT NULL,
        event_time_s REAL NOT NULL,
        failure_reason TEXT NOT NULL DEFAULT '',
        failure_message TEXT NOT NULL DEFAULT '',
        UNIQUE (task, version, release, stage))""",
    # Trigger matches that wait for their run. `events` holds the matched events, so that retention can't
    # take them away; `last_seq` bounds what features may see, so that a repeated run sees the same.
    """CREATE TABLE runs (
        run_id INTEGER PRIMARY KEY AUTOINCREMENT,
        task TEXT NOT NULL,
        version TEXT NOT NULL,
        last_seq INTEGER NOT NULL,
        event_time_s REAL NOT NULL,
        trigger_time_s REAL NOT NULL,
        events TEXT NOT NULL)""",
    "CREATE INDEX runs_task ON runs (task, version, run_id)",
    """CREATE TABLE results (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        task TEXT NOT NULL,
        version TEXT NOT NULL,
        user TEXT NOT NULL,
        result TEXT NOT NULL,
        failure_reason TEXT NOT NULL,
        failure_message TEXT NOT NULL,
        event_time_s REAL NOT NULL,
        latency_ms REAL NOT NULL)""",
    "CREATE INDEX results_task ON results (task, seq)",
    # What goes through the tunnel. A stream's epoch is made with its row.
    """CREATE TABLE streams (
        stream TEXT PRIMARY KEY, epoch BLOB NOT NULL, next_sequence INTEGER NOT NULL, acked INTEGER NOT NULL
        ) WITHOUT ROWID""",
    """CREATE TABLE frames (
        stream TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        order_id INTEGER NOT NULL,
        schema_id TEXT NOT NULL,
        event_time_s REAL NOT NULL,
        payload BLOB NOT NULL,
        tombstone TEXT NOT NULL,
        PRIMARY KEY (stream, sequence)) WITHOUT ROWID""",
    "CREATE INDEX frames_live ON frames (order_id) WHERE tombstone = ''",
)

# The trace that an event came with, so that its runs go on with it; "" for none.
_TRACES = (
    "ALTER TABLE events ADD COLUMN traceparent TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN traceparent TEXT NOT NULL DEFAULT ''",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST, _TRACES)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date, each migration whole or not at all.

    Raises:
        Precondition: when the file is of a newer agent.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise Precondition(
            f"the store was written by a newer agent (schema {version}, this one knows {len(MIGRATIONS)}); "
            "run that agent, or start with an empty state folder",
            reason="STORE_TOO_NEW",
        )
    for number in range(version, len(MIGRATIONS)):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in MIGRATIONS[number]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={number + 1}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

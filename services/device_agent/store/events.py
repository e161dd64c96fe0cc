"""Events as the store has them, and the features' window over them."""

import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from libs.task.event import Event
from libs.task.jsontext import canonical
from services.device_agent.domain.retention import Cut
from services.device_agent.store.bad_rows import BAD_ROW, note_bad_row
from services.device_agent.store.values import add_counters, get_int, read_counters, set_int

_COLUMNS = "seq, COALESCE(event_id, ''), type, page, user, time_s, fields, traceparent"
# Rows fetched at a time where a reader may stop early.
_CHUNK = 256

PROCESSED = "processed_seq"
"""Key of the last event whose triggers have been handled."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event with its place in the order."""

    seq: int
    event: Event
    traceparent: str = ""
    """Of the trace that it came with; empty for none."""


@dataclass(frozen=True, slots=True)
class FilePosition:
    """How far an events file has been read."""

    inode: int
    offset: int
    """Bytes."""
    line: int
    """Lines."""


def add_events(
    connection: sqlite3.Connection,
    events: Iterable[Event],
    now_s: float,
    position: tuple[str, FilePosition] | None = None,
    traceparent: str = "",
) -> tuple[int, int]:
    """Store the events that aren't there yet by their id, how far their file was read, and their trace.

    Returns:
        How many were new, and how many were there.
    """
    new = old = size = 0
    for event in events:
        fields = canonical(dict(event.fields))
        length = len(canonical(event.to_json()).encode())
        cursor = connection.execute(
            "INSERT OR IGNORE INTO events (event_id, user, type, page, time_s, fields, size, receive_time_s,"
            " traceparent) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                event.event_id or None,
                event.user,
                event.type,
                event.page,
                event.time_s,
                fields,
                length,
                now_s,
                traceparent,
            ),
        )
        if cursor.rowcount == 1:
            new += 1
            size += length
        else:
            old += 1
    add_counters(connection, event_count=new, event_bytes=size, stored_events=new, stored_bytes=size)
    if position is not None:
        path, at = position
        connection.execute(
            "INSERT OR REPLACE INTO files (path, inode, offset, line) VALUES (?, ?, ?, ?)",
            (path, at.inode, at.offset, at.line),
        )
    return new, old


def file_position(connection: sqlite3.Connection, path: str) -> FilePosition | None:
    """Return how far the events file at `path` was read."""
    row = connection.execute("SELECT inode, offset, line FROM files WHERE path = ?", (path,)).fetchone()
    return None if row is None else FilePosition(*row)


def read_events(
    connection: sqlite3.Connection, after_seq: int, count: int, up_to: int | None = None
) -> list[StoredEvent]:
    """Return the next events after `after_seq`, in order; those that can't be read are dropped."""
    while True:
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM events WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
            (after_seq, 2**62 if up_to is None else up_to, count),
        ).fetchall()
        events: list[StoredEvent] = []
        for row in rows:
            try:
                events.append(_stored(row))
            except BAD_ROW as error:
                _drop(connection, row[0], error)
        # With every one of them dropped there may be more behind.
        if events or not rows:
            return events


def processed_seq(connection: sqlite3.Connection) -> int:
    """Return the last event whose triggers have been handled."""
    return get_int(connection, PROCESSED)


def set_processed_seq(connection: sqlite3.Connection, seq: int) -> None:
    """Move the position, in the transaction of its effects."""
    set_int(connection, PROCESSED, seq)


def backlog(connection: sqlite3.Connection) -> int:
    """Return about how many events wait to be processed: an upper bound, exact without deletions."""
    (last,) = connection.execute("SELECT COALESCE(MAX(seq), 0) FROM events").fetchone()
    return max(0, int(last) - processed_seq(connection))


def replay_start(connection: sqlite3.Connection, horizon_s: float) -> int:
    """Return the place after which the processed events rebuild every user's live partial matches.

    That is just before the oldest event at most `horizon_s` of event time older than its user's newest.
    """
    done = processed_seq(connection)
    (first,) = connection.execute(
        "SELECT MIN(e.seq) FROM events e JOIN"
        " (SELECT user, MAX(time_s) AS newest FROM events WHERE seq <= ? GROUP BY user) u ON e.user = u.user"
        " WHERE e.seq <= ? AND e.time_s >= u.newest - ?",
        (done, done, horizon_s),
    ).fetchone()
    return done if first is None else int(first) - 1


def window(
    connection: sqlite3.Connection,
    *,
    user: str | None,
    start_s: float,
    end_s: float,
    last_seq: int,
    selects: Callable[[Event], bool],
    count: int,
    max_scanned: int,
) -> list[Event]:
    """Return the newest `count` events by event time that `selects` takes, in (start_s, end_s].

    Args:
        connection: the store.
        user: whose; None for everybody's.
        start_s: exclusive start of the window, Unix seconds.
        end_s: inclusive end.
        last_seq: events stored later don't exist yet, so that a repeated run sees what the first saw.
        selects: whether an event takes a place.
        count: how many at most.
        max_scanned: rows looked at at most, to bound the time.
    """
    condition, who = ("", ()) if user is None else ("user = ? AND ", (user,))
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM events WHERE {condition}time_s > ? AND time_s <= ? AND seq <= ?"
        " ORDER BY time_s DESC, seq DESC LIMIT ?",
        (*who, start_s, end_s, last_seq, max_scanned),
    )
    found: list[Event] = []
    cut_s = float("-inf")
    while chunk := rows.fetchmany(_CHUNK):
        for row in chunk:
            try:
                event = _stored(row).event
            except BAD_ROW as error:
                _drop(connection, row[0], error)
                continue
            if len(found) >= count and event.time_s < cut_s:
                return found
            if selects(event):
                found.append(event)
                # Events of one moment all come along: the feature itself orders them by id.
                if len(found) == count:
                    cut_s = event.time_s
    return found


def cut_events(connection: sqlite3.Connection, cut: Cut, needed_after_s: float) -> tuple[int, bool]:
    """Delete what retention decided, never an unprocessed event.

    Returns:
        How many went, and whether one of them was received after `needed_after_s`, so is missed by a window.
    """
    last = counted = size = 0
    newest = float("-inf")
    for seq, length, received_s in connection.execute(
        "SELECT seq, size, receive_time_s FROM events WHERE seq <= ? ORDER BY seq",
        (processed_seq(connection),),
    ):
        # From the oldest on and no further than the first that stays: a jump of the clock takes nothing.
        if received_s >= cut.before_s and counted >= cut.excess_count and size >= cut.excess_bytes:
            break
        last, counted, size, newest = seq, counted + 1, size + length, max(newest, received_s)
    if not counted:
        return 0, False
    connection.execute("DELETE FROM events WHERE seq <= ?", (last,))
    add_counters(connection, stored_events=-counted, stored_bytes=-size)
    return counted, newest > needed_after_s


def stored_size(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return how many events are kept, and their bytes as JSON."""
    counters = read_counters(connection)
    return counters.get("stored_events", 0), counters.get("stored_bytes", 0)


def event_from_row(value: dict[str, object]) -> Event:
    """Rebuild an event from its JSON object; it was checked when it came in."""
    return Event(**value)  # type: ignore[arg-type]


def _stored(row: tuple[int, str, str, str, str, float, str, str]) -> StoredEvent:
    seq, event_id, type_, page, user, time_s, fields, traceparent = row
    loaded = json.loads(fields)
    if not isinstance(loaded, dict):
        raise TypeError(f"fields are of type {type(loaded).__name__}")
    event = Event(event_id, type_, page, user, float(time_s), loaded)
    return StoredEvent(seq, event, str(traceparent))


def _drop(connection: sqlite3.Connection, seq: int, error: Exception) -> None:
    connection.execute("DELETE FROM events WHERE seq = ?", (seq,))
    note_bad_row(connection, f"event {seq}", error)
    count, size = connection.execute("SELECT COUNT(*), COALESCE(SUM(size), 0) FROM events").fetchone()
    counters = read_counters(connection)
    add_counters(
        connection,
        stored_events=count - counters.get("stored_events", 0),
        stored_bytes=size - counters.get("stored_bytes", 0),
    )

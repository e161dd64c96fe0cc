"""Streams and their frames: numbered when they are made, kept until the cloud has them."""

import sqlite3
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from services.device_agent.store.bad_rows import note_bad_row
from services.device_agent.store.values import add_counters

DROPPED = "DROPPED"
"""Tombstone of a frame that made room for newer ones."""
UNREADABLE = "UNREADABLE"
"""Tombstone of a frame that can't be sent as it is in the store."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream in this life of the store."""

    stream: str
    """`<task>/<stream>`."""
    epoch: bytes
    acked: int
    """Highest sequence that the cloud has acknowledged."""
    waiting: bool
    """Whether it has frames, or tombstones, that the cloud doesn't have."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame in the queue."""

    stream: str
    sequence: int
    schema_id: str
    event_time_s: float
    payload: bytes
    tombstone: str = ""


def ensure_streams(connection: sqlite3.Connection, epochs: Mapping[str, bytes]) -> None:
    """Make the rows of streams that have none; `epochs` holds 16 random bytes for each."""
    connection.executemany(
        "INSERT OR IGNORE INTO streams (stream, epoch, next_sequence, acked) VALUES (?, ?, 1, 0)",
        epochs.items(),
    )


def list_streams(connection: sqlite3.Connection) -> list[Stream]:
    """Return all streams by name."""
    rows = connection.execute(
        "SELECT stream, epoch, acked, EXISTS (SELECT 1 FROM frames f WHERE f.stream = s.stream)"
        " FROM streams s ORDER BY stream"
    )
    return [Stream(stream, bytes(epoch), acked, bool(waiting)) for stream, epoch, acked, waiting in rows]


def drop_streams(connection: sqlite3.Connection, used: Collection[str]) -> int:
    """Forget the streams that no version here uses any more and that hold nothing; return how many went.

    A stream that is used again later begins a new epoch.
    """
    gone = [s.stream for s in list_streams(connection) if s.stream not in used and not s.waiting]
    connection.executemany("DELETE FROM streams WHERE stream = ?", [(stream,) for stream in gone])
    return len(gone)


def add_frame(
    connection: sqlite3.Connection,
    stream: str,
    schema_id: str,
    event_time_s: float,
    payload: bytes,
    tombstone: str = "",
) -> int:
    """Append a frame, or the tombstone of one, to its stream; return its sequence."""
    row = connection.execute(
        "UPDATE streams SET next_sequence = next_sequence + 1 WHERE stream = ? RETURNING next_sequence - 1",
        (stream,),
    ).fetchone()
    if row is None:
        raise LookupError(f"stream {stream!r} has no row; ensure_streams makes it at activation")
    sequence = int(row[0])
    add_counters(connection, frame_order=1)
    connection.execute(
        "INSERT INTO frames (stream, sequence, order_id, schema_id, event_time_s, payload, tombstone)"
        " VALUES (?, ?, (SELECT value FROM counters WHERE name = 'frame_order'), ?, ?, ?, ?)",
        (stream, sequence, schema_id, event_time_s, payload, tombstone),
    )
    if not tombstone:
        add_counters(
            connection, frame_count=1, frame_bytes=len(payload), live_frames=1, live_bytes=len(payload)
        )
    return sequence


def read_frames(
    connection: sqlite3.Connection, stream: str, after_sequence: int, count: int, max_bytes: int
) -> list[Frame]:
    """Return the next frames of a stream, in order: at most `max_bytes`, but at least one."""
    frames: list[Frame] = []
    size = 0
    for row in connection.execute(
        "SELECT stream, sequence, schema_id, event_time_s, payload, tombstone, LENGTH(payload) FROM frames"
        " WHERE stream = ? AND sequence > ? ORDER BY sequence LIMIT ?",
        (stream, after_sequence, count),
    ):
        frame = Frame(row[0], row[1], row[2], row[3], row[4], row[5])
        size += row[6]
        if frames and size > max_bytes:
            break
        frames.append(frame)
    return frames


def ack_frames(connection: sqlite3.Connection, stream: str, epoch: bytes, sequence: int) -> bool:
    """Delete the frames up to `sequence`, which the cloud has; False for an epoch of another life."""
    row = connection.execute(
        "SELECT epoch, acked, next_sequence FROM streams WHERE stream = ?", (stream,)
    ).fetchone()
    if row is None or bytes(row[0]) != epoch or sequence >= row[2]:
        return False
    if sequence <= row[1]:
        return True
    live, size = connection.execute(
        "SELECT COUNT(*), COALESCE(SUM(LENGTH(payload)), 0) FROM frames"
        " WHERE stream = ? AND sequence <= ? AND tombstone = ''",
        (stream, sequence),
    ).fetchone()
    connection.execute("DELETE FROM frames WHERE stream = ? AND sequence <= ?", (stream, sequence))
    connection.execute("UPDATE streams SET acked = ? WHERE stream = ?", (sequence, stream))
    add_counters(connection, acked_frame_count=live, live_frames=-live, live_bytes=-size)
    return True


def spoil_frame(connection: sqlite3.Connection, stream: str, sequence: int, error: Exception) -> None:
    """Put a tombstone in the place of a frame that can't be sent, so that those behind it can."""
    row = connection.execute(
        "SELECT LENGTH(payload) FROM frames WHERE stream = ? AND sequence = ? AND tombstone = ''",
        (stream, sequence),
    ).fetchone()
    connection.execute(
        f"UPDATE frames SET payload = x'', schema_id = '', event_time_s = 0, tombstone = '{UNREADABLE}'"
        " WHERE stream = ? AND sequence = ?",
        (stream, sequence),
    )
    note_bad_row(connection, f"frame {sequence} of {stream}", error)
    if row is not None:
        add_counters(connection, dropped_frame_count=1, live_frames=-1, live_bytes=-row[0])


def drop_oldest(connection: sqlite3.Connection, max_frames: int, max_bytes: int) -> int:
    """Turn the oldest frames into tombstones until the live ones fit the bounds; return how many went."""
    rows = connection.execute("SELECT name, value FROM counters WHERE name IN ('live_frames', 'live_bytes')")
    counters = dict(rows.fetchall())
    count, size = counters.get("live_frames", 0), counters.get("live_bytes", 0)
    gone: list[tuple[str, int]] = []
    freed = 0
    if count > max_frames or size > max_bytes:
        for stream, sequence, length in connection.execute(
            "SELECT stream, sequence, LENGTH(payload) FROM frames WHERE tombstone = '' ORDER BY order_id"
        ):
            if count - len(gone) <= max_frames and size - freed <= max_bytes:
                break
            gone.append((stream, sequence))
            freed += length
    connection.executemany(
        f"UPDATE frames SET payload = x'', tombstone = '{DROPPED}' WHERE stream = ? AND sequence = ?", gone
    )
    add_counters(connection, dropped_frame_count=len(gone), live_frames=-len(gone), live_bytes=-freed)
    return len(gone)


def restart_streams(connection: sqlite3.Connection, max_rows: int, epochs: Iterable[bytes]) -> list[str]:
    """Begin a new epoch for streams with more than `max_rows` waiting entries; return which.

    Tombstones keep a sequence whole, one row each; a device that is offline for months must not collect them
    without end. A new epoch needs none of the old.
    """
    rows = connection.execute(
        "SELECT stream FROM frames GROUP BY stream HAVING COUNT(*) > ? ORDER BY stream", (max_rows,)
    ).fetchall()
    restarted: list[str] = []
    for (stream,), epoch in zip(rows, epochs, strict=False):
        live, size = connection.execute(
            "SELECT COUNT(*), COALESCE(SUM(LENGTH(payload)), 0) FROM frames"
            " WHERE stream = ? AND tombstone = ''",
            (stream,),
        ).fetchone()
        connection.execute("DELETE FROM frames WHERE stream = ?", (stream,))
        connection.execute(
            "UPDATE streams SET epoch = ?, next_sequence = 1, acked = 0 WHERE stream = ?", (epoch, stream)
        )
        add_counters(connection, dropped_frame_count=live, live_frames=-live, live_bytes=-size)
        restarted.append(stream)
    return restarted


def renumber_stream(connection: sqlite3.Connection, stream: str, old: bytes, epoch: bytes) -> bool:
    """Begin a new epoch that keeps the waiting entries, numbered from 1.

    Returns False, and does nothing, for a stream that isn't in the epoch `old` any more.
    """
    known = connection.execute("SELECT 1 FROM streams WHERE stream = ? AND epoch = ?", (stream, old))
    if known.fetchone() is None:
        return False
    rows = connection.execute(
        "SELECT sequence FROM frames WHERE stream = ? ORDER BY sequence", (stream,)
    ).fetchall()
    # Ascending, and new numbers never exceed old ones: no two entries share a number on the way.
    connection.executemany(
        "UPDATE frames SET sequence = ? WHERE stream = ? AND sequence = ?",
        [(new, stream, old) for new, (old,) in enumerate(rows, 1)],
    )
    connection.execute(
        "UPDATE streams SET epoch = ?, next_sequence = ?, acked = 0 WHERE stream = ?",
        (epoch, len(rows) + 1, stream),
    )
    return True

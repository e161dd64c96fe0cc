"""Task versions, what changes them, and the stage reports that those changes owe to the cloud."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from services.device_agent.domain.rollout import Entry, Stage, State, Version, succeed
from services.device_agent.store.bad_rows import BAD_ROW, note_bad_row
from services.device_agent.store.events import processed_seq
from services.device_agent.store.frames import ensure_streams
from services.device_agent.store.values import add_counters

_COLUMNS = (
    "task, version, state, release, manifest_digest, activated_seq, idle_s, success_count, failure_count,"
    " failures_in_a_row, successes_since, failure_reason, failure_message"
)
# What the cloud keeps of a message, in bytes of UTF-8. A report that it refused would never be heard of.
_MAX_MESSAGE = 4096
# Notes of given-up versions kept for each task, so that they stay bounded.
_MAX_FAILED = 16


@dataclass(frozen=True, slots=True)
class Report:
    """A stage report in the queue."""

    report_id: str
    task: str
    version: str
    release: str
    stage: Stage
    event_time_s: float
    failure_reason: str = ""
    failure_message: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """When something happens, and the id that its report gets."""

    time_s: float
    report_id: str


def list_versions(connection: sqlite3.Connection) -> list[Version]:
    """Return all versions, by task and version."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM versions ORDER BY task, version")
    return [_version(row) for row in rows]


def find_version(connection: sqlite3.Connection, task: str, version: str) -> Version | None:
    """Return one version."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM versions WHERE task = ? AND version = ?", (task, version)
    ).fetchone()
    return None if row is None else _version(row)


def read_manifest(connection: sqlite3.Connection, task: str, version: str) -> bytes:
    """Return the signed manifest of a version as it was transported; empty for a version that isn't here."""
    row = connection.execute(
        "SELECT manifest FROM versions WHERE task = ? AND version = ?", (task, version)
    ).fetchone()
    return b"" if row is None else bytes(row[0])


def profile(connection: sqlite3.Connection) -> list[str]:
    """Return `task@version` of what runs, sorted."""
    rows = connection.execute("SELECT task, version FROM versions WHERE state IN ('ACTIVE', 'CONFIRMED')")
    return sorted(f"{task}@{version}" for task, version in rows)


def put_staged(connection: sqlite3.Connection, entry: Entry, manifest: bytes, moment: Moment) -> None:
    """Note that the files of `entry` are in place and verified. A version kept to go back to stays so."""
    known = find_version(connection, entry.task, entry.version)
    if known is not None and known.state is State.PREVIOUS:
        connection.execute(
            "UPDATE versions SET release = ? WHERE task = ? AND version = ?",
            (entry.release, entry.task, entry.version),
        )
    elif known is None or not known.state.runs:
        connection.execute(
            "INSERT OR REPLACE INTO versions (task, version, state, release, manifest_digest, manifest)"
            " VALUES (?, ?, 'STAGED', ?, ?, ?)",
            (entry.task, entry.version, entry.release, entry.manifest_digest, manifest),
        )
    add_report(connection, entry.task, entry.version, entry.release, Stage.STAGED, moment)


def activate(
    connection: sqlite3.Connection, entries: Sequence[tuple[Entry, Moment]], epochs: Mapping[str, bytes]
) -> None:
    """Let the staged versions run in place of their predecessors, all in one.

    Args:
        connection: the store.
        entries: what to activate; each must be here with its files.
        epochs: `<task>/<stream>` → 16 random bytes, for streams that have no row yet.
    """
    versions = list_versions(connection)
    seq = processed_seq(connection)
    for entry, moment in entries:
        succession = succeed(versions, entry)
        for version in succession.drop:
            _forget(connection, entry.task, version)
        if succession.running is not None and succession.keep_running_as_previous:
            _set_state(connection, entry.task, succession.running, State.PREVIOUS)
        cursor = connection.execute(
            "UPDATE versions SET state = 'ACTIVE', release = ?, activated_seq = ?, idle_s = 0,"
            " failures_in_a_row = 0, successes_since = 0 WHERE task = ? AND version = ?",
            (entry.release, seq, entry.task, entry.version),
        )
        if cursor.rowcount != 1:
            raise LookupError(f"{entry.key} isn't staged")
        add_report(connection, entry.task, entry.version, entry.release, Stage.ACTIVATED, moment)
    ensure_streams(connection, epochs)


def relabel(connection: sqlite3.Connection, entry: Entry, moment: Moment) -> None:
    """Note that a running version now runs for another release, and report where it stands for that one."""
    known = find_version(connection, entry.task, entry.version)
    if known is None or not known.state.runs:
        return
    connection.execute(
        "UPDATE versions SET release = ? WHERE task = ? AND version = ?",
        (entry.release, entry.task, entry.version),
    )
    stage = Stage.CONFIRMED if known.state is State.CONFIRMED else Stage.ACTIVATED
    add_report(connection, entry.task, entry.version, entry.release, stage, moment)


def fail_staged(
    connection: sqlite3.Connection, entry: Entry, reason: str, message: str, moment: Moment
) -> None:
    """Give up a version that never ran: what runs goes on, and the note keeps it from being tried again."""
    connection.execute(
        "INSERT OR REPLACE INTO versions"
        " (task, version, state, release, manifest_digest, manifest, activated_seq, failure_reason,"
        " failure_message) VALUES (?, ?, 'FAILED', ?, ?, x'', ?, ?, ?)",
        (
            entry.task,
            entry.version,
            entry.release,
            entry.manifest_digest,
            processed_seq(connection),
            reason,
            _kept(message),
        ),
    )
    _prune_failed(connection, entry.task)
    add_report(connection, entry.task, entry.version, entry.release, Stage.FAILED, moment, reason, message)


def save_counts(connection: sqlite3.Connection, version: Version) -> None:
    """Write a version's counts and idle time."""
    connection.execute(
        "UPDATE versions SET idle_s = ?, success_count = ?, failure_count = ?, failures_in_a_row = ?,"
        " successes_since = ? WHERE task = ? AND version = ?",
        (
            version.idle_s,
            version.success_count,
            version.failure_count,
            version.failures_in_a_row,
            version.successes_since,
            version.task,
            version.version,
        ),
    )


def note_failure(connection: sqlite3.Connection, version: Version, reason: str, message: str) -> None:
    """Note a version's last failed run, as it is reported should the version be given up for it."""
    connection.execute(
        "UPDATE versions SET failure_reason = ?, failure_message = ? WHERE task = ? AND version = ?",
        (reason, _kept(message), version.task, version.version),
    )


def confirm(connection: sqlite3.Connection, version: Version, moment: Moment) -> None:
    """Note that a version is well."""
    _set_state(connection, version.task, version.version, State.CONFIRMED)
    add_report(connection, version.task, version.version, version.release, Stage.CONFIRMED, moment)


def roll_back(
    connection: sqlite3.Connection, task: str, version: str, reason: str, message: str, moment: Moment
) -> str | None:
    """Give up the running version and let the previous one run again; return which, None when there is none.

    Does nothing, and returns None, when `version` isn't what runs.
    """
    known = find_version(connection, task, version)
    if known is None or not known.state.runs:
        return None
    _set_state(connection, task, version, State.FAILED)
    connection.execute(
        "UPDATE versions SET manifest = x'', failure_reason = ?, failure_message = ?"
        " WHERE task = ? AND version = ?",
        (reason, _kept(message), task, version),
    )
    _drop_runs(connection, task, version)
    _prune_failed(connection, task)
    add_report(connection, task, version, known.release, Stage.FAILED, moment, reason, message)
    return _restore_previous(connection, task)


def forget(connection: sqlite3.Connection, task: str, version: str) -> None:
    """Forget a version that can't be used, through no fault of its own; if it ran, the previous one does now.

    Nothing is reported: if the cloud still wants it, the next pull brings it back.
    """
    known = find_version(connection, task, version)
    _forget(connection, task, version)
    if known is not None and known.state.runs:
        _restore_previous(connection, task)


def remove_task(connection: sqlite3.Connection, task: str) -> None:
    """Forget the versions of a task that the set no longer holds, but for the notes of failed ones.

    What its streams hold is sent still.
    """
    rows = connection.execute(
        "SELECT version FROM versions WHERE task = ? AND state != 'FAILED'", (task,)
    ).fetchall()
    for (version,) in rows:
        _forget(connection, task, version)


def add_report(
    connection: sqlite3.Connection,
    task: str,
    version: str,
    release: str,
    stage: Stage,
    moment: Moment,
    reason: str = "",
    message: str = "",
) -> None:
    """Queue a stage report, once for each version, release and stage that waits."""
    connection.execute(
        "INSERT OR IGNORE INTO reports"
        " (report_id, task, version, release, stage, event_time_s, failure_reason, failure_message)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            moment.report_id,
            task,
            version,
            release,
            stage.value,
            moment.time_s,
            reason,
            _kept(message),
        ),
    )


def read_reports(connection: sqlite3.Connection, count: int) -> list[Report]:
    """Return the oldest reports that the cloud doesn't have; those that can't be read are dropped."""
    while True:
        rows = connection.execute(
            "SELECT report_id, task, version, release, stage, event_time_s, failure_reason, failure_message"
            " FROM reports ORDER BY seq LIMIT ?",
            (count,),
        ).fetchall()
        reports: list[Report] = []
        for row in rows:
            try:
                stage, time_s = Stage(row[4]), float(row[5])
            except BAD_ROW as error:
                drop_report(connection, row[0], error)
            else:
                reports.append(Report(row[0], row[1], row[2], row[3], stage, time_s, row[6], row[7]))
        # With every one of them dropped there may be more behind.
        if reports or not rows:
            return reports


def drop_report(connection: sqlite3.Connection, report_id: str, error: Exception) -> None:
    """Drop a report that can't be read or sent."""
    connection.execute("DELETE FROM reports WHERE report_id = ?", (report_id,))
    note_bad_row(connection, f"report {report_id}", error)


def delete_reports(connection: sqlite3.Connection, report_ids: Sequence[str]) -> None:
    """Delete reports that the cloud has."""
    connection.executemany("DELETE FROM reports WHERE report_id = ?", [(id_,) for id_ in report_ids])


def _kept(message: str) -> str:
    """Return what of a failure's message is kept and reported: bounded, and without NUL."""
    return message.replace("\0", "\ufffd").encode()[:_MAX_MESSAGE].decode(errors="ignore")


def _version(row: tuple[object, ...]) -> Version:
    version = Version(*row)  # type: ignore[arg-type]
    return replace(version, state=State(version.state))


def _set_state(connection: sqlite3.Connection, task: str, version: str, state: State) -> None:
    connection.execute(
        "UPDATE versions SET state = ? WHERE task = ? AND version = ?", (state.value, task, version)
    )


def _forget(connection: sqlite3.Connection, task: str, version: str) -> None:
    connection.execute("DELETE FROM versions WHERE task = ? AND version = ?", (task, version))
    _drop_runs(connection, task, version)


def _restore_previous(connection: sqlite3.Connection, task: str) -> str | None:
    row = connection.execute(
        "UPDATE versions SET state = 'CONFIRMED', activated_seq = ?, failures_in_a_row = 0,"
        " successes_since = 0 WHERE task = ? AND state = 'PREVIOUS' RETURNING version",
        (processed_seq(connection), task),
    ).fetchone()
    return None if row is None else str(row[0])


def _prune_failed(connection: sqlite3.Connection, task: str) -> None:
    connection.execute(
        "DELETE FROM versions WHERE task = ?1 AND state = 'FAILED' AND version NOT IN (SELECT version"
        " FROM versions WHERE task = ?1 AND state = 'FAILED' ORDER BY activated_seq DESC LIMIT ?2)",
        (task, _MAX_FAILED),
    )


def _drop_runs(connection: sqlite3.Connection, task: str, version: str) -> None:
    cursor = connection.execute("DELETE FROM runs WHERE task = ? AND version = ?", (task, version))
    add_counters(connection, dropped_run_count=cursor.rowcount, withdrawn_run_count=cursor.rowcount)

"""Waiting runs, and the one transaction in which a run's effects appear."""

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from libs.task.event import Event
from libs.task.jsontext import canonical
from libs.task.manifest import CheckedHealth
from services.device_agent.domain.rollout import Verdict, after_run
from services.device_agent.domain.times import bounded_time
from services.device_agent.domain.uploads import Outgoing
from services.device_agent.store.bad_rows import BAD_ROW, note_bad_row
from services.device_agent.store.events import event_from_row, set_processed_seq
from services.device_agent.store.frames import add_frame, drop_oldest
from services.device_agent.store.values import add_counters
from services.device_agent.store.versions import Moment, confirm, find_version, note_failure, save_counts


@dataclass(frozen=True, slots=True)
class NewRun:
    """A trigger has matched."""

    task: str
    version: str
    last_seq: int
    """Place of the event that completed it."""
    trigger_time_s: float
    """When it matched, by the gateway's clock as far as it is known."""
    events: tuple[Event, ...]
    traceparent: str = ""
    """Of the trace that the completing event came with; empty for none."""


@dataclass(frozen=True, slots=True)
class Run:
    """A waiting run."""

    run_id: int
    task: str
    version: str
    last_seq: int
    event_time_s: float
    """Event time of the event that completed the trigger."""
    trigger_time_s: float
    events: tuple[Event, ...]
    traceparent: str = ""

    @property
    def user(self) -> str:
        """Whose events triggered it."""
        return self.events[-1].user if self.events else ""


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """What is known of a waiting run without reading it."""

    run_id: int
    task: str
    version: str
    user: str
    """Whose events triggered it."""
    run: Run | None = field(default=None, compare=False)
    """The run itself while it is fresh, to save the reading; None when it has to be read."""


@dataclass(frozen=True, slots=True)
class Result:
    """A run's result, as apps see it."""

    sequence: int
    task: str
    version: str
    user: str
    result: str
    """JSON; empty when the run failed."""
    failure_reason: str
    failure_message: str
    event_time_s: float
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Finished:
    """How a run ended."""

    result: str
    """JSON; empty when it failed."""
    outgoing: Sequence[Outgoing] = ()
    failure_reason: str = ""
    failure_message: str = ""
    """Stays on the device."""
    failure_report: str = ""
    """What the cloud may be told of it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the tunnel's queue may hold."""

    max_frames: int
    max_frame_bytes: int
    max_results: int


def add_runs(
    connection: sqlite3.Connection,
    processed: int,
    runs: Iterable[NewRun],
    limits: Mapping[str, int],
    in_flight: Sequence[int] = (),
) -> tuple[list[QueuedRun], list[int]]:
    """Queue the runs that a batch of events triggered and move the position, in one.

    Args:
        connection: the store.
        processed: last event of the batch.
        runs: in the order of their triggers.
        limits: `task` → how many runs of it may wait; beyond it the oldest go.
        in_flight: runs that don't wait any more; few.

    Returns:
        The new ones, and the ids of runs that were dropped, new ones included.
    """
    added: list[QueuedRun] = []
    for run in runs:
        cursor = connection.execute(
            "INSERT INTO runs (task, version, last_seq, event_time_s, trigger_time_s, events, traceparent)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                run.task,
                run.version,
                run.last_seq,
                run.events[-1].time_s,
                run.trigger_time_s,
                canonical([event.to_json() for event in run.events]),
                run.traceparent,
            ),
        )
        run_id = int(cursor.lastrowid or 0)
        fresh = Run(
            run_id,
            run.task,
            run.version,
            run.last_seq,
            run.events[-1].time_s,
            run.trigger_time_s,
            run.events,
            run.traceparent,
        )
        added.append(QueuedRun(run_id, run.task, run.version, fresh.user, fresh))
    dropped: list[int] = []
    started = ",".join(str(int(run_id)) for run_id in in_flight)
    for task in {run.task for run in added}:
        limit = limits.get(task)
        if limit is not None:
            rows = connection.execute(
                "DELETE FROM runs WHERE run_id IN"
                " (SELECT run_id FROM runs WHERE task = ?"
                f" AND run_id NOT IN ({started}) ORDER BY run_id DESC LIMIT -1 OFFSET ?)"
                " RETURNING run_id",
                (task, limit),
            )
            dropped.extend(int(run_id) for (run_id,) in rows.fetchall())
    add_counters(connection, trigger_count=len(added), dropped_run_count=len(dropped))
    set_processed_seq(connection, processed)
    return added, dropped


def list_runs(connection: sqlite3.Connection) -> list[QueuedRun]:
    """Return all waiting runs, oldest first."""
    # What can't be read is told of when the run's turn comes.
    rows = connection.execute(
        "SELECT run_id, task, version, CASE WHEN json_valid(events)"
        " THEN COALESCE(json_extract(events, '$[#-1].user'), '') ELSE '' END FROM runs ORDER BY run_id"
    )
    return [QueuedRun(run_id, task, version, str(user)) for run_id, task, version, user in rows]


def count_runs(connection: sqlite3.Connection) -> dict[str, int]:
    """Return how many runs of each task wait or are being made."""
    rows = connection.execute("SELECT task, COUNT(*) FROM runs GROUP BY task")
    return {str(task): int(count) for task, count in rows}


def read_run(connection: sqlite3.Connection, run_id: int) -> Run | None:
    """Return a waiting run; None when it was dropped or is done."""
    row = connection.execute(
        "SELECT run_id, task, version, last_seq, event_time_s, trigger_time_s, events, traceparent"
        " FROM runs WHERE run_id = ?",
        (run_id,),
    ).fetchone()
    if row is None:
        return None
    events = tuple(event_from_row(value) for value in json.loads(row[6]))
    return Run(row[0], row[1], row[2], row[3], row[4], row[5], events, str(row[7]))


def is_storable(run: NewRun) -> bool:
    """Tell whether a run's own values fit into the store."""
    try:
        canonical([event.to_json() for event in run.events]).encode()
        return all(math.isfinite(event.time_s) for event in run.events)
    except BAD_ROW:
        return False


def refuse_runs(connection: sqlite3.Connection, runs: Sequence[NewRun], error: Exception) -> None:
    """Count runs that can't be stored."""
    for run in runs:
        note_bad_row(connection, f"a run of {run.task}@{run.version} at event {run.last_seq}", error)
    add_counters(connection, trigger_count=len(runs), dropped_run_count=len(runs))


def drop_run(connection: sqlite3.Connection, run_id: int, error: Exception) -> None:
    """Drop a waiting run that can't be made or stored."""
    cursor = connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))
    note_bad_row(connection, f"run {run_id}", error)
    add_counters(connection, dropped_run_count=cursor.rowcount)


def finish_run(
    connection: sqlite3.Connection,
    run: Run,
    finished: Finished,
    *,
    health: CheckedHealth,
    bounds: Bounds,
    now_s: float,
    offset_s: float,
    moment: Moment,
    counts: Mapping[str, int] = {},
) -> tuple[Result | None, Verdict]:
    """Let a run's effects appear, all of them, once: result, frames, counters, the version's health.

    A run that isn't waiting any more (dropped with its version, or done) has no effects but its counts.

    Args:
        connection: the store.
        run: what ran.
        finished: how it ended.
        health: the manifest's policy.
        bounds: of the queues; what is over goes, oldest first.
        now_s: by the clock that the trigger's time was taken from.
        offset_s: what to add to the device's clock to get the gateway's.
        moment: for the report when this run confirms the version.
        counts: what else has been counted meanwhile, by counter.

    Returns:
        The result as apps see it, and what it means for the version. The caller carries out ROLL_BACK.
    """
    add_counters(connection, **counts)
    if connection.execute("DELETE FROM runs WHERE run_id = ?", (run.run_id,)).rowcount != 1:
        return None, Verdict.NOTHING
    ok = not finished.failure_reason
    verdict = Verdict.NOTHING
    version = find_version(connection, run.task, run.version)
    if version is not None:
        version, verdict = after_run(version, health, ok=ok)
        save_counts(connection, version)
        if not ok:
            note_failure(connection, version, finished.failure_reason, finished.failure_report)
        if verdict is Verdict.CONFIRM:
            confirm(connection, version, moment)
    _add_frames(connection, run, finished.outgoing, offset_s)
    drop_oldest(connection, bounds.max_frames, bounds.max_frame_bytes)
    add_counters(connection, success_count=int(ok), failure_count=int(not ok))
    latency_ms = max(0.0, now_s - run.trigger_time_s) * 1000
    values = (
        run.task,
        run.version,
        run.user,
        finished.result,
        finished.failure_reason,
        finished.failure_message,
        run.event_time_s,
        latency_ms,
    )
    cursor = connection.execute(
        "INSERT INTO results"
        " (task, version, user, result, failure_reason, failure_message, event_time_s, latency_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        values,
    )
    sequence = int(cursor.lastrowid or 0)
    connection.execute("DELETE FROM results WHERE seq <= ?", (sequence - bounds.max_results,))
    return Result(sequence, *values), verdict


def _add_frames(
    connection: sqlite3.Connection, run: Run, outgoing: Sequence[Outgoing], offset_s: float
) -> None:
    for frame in outgoing:
        if frame.refusal:
            add_counters(connection, refused_frame_count=1)
        if frame.stream:
            schema = f"{run.task}@{run.version}/{frame.stream}"
            add_frame(
                connection,
                f"{run.task}/{frame.stream}",
                schema,
                bounded_time(run.event_time_s + offset_s),
                frame.payload,
                frame.refusal,
            )


def read_results(connection: sqlite3.Connection, after: int, task: str, count: int) -> list[Result]:
    """Return the next results after a sequence, of one task or of all."""
    condition, arguments = ("AND task = ? ", (task,)) if task else ("", ())
    rows = connection.execute(
        "SELECT seq, task, version, user, result, failure_reason, failure_message, event_time_s, latency_ms"
        f" FROM results WHERE seq > ? {condition}ORDER BY seq LIMIT ?",
        (after, *arguments, count),
    )
    return [Result(*row) for row in rows]

"""Builders of what a device's store holds."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from libs.task.event import Event
from libs.task.manifest import CheckedHealth
from services.device_agent.domain.rollout import Entry, Verdict
from services.device_agent.domain.uploads import Outgoing
from services.device_agent.store import runs, schema, versions
from services.device_agent.store.runs import Bounds, Finished, NewRun, Result, Run
from services.device_agent.store.versions import Moment

HEALTH = CheckedHealth(confirm_run_count=1, max_failure_count=2)
BOUNDS = Bounds(max_frames=1000, max_frame_bytes=10**6, max_results=1000)


def memory_store() -> sqlite3.Connection:
    """Open an empty store in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    return connection


def event(number: int, user: str = "u", time_s: float | None = None, **fields: Any) -> Event:
    """Build a "go" event, at the moment of its number unless told."""
    return Event(f"e{number}", "go", "", user, float(number if time_s is None else time_s), fields)


def new_run(completing: Event, version: str = "1", last_seq: int = 1, traceparent: str = "") -> NewRun:
    """Build a run of the task "t"."""
    return NewRun("t", version, last_seq, 1.0, (completing,), traceparent)


def start_version(connection: sqlite3.Connection, version: str = "1") -> None:
    """Install a version of the task "t" and let it run; it may send to the stream "t/out"."""
    entry = Entry("t", version, f"digest-{version}", "r")
    versions.put_staged(connection, entry, b"manifest", Moment(0.0, f"staged-{version}"))
    epochs = {"t/out": bytes([len(version)]) * 16}
    versions.activate(connection, [(entry, Moment(0.0, f"active-{version}"))], epochs)


def queue_run(connection: sqlite3.Connection, number: int = 1) -> Run:
    """Let an event's run wait, of version 1; return it as it is read again."""
    added, _ = runs.add_runs(connection, number, [new_run(event(number), last_seq=number)], {"t": 100})
    run = runs.read_run(connection, added[0].run_id)
    assert run is not None
    return run


def finish(
    connection: sqlite3.Connection, run: Run, *, sends: Sequence[Outgoing] = (), bounds: Bounds = BOUNDS
) -> tuple[Result | None, Verdict]:
    """Let a run end well."""
    return runs.finish_run(
        connection,
        run,
        Finished("{}", tuple(sends)),
        health=HEALTH,
        bounds=bounds,
        now_s=2.0,
        offset_s=10.0,
        moment=Moment(2.0, f"confirm-{run.run_id}"),
    )

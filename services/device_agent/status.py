"""What the agent runs and how it does: one picture for the socket and for metrics."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.device_agent.domain.rollout import Version
from services.device_agent.ingest import MAX_BATCH
from services.device_agent.store import events as event_store
from services.device_agent.store import runs as run_store
from services.device_agent.store import values
from services.device_agent.store import versions as version_store


@dataclass(frozen=True, slots=True)
class Status:
    """The picture."""

    device: str
    """Empty before enrolment."""
    agent_version: str
    versions: Sequence[Version]
    counters: Mapping[str, int]
    tunnel_connected: bool
    push_connected: bool
    root_version: int
    problems: Sequence[str]
    pending_events: int = 0
    """Events that wait for their triggers."""
    pending_runs: int = 0
    """Runs that wait or are being made."""
    event_room: int = 0
    """How many events may come now without a run being dropped, should each trigger one."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the store says of itself, all of one moment."""

    versions: Sequence[Version]
    counters: Mapping[str, int]
    pending_events: int
    pending_runs: Mapping[str, int]
    """By task."""

    def event_room(self, limits: Mapping[str, int]) -> int:
        """Return how many events may come now without a run being dropped.

        Args:
            limits: `task` → how many runs of it may wait.
        """
        if self.pending_events:
            return 0  # What they trigger isn't known yet.
        # Half a limit is left to whoever else hands events over; a limit of one must not mean never.
        free = (max(1, limit // 2) - self.pending_runs.get(task, 0) for task, limit in limits.items())
        return max(0, min(free, default=MAX_BATCH))


def read_stored(connection: sqlite3.Connection) -> Stored:
    """Return what the store says of itself; one transaction's picture."""
    return Stored(
        version_store.list_versions(connection),
        values.read_counters(connection),
        event_store.backlog(connection),
        run_store.count_runs(connection),
    )

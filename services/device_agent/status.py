"""What the agent runs and how it does: one picture for the socket and for metrics."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.device_agent.domain.rollout import Version
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


def read_stored(connection: sqlite3.Connection) -> tuple[list[Version], dict[str, int]]:
    """Return versions and counters as the store has them."""
    return version_store.list_versions(connection), values.read_counters(connection)

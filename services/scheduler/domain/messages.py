"""What runners and the scheduler tell each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from libs.common.names import NodeName
from services.scheduler.domain.lifecycle import Report
from services.scheduler.domain.objects import Facts, JobSpec, WorkerId, WorkerPlacement


@dataclass(frozen=True, slots=True)
class Hello:
    """A runner attaches: its node, and every worker that it has."""

    node: NodeName
    facts: Facts
    workers: Sequence[Report] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The runner is there."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """It is attached; a node that isn't heard of for `liveness` counts as lost."""

    liveness: timedelta


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker."""

    id: WorkerId
    spec: JobSpec
    placement: WorkerPlacement
    master_host: str
    master_port: int
    local_rank: int
    deadline_time: datetime


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End a worker."""

    id: WorkerId
    reason: str


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """A report is durable."""

    id: WorkerId
    sequence: int


@dataclass(frozen=True, slots=True)
class ForgetWorker:
    """A worker's remains may go."""

    id: WorkerId


FromRunner: TypeAlias = Hello | Report | Heartbeat
ToRunner: TypeAlias = Welcome | StartWorker | StopWorker | Acknowledge | ForgetWorker

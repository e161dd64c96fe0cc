"""For tests: the store's state as a value that changes are applied to, without a store."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from libs.common.names import JobName
from libs.common.testing import FakeRandomness
from services.scheduler.domain import lifecycle
from services.scheduler.domain.change import Change, revision_of
from services.scheduler.domain.decide import Decision, decide
from services.scheduler.domain.lifecycle import Report
from services.scheduler.domain.objects import (
    Job,
    JobState,
    Node,
    Queue,
    Reservation,
    Worker,
    WorkerId,
    WorkerState,
)
from services.scheduler.domain.snapshot import Snapshot
from services.scheduler.stores.memory import at_revision, key_of
from services.scheduler.testing import snapshot_of


class NoMeter:
    """Counts nothing."""

    def ended(self, job: Job) -> None:
        """See `Meter`."""

    def leading(self, leads: bool) -> None:
        """See `Meter`."""

    def conflicted(self) -> None:
        """See `Meter`."""

    def state(self, decision: Decision, runners: int) -> None:
        """See `Meter`."""


class World:
    """Nodes, queues, jobs and reservations, on which decisions are carried out at once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.randomness = FakeRandomness()

    def apply(self, change: Change) -> None:
        """Carry a change out, checking revisions as a store does; AssertionError for a stale one."""
        now = self.snapshot
        revision = now.revision + 1
        kept: dict[type, dict[Any, Any]] = {
            Node: dict(now.nodes),
            Queue: dict(now.queues),
            Job: dict(now.jobs),
            Reservation: dict(now.reservations),
        }
        for value in (*change.puts, *change.deletes, *change.checks):
            held = kept[type(value)].get(key_of(value))
            assert (revision_of(held) if held is not None else 0) == revision_of(value), value
        for value in change.puts:
            kept[type(value)][key_of(value)] = at_revision(value, revision)
        for value in change.deletes:
            del kept[type(value)][key_of(value)]
        self.snapshot = Snapshot(
            revision,
            kept[Node],
            kept[Queue],
            kept[Job],
            kept[Reservation],
            now.ready,
        )

    def submit(self, job: Job) -> None:
        """Add a job."""
        self.apply(Change(puts=(job,)))

    def decide(self, now: datetime) -> Decision:
        """Decide, and start what is to be started, until nothing more is."""
        while True:
            decision = decide(self.snapshot, now)
            if not decision.starts:
                return decision
            for start in decision.starts:
                uid = self.randomness.id()
                self.apply(lifecycle.start(start.job, start.placed, self.snapshot.nodes, 1, uid, now))

    def say(self, name: JobName, now: datetime, **ranks: Worker) -> None:
        """Have runners report workers, given as `r0`, `r1`, …, and carry out what follows."""
        job = self.snapshot.jobs[name]
        reports = [
            Report(WorkerId(name, job.meta.uid, job.status.attempt, int(rank[1:])), worker)
            for rank, worker in ranks.items()
        ]
        change = lifecycle.advance(lifecycle.reported(job, reports), self.snapshot, now, self.randomness)
        if change is not None:
            self.apply(change)

    def end(self, name: JobName, now: datetime, code: int = 0) -> None:
        """Have every worker of a job exit."""
        workers = {
            f"r{worker.rank}": replace(worker, state=WorkerState.EXITED, exit_code=code, end_time=now)
            for worker in self.snapshot.jobs[name].status.workers
        }
        self.say(name, now, **workers)

    def running(self) -> list[Job]:
        """Return the jobs that have a reservation."""
        return [job for job in self.snapshot.jobs.values() if job.status.state.placed]

    def pending(self) -> list[Job]:
        """Return the jobs that wait."""
        return [job for job in self.snapshot.jobs.values() if job.status.state is JobState.PENDING]

    def check(self) -> None:
        """Check what must always hold; AssertionError otherwise."""
        snapshot = self.snapshot
        backed = {}
        for node in snapshot.nodes.values():
            assert node.allocated.within(node.facts.capacity), f"{node.name} is over-allocated"
            gpus = [gpu for holding in node.holdings for gpu in holding.gpus]
            assert len(gpus) == len(set(gpus)) == node.allocated.gpus, f"{node.name}: a GPU is held twice"
            ports = [port for holding in node.holdings for port in holding.ports]
            assert len(ports) == len(set(ports)), f"{node.name}: a port is held twice"
            for holding in node.holdings:
                backed[holding.reservation, node.name] = holding
        held = set()
        for reservation in snapshot.reservations.values():
            job = snapshot.jobs[reservation.job]
            assert job.status.reservation == reservation.name, f"{reservation.name} has no job"
            assert len(reservation.placements) == job.spec.worker_count, "a gang is placed in part"
            for placement in reservation.placements:
                held.add((reservation.name, placement.node))
                assert set(placement.gpus) <= set(backed[reservation.name, placement.node].gpus)
        assert held == set(backed), "holdings and reservations differ"
        for queue_name, used in snapshot.used().items():
            quota = snapshot.queues[queue_name].quota
            for amount, most in (
                (used.cpu_millis, quota.cpu_millis),
                (used.memory_bytes, quota.memory_bytes),
                (used.gpus, quota.gpus),
            ):
                assert not most or amount <= most, f"{queue_name} is over its quota"


def world_of(*nodes: Node, queues: tuple[Queue, ...] = (), jobs: tuple[Job, ...] = ()) -> World:
    """Return a world of these, everything ready."""
    return World(snapshot_of(nodes=nodes, queues=queues, jobs=jobs))

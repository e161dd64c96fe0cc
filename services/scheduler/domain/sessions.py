"""The runners that are attached, and what each is to be told.

A session's orders follow from the store alone: which workers its node is to have, against which its
runner has. They are worked out anew after each change, so that it doesn't matter which were lost on the
way.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from libs.common.errors import Error, Exhausted, Unavailable
from libs.common.names import NodeName
from services.scheduler.domain.lifecycle import CANCELLED, Report, is_of, stop_reason
from services.scheduler.domain.messages import (
    Acknowledge,
    ForgetWorker,
    Hello,
    StartWorker,
    StopWorker,
    ToRunner,
    Welcome,
)
from services.scheduler.domain.objects import Facts, Job, JobState, Reservation, WorkerId, WorkerState
from services.scheduler.domain.snapshot import Snapshot

_MOST_WAITING = 10_000


class Session:
    """One runner's connection.

    Attributes:
        node: its node.
        facts: what it said of it.
        known: the workers that the runner has, by what it said last.
        unheeded: reports that aren't in the store yet.
        welcomed: whether its node is in the store, and the runner told so.
    """

    def __init__(self, hello: Hello) -> None:
        self.node: NodeName = hello.node
        self.facts: Facts = hello.facts
        self.known: dict[WorkerId, Report] = {report.id: report for report in hello.workers}
        self.unheeded: list[Report] = list(hello.workers)
        self.welcomed = False
        self._started: set[WorkerId] = set()
        self._stopped: dict[WorkerId, str] = {}
        self._outbox: asyncio.Queue[ToRunner | None] = asyncio.Queue()
        self._end: Error | None = None

    def report(self, report: Report) -> None:
        """Take in what the runner says of a worker."""
        self.known[report.id] = report
        self.unheeded.append(report)
        if max(len(self.known), len(self.unheeded)) > _MOST_WAITING:
            self.end(Exhausted(f"{self.node}: {_MOST_WAITING} reports wait", reason="TOO_MANY_REPORTS"))

    def welcome(self, liveness: timedelta) -> None:
        """Tell the runner that it is attached, once."""
        if not self.welcomed:
            self.welcomed = True
            self._send(Welcome(liveness))

    def acknowledge(self, reports: list[Report]) -> None:
        """Tell the runner that reports are durable; they need no more heed."""
        done = {id(report) for report in reports}
        self.unheeded = [report for report in self.unheeded if id(report) not in done]
        for report in reports:
            self._send(Acknowledge(report.id, report.sequence))

    def end(self, error: Error) -> None:
        """End the connection with an error, after what was sent."""
        if self._end is None:
            self._end = error
            self._outbox.put_nowait(None)

    async def next(self) -> ToRunner:
        """Return what to tell the runner next; raise the error that the session ended with."""
        message = await self._outbox.get()
        if message is None:
            self._outbox.put_nowait(None)
            raise self._end or Unavailable("the connection is over")
        return message

    def lost(self, snapshot: Snapshot) -> list[WorkerId]:
        """Return the workers that ran on the node, and that its runner has no more."""
        return [
            worker
            for worker, job, _ in _wanted(snapshot, self.node)
            if job.status.workers[worker.rank].state is WorkerState.RUNNING and worker not in self.known
        ]

    def direct(self, snapshot: Snapshot, now: datetime) -> None:
        """Tell the runner what follows from the store and wasn't told yet."""
        wanted = set()
        for worker, job, reservation in _wanted(snapshot, self.node):
            wanted.add(worker)
            why = stop_reason(job, now)
            if why or job.status.state is JobState.STOPPING:
                self._stop(worker, why or job.status.reason)
            elif worker not in self.known and worker not in self._started:
                self._started.add(worker)
                self._send(start_of(worker, job, reservation))
        unheeded = {report.id for report in self.unheeded}
        for worker, report in list(self.known.items()):
            if worker in wanted or worker in unheeded or is_of(snapshot.jobs.get(worker.job), worker):
                continue
            if report.worker.state.ended:
                del self.known[worker]
                self._send(ForgetWorker(worker))
            else:
                self._stop(worker, CANCELLED)
        self._started &= wanted
        self._stopped = {w: why for w, why in self._stopped.items() if w in wanted or w in self.known}

    def _stop(self, worker: WorkerId, why: str) -> None:
        if self._stopped.get(worker) != why:
            self._stopped[worker] = why
            self._send(StopWorker(worker, why))

    def _send(self, message: ToRunner) -> None:
        if self._outbox.qsize() >= _MOST_WAITING:
            # It is told everything again when it attaches anew.
            self.end(Exhausted(f"{self.node}: {_MOST_WAITING} messages wait for it", reason="TOO_SLOW"))
        elif self._end is None:
            self._outbox.put_nowait(message)


class Sessions:
    """The newest session of each node."""

    def __init__(self) -> None:
        self._by_node: dict[NodeName, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._by_node.values()))

    def __len__(self) -> int:
        return len(self._by_node)

    def of(self, node: NodeName) -> Session | None:
        """Return a node's session, if it has one."""
        return self._by_node.get(node)

    @contextmanager
    def holding(self, session: Session) -> Iterator[None]:
        """Have a session inside the block; an older one of the node ends, with reason FENCED."""
        older = self._by_node.get(session.node)
        if older is not None:
            older.end(
                Unavailable(f"{session.node}: a newer connection took this one's place", reason="FENCED")
            )
        self._by_node[session.node] = session
        try:
            yield
        finally:
            if self._by_node.get(session.node) is session:
                del self._by_node[session.node]

    def end_all(self, error: Error) -> None:
        """End every session."""
        for session in self:
            session.end(error)


def start_of(worker: WorkerId, job: Job, reservation: Reservation) -> StartWorker:
    """Return the order to start a worker."""
    placement = reservation.placements[worker.rank]
    before = sum(other.node == placement.node for other in reservation.placements[: worker.rank])
    return StartWorker(
        worker,
        job.spec,
        placement,
        reservation.master_host,
        reservation.master_port,
        before,
        job.deadline_time or job.meta.create_time + job.spec.deadline,
    )


def _wanted(snapshot: Snapshot, node: NodeName) -> Iterator[tuple[WorkerId, Job, Reservation]]:
    """Yield the workers that a node is to have and that haven't ended, by the store."""
    held = snapshot.nodes.get(node)
    if held is None:
        return
    for holding in held.holdings:
        reservation = snapshot.reservations.get(holding.reservation)
        job = snapshot.jobs.get(reservation.job) if reservation is not None else None
        if reservation is None or job is None or snapshot.reservation_of(job) != reservation:
            continue
        for placement in reservation.placements:
            if placement.node == node and not job.status.workers[placement.rank].state.ended:
                yield WorkerId(job.name, job.meta.uid, reservation.attempt, placement.rank), job, reservation


def is_here(snapshot: Snapshot, report: Report, node: NodeName) -> bool:
    """Tell whether a report is of a worker that the store has on this node."""
    job = snapshot.jobs.get(report.id.job)
    return is_of(job, report.id) and job is not None and job.status.workers[report.id.rank].node == node

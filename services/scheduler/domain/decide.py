"""Which jobs start now, and why the others wait: a pure function of a snapshot and the time.

**The line.** Pending jobs are looked at by their queue's priority, then their own, then age. A job that
may not start holds up those behind it in its own queue, so that nothing overtakes it there; jobs that
can't start whatever becomes free (the quota or every node is too small, the queue is paused, a retry is
due later) hold up nobody.

**Backfill.** The first job that only lacks room gets a *claim*: the place it will have once running jobs
have ended, each by its deadline at the latest. Jobs behind it start where they fit into what is free now
and beside the claim then (Lifka, *The ANL/IBM SP scheduling system*, 1995, with the claim kept on the
very nodes). So a claim's time never moves back, and no job starves behind smaller ones. Within the
claiming job's queue its quota is kept for it as well.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from libs.common.names import JobName, NodeName, QueueName, ReservationName
from services.scheduler.domain import reasons
from services.scheduler.domain.crowding import Fits, crowded
from services.scheduler.domain.gpus import Links
from services.scheduler.domain.objects import (
    NO_RESOURCES,
    Holding,
    Job,
    JobSpec,
    JobState,
    Mode,
    Nearness,
    Queue,
    Resources,
)
from services.scheduler.domain.placement import Placed, place
from services.scheduler.domain.reasons import Reason
from services.scheduler.domain.rooms import Room, usable_gpus
from services.scheduler.domain.snapshot import Snapshot

MAX_NODES = 125
"""That a gang may touch: etcd takes 128 compares, of which job, reservation and leader need one each."""
MAX_STARTS = 64
"""Of one decision: the rest is decided upon what has become of these."""
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Start:
    """A job that starts now."""

    job: Job
    placed: Placed


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done at a revision.

    Attributes:
        snapshot: what was decided on.
        starts: in the order of the line.
        pending: why each other pending job waits.
        line: every pending job, first to last.
        recheck_time: when it is to be decided anew though nothing changes; None for never.
    """

    snapshot: Snapshot
    starts: tuple[Start, ...] = ()
    pending: Mapping[JobName, tuple[Reason, ...]] = field(default_factory=dict)
    line: tuple[JobName, ...] = ()
    recheck_time: datetime | None = None


def decide(snapshot: Snapshot, now: datetime, fits: Fits = lambda change: True) -> Decision:
    """Return which pending jobs start now, where, and why the others wait.

    Args:
        snapshot: the state.
        now: the time.
        fits: tells whether a change can be written in one transaction.
    """
    return _Round(snapshot, now, fits).run()


def line_of(snapshot: Snapshot) -> list[Job]:
    """Return the pending jobs, first to last."""

    def rank(job: Job) -> tuple[object, ...]:
        queue = snapshot.queues.get(job.spec.queue)
        return (
            -(queue.priority if queue is not None else 0),
            -job.spec.priority,
            job.meta.create_time,
            job.name.tenant,
            job.name.job,
        )

    waiting = (job for job in snapshot.jobs.values() if job.status.state is JobState.PENDING)
    return sorted((job for job in waiting if not job.spec.cancelled), key=rank)


@dataclass(frozen=True, slots=True)
class _Release:
    """Something that ends by `time`, and gives back what it holds by node."""

    time: datetime
    held: Mapping[NodeName, Holding]


class _Round:
    """One decision while it is being made."""

    def __init__(self, snapshot: Snapshot, now: datetime, fits: Fits) -> None:
        self._snapshot = snapshot
        self._now = now
        self._fits = fits
        # Nodes of a kind share what was worked out about their links.
        tables: dict[object, Links] = {}
        self._rooms = {
            node.name: Room.of(node, tables=tables)
            for node in snapshot.nodes.values()
            if node.name in snapshot.ready and not node.cordoned
        }
        self._idle = {node.name: Room.of(node, (), tables) for node in snapshot.nodes.values()}
        self._cordoned = sum(node.cordoned for node in snapshot.nodes.values())
        self._lost = sum(
            node.name not in snapshot.ready and not node.cordoned for node in snapshot.nodes.values()
        )
        self._used = snapshot.used()
        self._releases = _releases(snapshot)
        self._claimed: Mapping[NodeName, Room] = {}
        self._claim: Job | None = None
        self._held_up: dict[QueueName, Job] = {}
        self._failed: dict[object, tuple[tuple[Reason, ...], bool]] = {}
        self._starts: list[Start] = []
        self._pending: dict[JobName, tuple[Reason, ...]] = {}
        self._recheck: datetime | None = None

    def run(self) -> Decision:
        """Look at each pending job in turn."""
        line = line_of(self._snapshot)
        for job in line:
            if len(self._starts) == MAX_STARTS:
                self._pending[job.name] = (reasons.NOT_CONSIDERED,)
                continue
            why = self._consider(job)
            if why:
                self._pending[job.name] = why
        return Decision(
            self._snapshot,
            tuple(self._starts),
            self._pending,
            tuple(job.name for job in line),
            self._recheck,
        )

    def _consider(self, job: Job) -> tuple[Reason, ...]:
        """Start a job or return why not."""
        spec = job.spec
        queue = self._snapshot.queues.get(spec.queue)
        if queue is None:
            return (reasons.missing_queue(spec.queue),)
        if queue.paused:
            return (reasons.paused(queue.name),)
        retry_time = job.status.retry_time
        if retry_time is not None and retry_time > self._now:
            self._recheck = min(retry_time, self._recheck or retry_time)
            return (reasons.waiting_to_retry(job.status.attempt, retry_time),)
        if reasons.exceeded(spec.total, queue.quota):
            return (reasons.quota_too_small(queue.name, spec, queue.quota),)
        first = self._held_up.get(queue.name)
        if first is not None and first is not self._claim:
            return (reasons.behind(first.name, job.name.tenant),)
        why = self._lacks_quota(job, queue)
        return why or self._find_room(job)

    def _lacks_quota(self, job: Job, queue: Queue) -> tuple[Reason, ...]:
        used = self._used.get(queue.name, NO_RESOURCES)
        if reasons.exceeded(used + job.spec.total, queue.quota):
            self._held_up.setdefault(queue.name, job)
            return (reasons.quota_taken(queue.name, job.spec, used, queue.quota),)
        claim = self._claim
        if claim is not None and claim.spec.queue == queue.name:
            kept = used + claim.spec.total
            if reasons.exceeded(kept + job.spec.total, queue.quota):
                return (reasons.behind(claim.name, job.name.tenant),)
        return ()

    def _find_room(self, job: Job) -> tuple[Reason, ...]:
        spec = job.spec
        shape = (spec.resources, spec.worker_count, spec.nearness)
        # Room only shrinks in a round: what didn't fit before doesn't now.
        known = self._failed.get(shape)
        if known is None:
            rooms = [
                room.common(self._claimed[name]) if self._claim else room
                for name, room in self._rooms.items()
            ]
            placed = place(spec, rooms, f"{job.meta.uid}/{job.status.attempt}")
            if placed is not None and len(placed.rooms) <= MAX_NODES:
                if not crowded(self._fits, job, placed, self._snapshot.nodes, self._now):
                    self._start(job, placed)
                    return ()
                known = (reasons.crowded(len(placed.rooms)),), True
            else:
                known = self._why_not(spec, placed)
            self._failed[shape] = known
        why, could = known
        if not why and self._claim is not None:
            why = (reasons.behind(self._claim.name, job.name.tenant),)
        if not could:
            return why
        self._held_up.setdefault(spec.queue, job)
        if self._claim is None:
            self._make_claim(job)
        return why

    def _why_not(self, spec: JobSpec, placed: Placed | None) -> tuple[tuple[Reason, ...], bool]:
        """Return why a shape doesn't fit, and whether it will once enough becomes free.

        No reason means the claim: how that is told depends on whose job it is told to.
        """
        if placed is not None:
            return (reasons.too_wide(len(placed.rooms), MAX_NODES),), False
        fits_empty = place(spec, self._idle.values()) is not None
        if self._claim is not None and place(spec, self._rooms.values()) is not None:
            return (), True
        why = reasons.why_not(
            spec,
            list(self._rooms.values()),
            self._cordoned,
            self._lost,
            fits_empty=fits_empty,
            fits_apart=fits_empty or place(_anywhere(spec), self._idle.values()) is not None,
        )
        there = [self._idle[name] for name in self._rooms]
        return why, fits_empty and place(spec, there) is not None

    def _start(self, job: Job, placed: Placed) -> None:
        self._starts.append(Start(job, placed))
        spec = job.spec
        held: dict[NodeName, Resources] = {}
        gpus: dict[NodeName, tuple[int, ...]] = {}
        for worker in placed.placements:
            held[worker.node] = held.get(worker.node, NO_RESOURCES) + worker.resources
            gpus[worker.node] = gpus.get(worker.node, ()) + worker.gpus
        ports = {placed.rooms[0].name: placed.master_port}
        for node, resources in held.items():
            taken = resources, gpus[node], ports.get(node, 0)
            self._rooms[node] = self._rooms[node].without(*taken)
            if self._claim is not None:
                self._claimed = {**self._claimed, node: self._claimed[node].without(*taken)}
        self._used[spec.queue] = self._used.get(spec.queue, NO_RESOURCES) + spec.total
        name = job.status.reservation or _placeholder(job)
        self._releases.append(
            _Release(
                (job.deadline_time or self._now + spec.deadline) + spec.grace,
                {node: Holding(name, held[node], gpus[node]) for node in held},
            )
        )

    def _make_claim(self, job: Job) -> None:
        """Claim the place that a job has once enough of what runs has ended."""
        releases = sorted(
            (release for release in self._releases if all(node in self._rooms for node in release.held)),
            key=lambda release: release.time,
        )
        low, high = 0, len(releases)
        while low < high:
            middle = (low + high) // 2
            if place(job.spec, self._after(releases[:middle]).values()) is not None:
                high = middle
            else:
                low = middle + 1
        rooms = self._after(releases[:low])
        placed = place(job.spec, rooms.values())
        if placed is None:
            return  # what it waits for is on a node that is lost: nobody can say until when
        self._claim = job
        self._claimed = {**rooms, **{room.name: room for room in placed.rooms}}
        # What fits beside the claim is yet to be seen.
        self._failed = {shape: known for shape, known in self._failed.items() if not known[1]}
        self._failed[(job.spec.resources, job.spec.worker_count, job.spec.nearness)] = ((), True)

    def _after(self, releases: Iterable[_Release]) -> dict[NodeName, Room]:
        """Return the rooms once some of what runs has ended."""
        rooms = dict(self._rooms)
        for release in releases:
            for node, held in release.held.items():
                room = rooms[node]
                capacity = room.node.facts.capacity
                gpus = tuple(sorted({*room.free_gpus, *held.gpus} & set(usable_gpus(room.node))))
                rooms[node] = Room(
                    room.node,
                    Resources(
                        min(capacity.cpu_millis, room.free.cpu_millis + held.resources.cpu_millis),
                        min(capacity.memory_bytes, room.free.memory_bytes + held.resources.memory_bytes),
                        len(gpus),
                    ),
                    gpus,
                    room.links,
                )
        return rooms


def _releases(snapshot: Snapshot) -> list[_Release]:
    """Return when each reservation is given back at the latest."""
    held: dict[object, dict[NodeName, Holding]] = {}
    for node in snapshot.nodes.values():
        for holding in node.holdings:
            held.setdefault(holding.reservation, {})[node.name] = holding
    out = []
    for name, reservation in snapshot.reservations.items():
        job = snapshot.jobs.get(reservation.job)
        end = None if job is None else job.deadline_time
        grace = timedelta(0) if job is None else job.spec.grace
        out.append(_Release(end + grace if end is not None else _NEVER, held.get(name, {})))
    return out


def _anywhere(spec: JobSpec) -> JobSpec:
    """Return a spec that doesn't mind where its workers are."""
    return replace(spec, nearness=Nearness(Mode.UNCONSTRAINED))


def _placeholder(job: Job) -> ReservationName:
    return ReservationName(job.name.tenant, job.name.job)

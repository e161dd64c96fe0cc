"""What the job API does. Reads are of the mirror; writes are transactions that any replica makes."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from libs.common.clock import Clock
from libs.common.errors import AlreadyExists, Exhausted, NotFound, Precondition
from libs.common.names import JobName, ReservationName
from libs.common.rand import Randomness
from libs.common.suggest import did_you_mean
from services.scheduler.domain.change import Change
from services.scheduler.domain.creates import Writer, check_etag, remembered
from services.scheduler.domain.decide import Decision
from services.scheduler.domain.decisions import Decisions
from services.scheduler.domain.gpus import Links
from services.scheduler.domain.lifecycle import as_shown
from services.scheduler.domain.logs import Logs
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.objects import Job, JobSpec, JobState, Meta, Node, Queue, Reservation
from services.scheduler.domain.reasons import NOT_CONSIDERED, Reason, amounts, verdict
from services.scheduler.domain.rooms import Room
from services.scheduler.domain.snapshot import Snapshot
from services.scheduler.domain.validation import check_job_spec, check_labels

MAX_JOBS = 10_000
"""Of a tenant, ended ones included: so many values fit well into etcd's memory."""
MAX_AHEAD = 100


@dataclass(frozen=True, slots=True)
class NewJob:
    """What to submit; an empty `job_id` lets the scheduler choose."""

    tenant: str
    job_id: str
    spec: JobSpec
    labels: dict[str, str]
    request_id: str
    fingerprint: str
    validate_only: bool


@dataclass(frozen=True, slots=True)
class JobView:
    """A job, and why it waits."""

    job: Job
    pending: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """What a node says to a job's worker: how many fit now, and why not more."""

    node: Node
    fitting: int
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job is where it is."""

    view: JobView
    nodes: tuple[NodeVerdict, ...]
    ahead: tuple[JobName, ...]
    summary: str


class Pins(Protocol):
    """What keeps jobs' artefacts."""

    async def release(self, job: JobName) -> None:
        """End every pin of a job; raise Unavailable when that can't be asked for."""
        ...


class Jobs:
    """See the module."""

    def __init__(
        self,
        writer: Writer,
        mirror: Mirror,
        decisions: Decisions,
        logs: Logs,
        pins: Pins,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._writer = writer
        self._mirror = mirror
        self._decisions = decisions
        self._logs = logs
        self._pins = pins
        self._clock = clock
        self._randomness = randomness

    async def create(self, new: NewJob) -> JobView:
        """Submit a job; with `validate_only` say what would be stored.

        Raises:
            Invalid: for a spec that can't be.
            NotFound: when its queue isn't there.
            AlreadyExists: when the tenant has a job of that id.
            Exhausted: when it has 10,000.
        """
        check_job_spec(new.spec, new.tenant)
        check_labels(new.labels)
        chosen = new.job_id or f"job-{self._randomness.id(12)}"
        uid = self._randomness.id()

        def work() -> tuple[Job, Change | None]:
            earlier = self._writer.earlier(new.tenant, new.request_id, new.fingerprint)
            if earlier is not None:
                return self._job(JobName.parse(earlier)), None
            now = self._clock.now()
            job = Job(
                JobName(new.tenant, chosen),
                Meta(uid, now, labels=new.labels),
                replace(new.spec, cancelled=False),
            )
            change = self._creation(job, new)
            return job, None if new.validate_only else change

        job, revision = await self._writer.write(work)
        if revision:
            job = replace(job, meta=replace(job.meta, revision=revision))
        # Why it waits isn't waited for.
        return JobView(self._mirror.snapshot.jobs.get(job.name, job), (NOT_CONSIDERED,))

    def _creation(self, job: Job, new: NewJob) -> Change:
        snapshot = self._mirror.snapshot
        if job.name in snapshot.jobs:
            raise AlreadyExists(f"{job.name}: exists already; choose another id", reason="JOB_EXISTS")
        if sum(name.tenant == new.tenant for name in snapshot.jobs) >= MAX_JOBS:
            raise Exhausted(
                f"tenants/{new.tenant} has {MAX_JOBS} jobs; delete some that have ended",
                reason="TOO_MANY_JOBS",
            )
        past = remembered(new.tenant, new.request_id, new.fingerprint, job.name, job.meta.create_time)
        queue = snapshot.queues.get(job.spec.queue)
        if queue is not None:
            return Change(puts=(job, *past), checks=(queue,))
        if job.spec.queue.queue != "default":
            known = [str(name) for name in snapshot.queues if name.tenant == new.tenant]
            raise NotFound(
                f"spec.queue: {job.spec.queue} is not there; make it with `isthmus queue create`, or leave "
                f"the field empty for the default one{did_you_mean(str(job.spec.queue), known)}",
                reason="QUEUE_NOT_FOUND",
                metadata={"field": "spec.queue"},
            )
        made = Queue(job.spec.queue, Meta(self._randomness.id(), job.meta.create_time))
        return Change(puts=(job, made, *past))

    async def get(self, name: JobName) -> JobView:
        """Read a job; raise NotFound."""
        await self._mirror.reached(1)
        return await self._view(self._job(name))

    async def list_jobs(self, tenant: str, after: str, limit: int) -> list[JobView]:
        """Return a tenant's jobs by id, after one, one more than `limit`."""
        await self._mirror.reached(1)
        names = sorted(
            (name for name in self._mirror.snapshot.jobs if name.tenant == tenant and name.job > after),
            key=lambda name: name.job,
        )
        jobs = self._mirror.snapshot.jobs
        return await self._views([jobs[name] for name in names[: limit + 1]])

    async def cancel(self, name: JobName) -> JobView:
        """Ask for a job's end; raise NotFound. One that has ended stays as it is."""

        def work() -> tuple[Job, Change | None]:
            job = self._job(name)
            if job.status.state.ended or job.spec.cancelled:
                return job, None
            meta = replace(job.meta, generation=job.meta.generation + 1)
            job = replace(job, meta=meta, spec=replace(job.spec, cancelled=True))
            return job, Change(puts=(job,))

        job, _ = await self._writer.write(work)
        # The mirror may not have what was just written.
        known = self._mirror.snapshot.jobs.get(name, job)
        return await self._view(known if known.spec.cancelled else job)

    async def delete(self, name: JobName, etag: str) -> None:
        """Remove a job that has ended, with its logs and pins; what breaks off can be repeated.

        Raises:
            NotFound: when it isn't there.
            Conflict: for a stale etag.
            Precondition: when it hasn't ended.
        """

        def work() -> tuple[Job, Change | None]:
            job = self._job(name)
            check_etag(name, job.meta.revision, etag)
            if not job.status.state.ended:
                stopping = job.spec.cancelled or job.status.state is JobState.STOPPING
                told = "is being cancelled" if job.spec.cancelled else job.status.state.told
                first = "" if stopping else "cancel it, and "
                raise Precondition(
                    f"{name}: {told}; {first}delete it when it has ended",
                    reason="JOB_NOT_ENDED",
                )
            return job, Change(deletes=(job,))

        await self._mirror.reached(1)
        work()
        await self._pins.release(name)
        job, _ = await self._writer.write(work)
        await self._logs.forget(name.tenant, job.meta.uid)

    async def watch(self, name: JobName) -> AsyncGenerator[JobView, None]:
        """Yield a job as it is, then as it becomes, until it has ended; raise NotFound when it is removed."""
        await self._mirror.reached(1)
        changed = asyncio.Event()
        with self._mirror.listening(changed.set):
            uid, last = self._job(name).meta.uid, None
            while True:
                changed.clear()
                job = self._job(name)
                if job.meta.uid != uid:
                    raise _missing(name, self._known(name.tenant))
                view = await self._view(job)
                if view != last:
                    last = view
                    yield view
                if job.status.state.ended:
                    return
                await changed.wait()

    async def explain(self, name: JobName) -> Explanation:
        """Say why a job is where it is; raise NotFound."""
        await self._mirror.reached(1)
        job, snapshot = self._job(name), self._mirror.snapshot
        if job.status.state is not JobState.PENDING or job.spec.cancelled:
            job = as_shown(job)
            return Explanation(JobView(job), (), (), _summary_of(job))
        decision = await self._decisions.now()
        view = _viewed(job, decision)
        # Links of many GPUs take a while.
        verdicts = await asyncio.to_thread(_verdicts, job.spec, snapshot)
        ahead = _ahead(job, decision)
        return Explanation(view, verdicts, ahead[:MAX_AHEAD], _summary(job, view, verdicts, len(ahead)))

    async def reservation(self, name: ReservationName) -> Reservation:
        """Read a reservation; raise NotFound."""
        await self._mirror.reached(1)
        found = self._mirror.snapshot.reservations.get(name)
        if found is None:
            raise NotFound(f"{name}: not found; it goes when its job's attempt ends", reason="NOT_FOUND")
        return found

    async def reservations(self, tenant: str, after: str, limit: int) -> list[Reservation]:
        """Return a tenant's reservations by id, after one, one more than `limit`."""
        await self._mirror.reached(1)
        found = [
            value
            for name, value in self._mirror.snapshot.reservations.items()
            if name.tenant == tenant and name.reservation > after
        ]
        return sorted(found, key=lambda value: value.name.reservation)[: limit + 1]

    async def _view(self, job: Job) -> JobView:
        (view,) = await self._views([job])
        return view

    async def _views(self, jobs: Sequence[Job]) -> list[JobView]:
        """Return jobs and why they wait, all by one decision."""
        if not any(_waits(job) for job in jobs):
            return [JobView(as_shown(job)) for job in jobs]
        decision = await self._decisions.now()
        return [_viewed(job, decision) for job in jobs]

    def _job(self, name: JobName) -> Job:
        job = self._mirror.snapshot.jobs.get(name)
        if job is None:
            raise _missing(name, self._known(name.tenant))
        return job

    def _known(self, tenant: str) -> Sequence[str]:
        return [name.job for name in self._mirror.snapshot.jobs if name.tenant == tenant]


def _viewed(job: Job, decision: Decision) -> JobView:
    return JobView(as_shown(job), decision.pending.get(job.name, (NOT_CONSIDERED,)) if _waits(job) else ())


def _waits(job: Job) -> bool:
    return job.status.state is JobState.PENDING and not job.spec.cancelled


def _verdicts(spec: JobSpec, snapshot: Snapshot) -> tuple[NodeVerdict, ...]:
    verdicts = []
    tables: dict[object, Links] = {}
    for node in sorted(snapshot.nodes.values(), key=lambda node: node.name.node):
        room, lost = Room.of(node, tables=tables), node.name not in snapshot.ready
        fitting = 0 if lost or node.cordoned else room.fitting(spec)
        verdicts.append(NodeVerdict(node, fitting, verdict(spec, room, cordoned=node.cordoned, lost=lost)))
    return tuple(verdicts)


def _ahead(job: Job, decision: Decision) -> tuple[JobName, ...]:
    """Return the jobs of its queue that go before a job in the line."""
    if job.name not in decision.line:
        return ()
    jobs = decision.snapshot.jobs
    before = decision.line[: decision.line.index(job.name)]
    return tuple(name for name in before if jobs[name].spec.queue == job.spec.queue)


def _missing(name: JobName, known: Sequence[str]) -> NotFound:
    return NotFound(f"{name}: not found{did_you_mean(name.job, known)}", reason="JOB_NOT_FOUND")


def _summary_of(job: Job) -> str:
    status = job.status
    text = f"{job.name} {status.state.told}"
    if status.state.placed:
        nodes = {str(worker.node) for worker in status.workers}
        running = sum(worker.state.name == "RUNNING" for worker in status.workers)
        text += f" on {', '.join(sorted(nodes)[:8])}: {running} of {len(status.workers)} workers run"
    return f"{text}. {status.message[:1].upper()}{status.message[1:]}".rstrip(". ") + "."


def _summary(job: Job, view: JobView, verdicts: Sequence[NodeVerdict], ahead: int) -> str:
    spec = job.spec
    gang = f"{spec.worker_count} workers of " if spec.worker_count > 1 else ""
    parts = [f"{job.name} waits in {spec.queue} for {gang}{amounts(spec.resources)}"]
    fits = sum(each.fitting for each in verdicts)
    nodes = f"{len(verdicts)} node{'' if len(verdicts) == 1 else 's'}"
    parts.append(f"{min(fits, spec.worker_count)} of {spec.worker_count} would fit on {nodes} now")
    if ahead:
        parts.append(f"{ahead} job{' goes' if ahead == 1 else 's go'} before it in its queue")
    parts.extend(f"{reason.kind.name}: {reason.message}" for reason in view.pending)
    if job.status.message:
        parts.append(job.status.message)
    first, *others = parts
    return ". ".join((first, *(f"{part[:1].upper()}{part[1:]}" for part in others))) + "."

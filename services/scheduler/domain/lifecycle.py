"""What becomes of a job: pending → starting → running → (stopping →) ended, or pending once more.

Pure: from a job as stored, what runners report, and the time, to the job as it is to be stored. A
reservation is given back only once every worker of the attempt has ended, or is given up because its node
was removed, so that nothing is placed over work that may still run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from libs.common.backoff import backoff
from libs.common.names import NodeName, ReservationName
from libs.common.rand import Randomness
from services.scheduler.domain.change import Change
from services.scheduler.domain.objects import (
    NO_RESOURCES,
    Holding,
    Job,
    JobState,
    KeptArtefact,
    Meta,
    Node,
    Reservation,
    Worker,
    WorkerId,
    WorkerState,
)
from services.scheduler.domain.placement import Placed
from services.scheduler.domain.snapshot import Snapshot

CANCELLED, DEADLINE, SIBLING_FAILED, LOST = "CANCELLED", "DEADLINE", "SIBLING_FAILED", "LOST"
_CAUSED = frozenset({SIBLING_FAILED, CANCELLED})
_PERMANENT = frozenset({DEADLINE, "ARTEFACT_MISSING"})
_START_FAILED = "START_FAILED"
# As a shell has it: found but can't be executed, and not found. Trying again doesn't help.
_NO_PROGRAM = frozenset({126, 127})
_LONGEST_REASON, _LONGEST_MESSAGE = 64, 256
_BEING_CANCELLED = "being cancelled"
_FIRST_WAIT_S = 2.0
_LONGEST_WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a runner says of a worker; `sequence` grows with each report of it."""

    id: WorkerId
    worker: Worker
    artefacts: tuple[KeptArtefact, ...] = ()
    sequence: int = 0


def start(
    job: Job, placed: Placed, nodes: Mapping[NodeName, Node], term: int, uid: str, now: datetime
) -> Change:
    """Return the transaction that starts the next attempt of a pending job.

    Args:
        job: as stored.
        placed: where it goes.
        nodes: as stored.
        term: the leader's fencing token.
        uid: for the reservation.
        now: the time.
    """
    attempt = job.status.attempt + 1
    name = ReservationName(job.name.tenant, f"{job.meta.uid}-{attempt}")
    reservation = Reservation(
        name,
        Meta(uid, now),
        job.name,
        job.meta.uid,
        attempt,
        placed.placements,
        placed.master_host,
        placed.master_port,
        term,
    )
    touched = []
    for i, room in enumerate(placed.rooms):
        mine = [worker for worker in placed.placements if worker.node == room.name]
        holding = Holding(
            name,
            sum((worker.resources for worker in mine), NO_RESOURCES),
            tuple(sorted(gpu for worker in mine for gpu in worker.gpus)),
            (placed.master_port,) if not i and placed.master_port else (),
        )
        node = nodes[room.name]
        touched.append(replace(node, holdings=(*node.holdings, holding)))
    status = replace(
        job.status,
        state=JobState.STARTING,
        message="",
        reason="",
        reservation=name,
        attempt=attempt,
        workers=tuple(Worker(worker.rank, worker.node) for worker in placed.placements),
        artefacts=(),
        start_time=now,
        first_start_time=job.status.first_start_time or now,
        retry_time=None,
    )
    return Change(puts=(replace(job, status=status), reservation, *touched))


def refuse(job: Job, why: str, now: datetime) -> Change:
    """Return the transaction that ends a pending job whose start can't be written."""
    text = f"its reservation doesn't fit a transaction: {why}; use fewer or larger workers"
    return Change(puts=(_ended(job, JobState.FAILED, "TOO_LARGE", text, now),))


def without_messages(change: Change) -> Change:
    """Return a change whose jobs say less of their workers, where it was too large for a transaction."""
    puts = []
    for value in change.puts:
        if isinstance(value, Job):
            workers = tuple(replace(worker, message="") for worker in value.status.workers)
            value = replace(value, status=replace(value.status, workers=workers))
        puts.append(value)
    return replace(change, puts=puts)


def is_of(job: Job | None, worker: WorkerId) -> bool:
    """Tell whether a worker is one of a job's present attempt."""
    return (
        job is not None
        and job.meta.uid == worker.job_uid
        and job.status.attempt == worker.attempt
        and job.status.state.placed
        and worker.rank < len(job.status.workers)
    )


def reported(job: Job, reports: Sequence[Report]) -> Job:
    """Return a job with what runners say taken in; what is older than what is known changes nothing."""
    if not reports:
        return job
    workers, artefacts = list(job.status.workers), job.status.artefacts
    for report in reports:
        known = workers[report.id.rank]
        said = report.worker
        if known.state.ended or said.state.value < known.state.value:
            continue
        workers[report.id.rank] = replace(
            said,
            rank=known.rank,
            node=known.node,
            start_time=said.start_time or known.start_time,
            reason=_short(said.reason, _LONGEST_REASON),
            message=_short(said.message, _LONGEST_MESSAGE),
        )
        if report.id.rank == 0 and report.artefacts:
            artefacts = report.artefacts
    return replace(job, status=replace(job.status, workers=tuple(workers), artefacts=artefacts))


def _short(text: str, most: int) -> str:
    """Return a text as it is kept: a gang's worth of them has to fit a transaction."""
    printable = "".join(c if c.isprintable() else " " for c in text[: most + 1])
    return printable if len(printable) <= most else printable[: most - 1] + "…"


def give_up(job: Job, ranks: Sequence[int], why: str, now: datetime) -> Job:
    """Return a job whose workers of these ranks count as lost, unless they have ended."""
    if not ranks:
        return job
    workers = list(job.status.workers)
    for rank in ranks:
        if not workers[rank].state.ended:
            workers[rank] = replace(
                workers[rank], state=WorkerState.FAILED, reason=LOST, message=why, end_time=now
            )
    return replace(job, status=replace(job.status, workers=tuple(workers)))


def stop_reason(job: Job, now: datetime) -> str:
    """Return why a placed job's workers are to be ended; "" when they aren't."""
    if job.spec.cancelled:
        return CANCELLED
    deadline = job.deadline_time
    if deadline is not None and deadline <= now:
        return DEADLINE
    if any(worker.state.ended and not worker.succeeded for worker in job.status.workers):
        return SIBLING_FAILED
    return ""


def as_shown(job: Job) -> Job:
    """Return a job as people see it: one that was cancelled is being cancelled before anyone took that up."""
    if not job.spec.cancelled or job.status.state.ended:
        return job
    state = JobState.STOPPING if job.status.state.placed else job.status.state
    status = replace(job.status, state=state, reason=CANCELLED, message=_BEING_CANCELLED, retry_time=None)
    return replace(job, status=status)


def advance(job: Job, snapshot: Snapshot, now: datetime, randomness: Randomness) -> Change | None:
    """Return what is to be written for a job as it has become; None when it is stored so already.

    Args:
        job: with reports taken in; its revision is that of the stored one.
        snapshot: holds what is stored.
        now: the time.
        randomness: spreads retries.
    """
    stored = snapshot.jobs[job.name]
    if job.status.state.ended:
        return None
    if job.status.state is JobState.PENDING:
        job = _advance_pending(job, now)
        return None if job == stored else Change(puts=(job,))
    reservation = snapshot.reservation_of(job)
    if reservation is None and job.status.reservation in snapshot.unreadable:
        return None
    if reservation is None:
        job = give_up(job, range(len(job.status.workers)), "its reservation is gone", now)
    there = snapshot.nodes.keys() | snapshot.unreadable
    gone = [worker.rank for worker in job.status.workers if worker.node not in there]
    job = give_up(job, gone, "its node was removed", now)
    if all(worker.state.ended for worker in job.status.workers):
        job = _finished(job, now, randomness)
        if reservation is None:
            return Change(puts=(job,))
        return Change(puts=(job, *freed(snapshot, reservation)), deletes=(reservation,))
    job = _placed(job, now)
    return None if job == stored else Change(puts=(job,))


def freed(snapshot: Snapshot, reservation: Reservation) -> list[Node]:
    """Return the nodes that a reservation holds something on, without it."""
    names = {placement.node for placement in reservation.placements}
    out = []
    for name in sorted(names, key=lambda name: name.node):
        node = snapshot.nodes.get(name)
        if node is not None and any(holding.reservation == reservation.name for holding in node.holdings):
            kept = tuple(h for h in node.holdings if h.reservation != reservation.name)
            out.append(replace(node, holdings=kept))
    return out


def orphans(snapshot: Snapshot) -> list[Change]:
    """Return how to undo what no transaction of ours leaves, but a hand in the store may.

    Reservations that no job has, and holdings that no reservation backs.
    """
    out: list[Change] = []
    for reservation in snapshot.reservations.values():
        job = snapshot.jobs.get(reservation.job)
        held = job is not None and snapshot.reservation_of(job) == reservation and job.status.state.placed
        if not held and reservation.job not in snapshot.unreadable:
            out.append(Change(puts=freed(snapshot, reservation), deletes=(reservation,)))
    known = snapshot.reservations.keys() | snapshot.unreadable
    for node in snapshot.nodes.values():
        backed = tuple(holding for holding in node.holdings if holding.reservation in known)
        if backed != node.holdings:
            out.append(Change(puts=(replace(node, holdings=backed),)))
    return out


def next_time(job: Job) -> datetime | None:
    """Return when a job is to be looked at though nothing changes; None for never."""
    return None if job.status.state.ended else job.deadline_time


def _advance_pending(job: Job, now: datetime) -> Job:
    if job.spec.cancelled:
        return _ended(job, JobState.CANCELLED, CANCELLED, "cancelled while it waited", now)
    deadline = job.deadline_time
    if deadline is not None and deadline <= now:
        text = f"its deadline of {_span(job.spec.deadline)} passed between attempts; {job.status.message}"
        return _ended(job, JobState.FAILED, DEADLINE, text, now)
    return job


def _placed(job: Job, now: datetime) -> Job:
    """Return a job whose workers haven't all ended, in the state that follows from theirs."""
    why = stop_reason(job, now)
    if why:
        cause = _cause(job.status.workers)
        texts = {
            CANCELLED: _BEING_CANCELLED,
            DEADLINE: f"being ended: its deadline of {_span(job.spec.deadline)} has passed",
            SIBLING_FAILED: f"being ended: {_told(cause)}" if cause is not None else "being ended",
        }
        status = replace(job.status, state=JobState.STOPPING, reason=why, message=texts[why])
    elif any(worker.state is WorkerState.STARTING for worker in job.status.workers):
        status = replace(job.status, state=JobState.STARTING)
    else:
        status = replace(job.status, state=JobState.RUNNING)
    return replace(job, status=status)


def _finished(job: Job, now: datetime, randomness: Randomness) -> Job:
    """Return a job whose workers have all ended: ended too, or waiting for its next attempt."""
    workers = job.status.workers
    if all(worker.succeeded for worker in workers):
        kept = {artefact.id for artefact in job.status.artefacts}
        missing = [artefact.id for artefact in job.spec.artefacts if artefact.id not in kept]
        if not missing:
            return _ended(job, JobState.SUCCEEDED, "", "", now)
        text = f"succeeded, but didn't make its artefacts {', '.join(missing)}"
        return _ended(job, JobState.FAILED, "ARTEFACT_MISSING", text, now)
    if job.spec.cancelled:
        return _ended(job, JobState.CANCELLED, CANCELLED, "cancelled", now)
    cause = _cause(workers) or workers[0]
    late = job.deadline_time is not None and job.deadline_time <= now
    if cause.reason == DEADLINE or (late and cause.reason in _CAUSED):
        text = f"its deadline of {_span(job.spec.deadline)} has passed"
        return _ended(job, JobState.FAILED, DEADLINE, text, now)
    reason, text = _reason(cause), _told(cause)
    if job.status.attempt <= job.spec.retry_count and _may_repeat(job, cause):
        wait = backoff(
            job.status.attempt - 1,
            randomness=randomness,
            base_s=_FIRST_WAIT_S,
            cap_s=_LONGEST_WAIT_S,
            at_least_s=0.1,
        )
        status = replace(
            job.status,
            state=JobState.PENDING,
            reservation=None,
            reason=reason,
            message=f"attempt {job.status.attempt} of {job.spec.retry_count + 1} failed: {text}",
            retry_time=now + timedelta(seconds=wait),
        )
        return replace(job, status=status)
    return _ended(job, JobState.FAILED, reason, text, now)


def _ended(job: Job, state: JobState, reason: str, message: str, now: datetime) -> Job:
    status = replace(
        job.status,
        state=state,
        reason=reason,
        message=message,
        reservation=None,
        end_time=now,
        retry_time=None,
    )
    return replace(job, status=status)


def _cause(workers: Sequence[Worker]) -> Worker | None:
    """Return the worker whose failure came first; those that were ended because of it come after."""
    failed = [worker for worker in workers if worker.state.ended and not worker.succeeded]

    def rank(worker: Worker) -> tuple[object, ...]:
        end = worker.end_time
        return worker.reason in _CAUSED, end is None, end.timestamp() if end is not None else 0.0, worker.rank

    return min(failed, key=rank, default=None)


def _reason(worker: Worker) -> str:
    if worker.reason:
        return worker.reason
    if worker.state is WorkerState.FAILED:
        return LOST
    return "EXIT_CODE" if worker.exit_code < 128 else "SIGNAL"


def _may_repeat(job: Job, worker: Worker) -> bool:
    """Tell whether a failure may be another's fault (KubeDL's policy for exit codes)."""
    if worker.exit_code in job.spec.retry_exit_codes and not worker.reason:
        return True
    if worker.reason in _PERMANENT:
        return False
    if worker.reason == _START_FAILED:
        return worker.exit_code not in _NO_PROGRAM
    return bool(worker.reason) or worker.state is WorkerState.FAILED or worker.exit_code >= 128


def _told(worker: Worker) -> str:
    who = f"worker {worker.rank} on {worker.node}"
    if worker.message:
        return f"{who}: {worker.message}"
    if worker.reason:
        return f"{who}: {worker.reason}"
    if worker.exit_code >= 128:
        return f"{who} was ended by signal {worker.exit_code - 128}"
    return f"{who} exited with {worker.exit_code}"


def _span(value: timedelta) -> str:
    """Return a time for people, such as "1 s" or "1 d 2 h"."""
    seconds, micros = value.days * 86_400 + value.seconds, value.microseconds
    amounts = {
        "d": seconds // 86_400,
        "h": seconds // 3600 % 24,
        "min": seconds // 60 % 60,
        "s": seconds % 60 + micros / 1e6,
    }
    return " ".join(f"{amount:.10g} {unit}" for unit, amount in amounts.items() if amount) or "0 s"

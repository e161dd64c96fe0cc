"""The leader's loop: takes in what runners report, moves jobs on, starts what can start, tells runners.

One round after another, each from a snapshot: reports and time → jobs → orphans → starts → orders. A
round runs when something has changed, so that nothing waits for a clock but retries, deadlines and
retention. Every write is one transaction under the leader's term, and the next step waits until the
mirror has seen it: use is always what the store says. A write that loses a race costs a round and nothing
else.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from libs.common.backoff import backoff
from libs.common.clock import Clock
from libs.common.errors import Conflict, Error, Invalid, Unavailable
from libs.common.names import JobName
from libs.common.rand import Randomness
from services.scheduler.domain import lifecycle
from services.scheduler.domain.change import Change, describe
from services.scheduler.domain.crowding import fits_emptied
from services.scheduler.domain.decide import Decision
from services.scheduler.domain.decisions import Decisions
from services.scheduler.domain.lifecycle import Report
from services.scheduler.domain.liveness import Liveness
from services.scheduler.domain.messages import FromRunner, Hello, ToRunner
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.objects import Job, Meta, Node
from services.scheduler.domain.sessions import Session, Sessions, is_here
from services.scheduler.domain.validation import check_facts
from services.scheduler.store import Store, Term

_LONGEST_WAIT_S = 60.0
_HELLO_WITHIN_S = 10.0

_log = logging.getLogger("isthmus.scheduler.controller")


class Meter(Protocol):
    """What is counted for the operator."""

    def ended(self, job: Job) -> None:
        """Count a job that has ended."""
        ...

    def leading(self, leads: bool) -> None:
        """Show whether this replica leads."""
        ...

    def conflicted(self) -> None:
        """Count a transaction that lost a race."""
        ...

    def state(self, decision: Decision, runners: int) -> None:
        """Show how things stand."""
        ...


class Controller:
    """See the module. `run` leads when it may; `attach` serves one runner."""

    def __init__(
        self,
        store: Store,
        mirror: Mirror,
        decisions: Decisions,
        clock: Clock,
        randomness: Randomness,
        meter: Meter,
        *,
        address: Callable[[], str],
        liveness_s: float,
        on_stray: Callable[[JobName], None] = lambda job: None,
    ) -> None:
        """Lead under what `address` returns then; a node is lost `liveness_s` after its last word.

        `on_stray` is told of a job that isn't there, and for which a runner has kept artefacts.
        """
        self._store = store
        self._mirror = mirror
        self._decisions = decisions
        self._clock = clock
        self._randomness = randomness
        self._meter = meter
        self._address = address
        self._liveness_s = liveness_s
        self._on_stray = on_stray
        self._liveness = Liveness(store, clock, randomness, liveness_s)
        self._sessions = Sessions()
        self._term: Term | None = None
        self._wake = asyncio.Event()
        self._beaten = False

    @property
    def leads(self) -> bool:
        """Whether this replica leads."""
        return self._term is not None

    async def run(self) -> None:
        """Lead whenever nobody else does, until cancelled."""
        attempt = 0
        while True:
            try:
                async with self._store.lead(self._address()) as term:
                    attempt = 0
                    await self._reign(term)
            except Error as error:
                _log.warning("can't lead: %s", error.message)
            except Exception:
                _log.exception("leading failed; trying again")
            await self._clock.sleep(backoff(attempt, randomness=self._randomness, base_s=0.1, cap_s=2.0))
            attempt += 1

    async def attach(self, messages: AsyncIterator[FromRunner]) -> AsyncGenerator[ToRunner, None]:
        """Serve a runner's connection: take in what it says, yield what to tell it.

        Raises:
            Unavailable: NOT_LEADER when another replica leads, with its `address` in the metadata, or FENCED
                when the node's runner has a newer connection.
            Invalid: when it says something that makes no sense.
        """
        # Who leads, the mirror knows.
        await self._mirror.reached(1)
        self.require_leader()
        session = Session(await self._hello(messages))
        # Who comes when the term is just over would be held by nobody.
        self.require_leader()
        with self._sessions.holding(session):
            self._liveness.heard(session.node)
            self._wake.set()
            listening = asyncio.create_task(self._listen(session, messages), name=f"runner {session.node}")
            try:
                while True:
                    yield await session.next()
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    def require_leader(self) -> None:
        """Raise Unavailable, reason NOT_LEADER, when another replica leads."""
        if self._term is None:
            raise self._not_leader()

    def _not_leader(self) -> Unavailable:
        leader = self._mirror.leader
        address = leader.address if leader is not None and leader.address != self._address() else ""
        return Unavailable(
            f"this scheduler doesn't lead; {f'{address} does' if address else 'nobody does right now'}",
            reason="NOT_LEADER",
            metadata={"address": address} if address else {},
            retry_after_s=0.5,
        )

    async def _hello(self, messages: AsyncIterator[FromRunner]) -> Hello:
        try:
            async with asyncio.timeout(_HELLO_WITHIN_S):
                hello = await anext(messages)
        except (TimeoutError, StopAsyncIteration):
            raise Unavailable(f"no hello came within {_HELLO_WITHIN_S:g} s", reason="NO_HELLO") from None
        if not isinstance(hello, Hello):
            raise _unexpected("a hello must come first")
        check_facts(hello.facts)
        return hello

    async def _listen(self, session: Session, messages: AsyncIterator[FromRunner]) -> None:
        try:
            async for message in messages:
                if self._sessions.of(session.node) is not session:
                    return
                self._liveness.heard(session.node)
                if isinstance(message, Hello):
                    raise _unexpected("a hello comes once")
                if isinstance(message, Report):
                    session.report(message)
                    self._wake.set()
            session.end(Unavailable("the runner has hung up", reason="HUNG_UP"))
        except Error as error:
            session.end(error)
        except Exception as error:
            session.end(Unavailable(f"the connection broke: {type(error).__name__}", reason="BROKEN"))

    async def _reign(self, term: Term) -> None:
        """Do rounds until the term is over."""
        await self._mirror.reached(term.number)
        _log.info("leads, with term %d", term.number)
        self._term = term
        self._meter.leading(True)
        over: asyncio.Task[object] = asyncio.create_task(term.lost.wait(), name="term")
        rounds: asyncio.Task[object] = asyncio.create_task(self._rounds(term), name="rounds")
        keeping: asyncio.Task[object] = asyncio.create_task(self._liveness.run(), name="liveness")
        try:
            await asyncio.wait({over, rounds, keeping}, return_when=asyncio.FIRST_COMPLETED)
            for task in (rounds, keeping):
                if task.done():
                    task.result()
        finally:
            self._term = None
            self._meter.leading(False)
            self._sessions.end_all(self._not_leader())
            for task in (over, rounds, keeping):
                task.cancel()
            await asyncio.gather(over, rounds, keeping, return_exceptions=True)
            _log.info("leads no more")

    async def _rounds(self, term: Term) -> None:
        attempt = 0
        with self._mirror.listening(self._wake.set):
            while True:
                self._wake.clear()
                self._beaten = False
                try:
                    await self._round(term)
                    if not self._beaten:
                        attempt = 0
                        await self._doze()
                        continue
                except Conflict:
                    return  # another leads
                except Error as error:
                    _log.warning("a round failed: %s", error.message)
                except Exception:
                    # A fault of ours mustn't end it for good.
                    _log.exception("a round failed")
                    attempt = max(attempt, 5)
                await self._rest(attempt)
                attempt += 1

    async def _rest(self, attempt: int) -> None:
        """Wait a little after a failure: for the mirror to tell, or the store to come back."""
        random = self._randomness
        await self._clock.sleep(backoff(attempt, randomness=random, base_s=0.02, cap_s=2.0, at_least_s=0.005))

    async def _doze(self) -> None:
        """Wait until something changes, or a time comes."""
        seconds = await self._seconds_left()
        woken = asyncio.create_task(self._wake.wait())
        slept = asyncio.create_task(self._clock.sleep(seconds))
        try:
            await asyncio.wait({woken, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            slept.cancel()

    async def _seconds_left(self) -> float:
        now = self._clock.now()
        times = [time for job in self._mirror.snapshot.jobs.values() if (time := lifecycle.next_time(job))]
        recheck = (await self._decisions.now()).recheck_time
        if recheck is not None:
            times.append(recheck)
        # A time that has passed was dealt with in this round, or waits for something else.
        ahead = [seconds for time in times if (seconds := (time - now).total_seconds()) > 0]
        return min([_LONGEST_WAIT_S, *ahead]) + 0.001

    async def _round(self, term: Term) -> None:
        await self._register(term)
        await self._move_jobs(term)
        await self._sweep(term)
        await self._start_jobs(term)
        now = self._clock.now()
        snapshot = self._mirror.snapshot
        for session in self._sessions:
            if session.welcomed:
                session.direct(snapshot, now)
        self._meter.state(await self._decisions.now(), len(self._sessions))

    async def _commit(self, change: Change, term: Term) -> int:
        """Commit and return the revision; 0 when somebody else was first, so that another round is due.

        What one object's write runs into mustn't keep the others from theirs.
        """
        try:
            revision = await self._store.commit(change, term)
        except Conflict as conflict:
            if conflict.reason == "NOT_LEADER":
                raise
            self._meter.conflicted()
            self._beaten = True
            return 0
        for value in change.puts:
            if isinstance(value, Job) and value.status.state.ended:
                self._meter.ended(value)
        return revision

    async def _commit_what_fits(self, change: Change, term: Term) -> int:
        """Commit a change of a job, with fewer words where it is too large; 0 when it wasn't written."""
        for wording in (change, lifecycle.without_messages(change)):
            try:
                return await self._commit(wording, term)
            except Invalid as error:
                _log.error("%s: %s", describe(change.puts[0]), error.message)
        self._beaten = True
        return 0

    async def _register(self, term: Term) -> None:
        """Put the nodes of new sessions into the store, then welcome their runners."""
        revision = 0
        for session in self._sessions:
            if session.node in self._mirror.snapshot.unreadable:
                continue
            node = self._mirror.snapshot.nodes.get(session.node)
            if node is None:
                node = Node(session.node, Meta(self._randomness.id(), self._clock.now()), session.facts)
                revision = max(revision, await self._commit(Change(puts=(node,)), term))
            elif node.facts != session.facts and not session.welcomed:
                change = Change(puts=(replace(node, facts=session.facts),))
                revision = max(revision, await self._commit(change, term))
        await self._mirror.reached(revision)

    async def _move_jobs(self, term: Term) -> None:
        """Take in reports and the time: each job that this changes is one transaction."""
        snapshot, now = self._mirror.snapshot, self._clock.now()
        reports: dict[JobName, list[Report]] = defaultdict(list)
        heeded: list[tuple[Session, list[Report]]] = []
        lost: dict[JobName, list[int]] = defaultdict(list)
        fresh = []
        for session in self._sessions:
            if session.unheeded:
                heeded.append((session, list(session.unheeded)))
            for report in session.unheeded:
                if is_here(snapshot, report, session.node):
                    reports[report.id.job].append(report)
                elif report.artefacts and report.id.job not in snapshot.jobs.keys() | snapshot.unreadable:
                    self._on_stray(report.id.job)
            if not session.welcomed:
                fresh.append(session)
                for worker in session.lost(snapshot):
                    lost[worker.job].append(worker.rank)
        revision = 0
        beaten: set[JobName] = set()
        for name in list(snapshot.jobs):
            job = snapshot.jobs.get(name)
            if job is None or job.status.state.ended:
                continue
            moved = lifecycle.reported(job, reports.get(name, ()))
            moved = lifecycle.give_up(moved, lost.get(name, ()), "its runner has it no more", now)
            change = lifecycle.advance(moved, snapshot, now, self._randomness)
            if change is not None:
                written = await self._commit_what_fits(change, term)
                revision = max(revision, written)
                if not written:
                    beaten.add(name)
                elif change.deletes:
                    # What is freed is on nodes that the next job may free as well: see them first.
                    await self._mirror.reached(revision)
                    snapshot = self._mirror.snapshot
        await self._mirror.reached(revision)
        # A welcome comes first: a runner that is told anything before it hangs up.
        for session in fresh:
            node = self._mirror.snapshot.nodes.get(session.node)
            settled = not any(worker.job in beaten for worker in session.lost(snapshot))
            if node is not None and node.facts == session.facts and settled:
                session.welcome(timedelta(seconds=self._liveness_s))
        for session, said in heeded:
            if session.welcomed:
                session.acknowledge([report for report in said if report.id.job not in beaten])

    async def _sweep(self, term: Term) -> None:
        """Give back what nobody holds."""
        for change in lifecycle.orphans(self._mirror.snapshot):
            _log.warning("giving back what nobody holds: %s", [describe(value) for value in change.deletes])
            await self._mirror.reached(await self._commit(change, term))
            self._wake.set()

    async def _start_jobs(self, term: Term) -> None:
        """Commit what was decided, gang by gang."""
        decision = await self._decisions.now()
        if not decision.starts:
            return
        nodes = dict(decision.snapshot.nodes)
        now, revision = self._clock.now(), 0
        for start in decision.starts:
            uid = self._randomness.id()
            change = lifecycle.start(start.job, start.placed, nodes, term.number, uid, now)
            try:
                written = await self._commit(change, term)
            except Invalid as error:
                if fits_emptied(self._store.fits, start.job, start.placed, nodes, now):
                    self._beaten = True  # what has started before it crowds the nodes: decide anew
                    continue
                _log.warning("%s: can't be started: %s", start.job.name, error.message)
                change = lifecycle.refuse(start.job, error.message, now)
                written = await self._commit(change, term)
            revision = max(revision, written)
            for value in change.puts if written else ():
                if isinstance(value, Node):
                    nodes[value.name] = replace(value, meta=replace(value.meta, revision=written))
        await self._mirror.reached(revision)
        if len(decision.starts) < len(decision.line):
            self._wake.set()


def _unexpected(what: str) -> Invalid:
    return Invalid(f"message: {what}", reason="BAD_ORDER")

"""Which requests wait, which run together, and when.

`Batcher` is what the rest of serving knows. `WorkConservingBatcher` never lets an instance idle while a
request waits, unless it is told to hold requests back: what came while all instances were busy runs together.
(The idea of Clipper and TF Serving without their timer.)
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Hashable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from libs.common.clock import Clock
from libs.common.errors import Error, Internal, Unavailable
from services.serving.domain.backend import Backend
from services.serving.domain.execution import Executed, Member, Outcome, execute
from services.serving.domain.statistics import Statistics
from services.serving.domain.tensors import Array

# Dues of requests that don't wait any more and may lie among the others.
_SPARE_DUES = 64


@dataclass(frozen=True, slots=True)
class Policy:
    """What bounds a batcher.

    Attributes:
        max_rows: of one execution; 1: none are put together.
        max_delay_s: how long a request may be held back to fill a batch.
        instances: executions side by side.
        capacity: requests that may wait.
        timeout_s: the longest wait.
    """

    max_rows: int
    max_delay_s: float
    instances: int
    capacity: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Work:
    """A checked request.

    Attributes:
        member: inputs and rows.
        deadline: monotonic time after which nobody waits for the answer; None where somebody always does.
        timeout_s: the longest wait that the caller asks for; None leaves it to the policy.
    """

    member: Member
    deadline: float | None = None
    timeout_s: float | None = None


class Batcher(Protocol):
    """Runs requests, in batches of its choosing. Used on one event loop.

    Each request gets its own outcome: one that fails, is cancelled or comes too late never touches another.
    A request whose deadline has passed is never computed; one that waits too long ends on time, also while
    every instance is busy. Requests of different shapes never run together.
    """

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        ...

    async def submit(self, work: Work) -> Mapping[str, Array]:
        """Return the outputs of a request.

        Raises:
            Unavailable: QUEUE_FULL, QUEUE_TIMEOUT, or DEADLINE_EXCEEDED.
            Error: what the backend says of this request.
        """
        ...

    async def drain(self) -> None:
        """Return when nothing waits or runs any more. Whoever calls it has seen to it that no more comes."""
        ...


@dataclass(slots=True, eq=False)
class _Entry:
    number: int
    work: Work
    key: Hashable
    came: float
    due: float
    future: asyncio.Future[Mapping[str, Array]]
    started: float = 0.0


class _Bucket:
    """Requests that may run together, oldest first."""

    def __init__(self) -> None:
        self.entries: dict[int, _Entry] = {}
        self.rows = 0

    @property
    def head(self) -> _Entry:
        return next(iter(self.entries.values()))

    def add(self, entry: _Entry) -> None:
        self.entries[entry.number] = entry
        self.rows += entry.work.member.rows

    def remove(self, entry: _Entry) -> None:
        del self.entries[entry.number]
        self.rows -= entry.work.member.rows


class WorkConservingBatcher:
    """See `Batcher` and the module."""

    def __init__(
        self, backend: Backend, policy: Policy, executor: Executor, clock: Clock, statistics: Statistics
    ) -> None:
        """Run `backend` on the threads of `executor`, which are as many as the policy has instances."""
        self._backend = backend
        self._policy = policy
        self._executor = executor
        self._clock = clock
        self._statistics = statistics
        self._numbers = itertools.count()
        self._buckets: dict[Hashable, _Bucket] = {}
        self._entries: dict[int, _Entry] = {}
        """Those that wait, by number."""
        # Numbers alone: what has left the queue must not be held here, with its arrays, until it is due.
        self._dues: list[tuple[float, int]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Task[None] | None = None
        self._timer_due = 0.0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """See `Batcher`."""
        return len(self._entries)

    async def submit(self, work: Work) -> Mapping[str, Array]:
        """See `Batcher`."""
        now = self._clock.monotonic()
        entry = self._admit(work, now)
        self._dispatch(now)
        try:
            outputs = await entry.future
        except asyncio.CancelledError:
            self._statistics.cancelled += 1
            self._forget(entry)
            self._settle()
            raise
        return outputs

    async def drain(self) -> None:
        """See `Batcher`."""
        self._draining = True
        self._dispatch(self._clock.monotonic())
        await self._idle.wait()

    def _admit(self, work: Work, now: float) -> _Entry:
        if work.deadline is not None and work.deadline <= now:
            raise self._refusal("DEADLINE_EXCEEDED", "the request came after its deadline")
        if self.waiting >= self._policy.capacity:
            raise self._refusal(
                "QUEUE_FULL", f"{self.waiting} requests wait, as many as may; send fewer at once"
            )
        wait = self._policy.timeout_s
        if work.timeout_s is not None:
            wait = min(wait, work.timeout_s)
        due = now + wait if work.deadline is None else min(now + wait, work.deadline)
        number = next(self._numbers)
        # What is never put together waits in one line.
        key: Hashable = None if self._policy.max_rows == 1 else _shapes(work.member)
        entry = _Entry(number, work, key, now, due, asyncio.get_running_loop().create_future())
        self._buckets.setdefault(key, _Bucket()).add(entry)
        self._entries[number] = entry
        self._idle.clear()
        self._note_due(due, number)
        return entry

    def _note_due(self, due: float, number: int) -> None:
        if len(self._dues) > 2 * len(self._entries) + _SPARE_DUES:
            self._dues = [(entry.due, entry.number) for entry in self._entries.values()]
            heapq.heapify(self._dues)
        else:
            heapq.heappush(self._dues, (due, number))

    def _dispatch(self, now: float) -> None:
        """Start what can start."""
        while self._buckets and len(self._running) < self._policy.instances:
            ready = [bucket for bucket in self._buckets.values() if self._ready_at(bucket) <= now]
            if not ready:
                break
            batch = self._take(min(ready, key=lambda bucket: bucket.head.number), now)
            if batch:
                self._start(batch, now)
        self._settle()

    def _ready_at(self, bucket: _Bucket) -> float:
        if self._draining or bucket.rows >= self._policy.max_rows:
            return bucket.head.came
        return bucket.head.came + self._policy.max_delay_s

    def _take(self, bucket: _Bucket, now: float) -> list[_Entry]:
        batch: list[_Entry] = []
        rows = 0
        while bucket.entries and rows < self._policy.max_rows:
            entry = bucket.head
            if entry.due <= now:
                self._expire(entry, now)
                continue
            rows += entry.work.member.rows
            if batch and rows > self._policy.max_rows:
                break
            self._forget(entry)
            batch.append(entry)
        return batch

    def _start(self, batch: list[_Entry], now: float) -> None:
        for entry in batch:
            entry.started = now
        task = asyncio.get_running_loop().create_task(self._run(batch))
        self._running.add(task)

    async def _run(self, batch: list[_Entry]) -> None:
        members = [entry.work.member for entry in batch]
        work = partial(execute, self._backend, members, self._clock)
        try:
            executed = await asyncio.get_running_loop().run_in_executor(self._executor, work)
            self._deliver(batch, executed)
        finally:
            for entry in batch:
                if not entry.future.done():
                    entry.future.set_exception(Internal("the execution broke off", reason="MODEL_FAILED"))
            task = asyncio.current_task()
            if task is not None:
                self._running.discard(task)
            self._dispatch(self._clock.monotonic())

    def _deliver(self, batch: list[_Entry], executed: Executed) -> None:
        now = self._clock.monotonic()
        for rows, timing in executed.runs:
            self._statistics.executed(rows, timing)
        for entry, outcome in zip(batch, executed.outcomes, strict=True):
            if not entry.future.done():
                self._answer(entry, outcome, now)

    def _answer(self, entry: _Entry, outcome: Outcome, now: float) -> None:
        total_ns = round((now - entry.came) * 1e9)
        if outcome.error is not None:
            self._statistics.failed(total_ns)
            entry.future.set_exception(outcome.error)
            return
        self._statistics.succeeded(
            entry.work.member.rows,
            round((entry.started - entry.came) * 1e9),
            outcome.timing,
            total_ns,
            round(self._clock.now().timestamp() * 1000),
        )
        entry.future.set_result(outcome.outputs)

    def _forget(self, entry: _Entry) -> None:
        """Take an entry out of what waits, if it is there."""
        if self._entries.pop(entry.number, None) is None:
            return
        bucket = self._buckets[entry.key]
        bucket.remove(entry)
        if not bucket.entries:
            del self._buckets[entry.key]

    def _expire(self, entry: _Entry, now: float) -> None:
        self._forget(entry)
        if entry.future.done():
            return
        deadline = entry.work.deadline
        if deadline is not None and deadline <= entry.due:
            error = self._refusal("DEADLINE_EXCEEDED", "the request's deadline passed while it waited")
        else:
            error = self._refusal(
                "QUEUE_TIMEOUT", f"the request waited {now - entry.came:.3g} s for an instance"
            )
        entry.future.set_exception(error)

    def _settle(self) -> None:
        """Say whether all is done, and set the timer for what is next."""
        if not self._entries and not self._running:
            self._idle.set()
        due = self._next_due()
        if due is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None or due < self._timer_due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = due
            self._timer = asyncio.get_running_loop().create_task(self._wait(due))

    def _next_due(self) -> float | None:
        while self._dues and self._dues[0][1] not in self._entries:
            heapq.heappop(self._dues)
        if not self._entries:
            return None
        due = self._dues[0][0]
        if self._policy.max_delay_s and len(self._running) < self._policy.instances:
            due = min(due, *(self._ready_at(bucket) for bucket in self._buckets.values()))
        return due

    async def _wait(self, due: float) -> None:
        await self._clock.sleep(due - self._clock.monotonic())
        self._timer = None
        now = self._clock.monotonic()
        while self._dues and self._dues[0][0] <= now:
            entry = self._entries.get(heapq.heappop(self._dues)[1])
            if entry is not None:
                self._expire(entry, now)
        self._dispatch(now)

    def _refusal(self, reason: str, text: str) -> Error:
        self._statistics.refuse(reason)
        return Unavailable(text, reason=reason, retry_after_s=None if reason == "DEADLINE_EXCEEDED" else 0.1)


def _shapes(member: Member) -> Hashable:
    # Their order and types are those of the model's inputs.
    return tuple(array.shape[1:] for array in member.inputs.values())

"""What workers write, kept and read: appended by runners at offsets, followed by users."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from libs.common.clock import Clock
from libs.common.errors import Invalid, NotFound, OutOfRange, Precondition
from libs.common.names import JobName
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.objects import Job, WorkerId

MAX_APPEND_BYTES = 256 * 1024
MAX_READ_BYTES = 64 * 1024
# A worker's end may be known before the last of what it wrote.
_LAST_WORDS_S = 10.0


@dataclass(frozen=True, slots=True)
class LogKey:
    """Which log: of a worker of an attempt of a job."""

    tenant: str
    job_uid: str
    attempt: int
    rank: int


@dataclass(frozen=True, slots=True)
class LogPart:
    """A piece of a log.

    Attributes:
        offset: where `data` begins: where it was asked for, or later when what was there is kept no more.
        data: may be empty.
        complete: whether nothing comes after it.
    """

    offset: int
    data: bytes
    complete: bool = False


class LogFiles(Protocol):
    """Where logs are kept. Calls block; each log is written by one at a time."""

    def append(self, key: LogKey, offset: int, data: bytes, *, last: bool) -> int:
        """Append durably what isn't there yet, and return the size; beyond the end nothing is written.

        Raises:
            Exhausted: when the disk is full.
        """
        ...

    def read(self, key: LogKey, offset: int, most: int) -> LogPart | None:
        """Return what is kept at an offset or after it; None when there is no such log."""
        ...

    def forget(self, tenant: str, job_uid: str) -> None:
        """Remove a job's logs; nothing happens when there are none."""
        ...

    def jobs(self) -> list[tuple[str, str]]:
        """Return of which jobs there are logs: (tenant, uid)."""
        ...


class Logs:
    """See the module."""

    def __init__(self, files: LogFiles, mirror: Mirror, clock: Clock) -> None:
        self._files = files
        self._mirror = mirror
        self._clock = clock
        self._locks = [asyncio.Lock() for _ in range(64)]
        self._readers: dict[LogKey, set[asyncio.Event]] = defaultdict(set)

    async def append(self, worker: WorkerId, offset: int, data: bytes, *, last: bool) -> int:
        """Append to a worker's log, and return how much of it is durable.

        Raises:
            Invalid: for too much at once, or a worker that can't be.
            NotFound: when its job is gone: nobody wants the rest.
        """
        if len(data) > MAX_APPEND_BYTES:
            raise Invalid(f"data: has {len(data)} bytes; send at most {MAX_APPEND_BYTES} at once")
        await self._mirror.reached(1)
        job = self._mirror.snapshot.jobs.get(worker.job)
        if job is None or job.meta.uid != worker.job_uid:
            raise NotFound(f"{worker.job}: the job of this worker is gone", reason="JOB_NOT_FOUND")
        if not 1 <= worker.attempt <= job.status.attempt or worker.rank >= job.spec.worker_count:
            raise Invalid(f"id: {worker.job} has no worker {worker.rank} of attempt {worker.attempt}")
        key = LogKey(worker.job.tenant, worker.job_uid, worker.attempt, worker.rank)
        async with self._locks[hash(key) % len(self._locks)]:
            size = await asyncio.to_thread(self._files.append, key, offset, data, last=last)
        for reader in self._readers.get(key, ()):
            reader.set()
        return size

    async def read(
        self, name: JobName, rank: int, attempt: int, offset: int, *, follow: bool
    ) -> AsyncGenerator[LogPart, None]:
        """Yield a worker's log from an offset; with `follow` until the worker has ended.

        Raises:
            NotFound: when the job isn't there.
            Invalid: when it has no such worker or attempt.
            Precondition: when it hasn't been started, without `follow`.
            OutOfRange: for an offset beyond the end, without `follow`.
        """
        await self._mirror.reached(1)
        changed = asyncio.Event()
        with self._mirror.listening(changed.set):
            job = self._job(name, None)
            uid = job.meta.uid
            _check_worker(job, rank, attempt)
            while not job.status.attempt:
                if not follow or job.status.state.ended:
                    raise Precondition(
                        f"{name}: {job.status.state.told} and was never started; there is no log",
                        reason="NOT_STARTED",
                    )
                changed.clear()
                await changed.wait()
                job = self._job(name, uid)
            key = LogKey(name.tenant, uid, attempt or job.status.attempt, rank)
            self._readers[key].add(changed)
            try:
                async with aclosing(self._parts(name, key, offset, changed, follow=follow)) as parts:
                    async for part in parts:
                        yield part
            finally:
                self._readers[key].discard(changed)
                if not self._readers[key]:
                    del self._readers[key]

    async def _parts(
        self, name: JobName, key: LogKey, offset: int, changed: asyncio.Event, *, follow: bool
    ) -> AsyncGenerator[LogPart, None]:
        over_since: float | None = None
        while True:
            changed.clear()
            part = await asyncio.to_thread(self._files.read, key, offset, MAX_READ_BYTES)
            if part is not None and part.data:
                offset = part.offset + len(part.data)
                yield part
                continue
            if not follow:
                if part is not None and offset > part.offset:
                    raise OutOfRange(
                        f"offset_bytes: {offset} is beyond the log's {part.offset} bytes; start there",
                        metadata={"size_bytes": str(part.offset)},
                    )
                return
            if part is not None and part.complete:
                return
            if not self._is_over(self._job(name, key.job_uid), key):
                await changed.wait()
                continue
            # Whatever changes elsewhere wakes us too, and mustn't put the end off.
            over_since = self._clock.monotonic() if over_since is None else over_since
            left_s = over_since + _LAST_WORDS_S - self._clock.monotonic()
            if left_s <= 0:
                return
            await self._woken(changed, left_s)

    def _is_over(self, job: Job, key: LogKey) -> bool:
        """Tell whether a worker has ended, so that at most its last words are still on their way."""
        status = job.status
        over = status.state.ended or status.attempt > key.attempt or not status.state.placed
        return over or status.workers[key.rank].state.ended

    async def _woken(self, changed: asyncio.Event, seconds: float) -> None:
        """Wait for something new, but not for longer."""
        slept = asyncio.create_task(self._clock.sleep(seconds))
        woken = asyncio.create_task(changed.wait())
        try:
            await asyncio.wait({slept, woken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            slept.cancel()
            woken.cancel()

    async def forget(self, tenant: str, job_uid: str) -> None:
        """Remove a job's logs."""
        await asyncio.to_thread(self._files.forget, tenant, job_uid)

    async def sweep(self) -> int:
        """Remove the logs of jobs that are gone, and return of how many."""
        await self._mirror.reached(1)
        kept = await asyncio.to_thread(self._files.jobs)
        known = {(name.tenant, job.meta.uid) for name, job in self._mirror.snapshot.jobs.items()}
        gone = [each for each in kept if each not in known]
        for tenant, uid in gone:
            await self.forget(tenant, uid)
        return len(gone)

    def _job(self, name: JobName, uid: str | None) -> Job:
        job = self._mirror.snapshot.jobs.get(name)
        if job is None or uid not in (None, job.meta.uid):
            raise NotFound(f"{name}: not found", reason="JOB_NOT_FOUND")
        return job


def _check_worker(job: Job, rank: int, attempt: int) -> None:
    count = job.spec.worker_count
    if rank >= count:
        raise Invalid(
            f"rank: {rank} is too large; {job.name} has {count} worker{'s' if count > 1 else ''}: "
            f"use {f'0 to {count - 1}' if count > 1 else '0'}",
            metadata={"field": "rank"},
        )
    made = job.status.attempt
    if attempt > max(1, made):
        raise Invalid(
            f"attempt: {attempt} is too large; {job.name} has had {made} attempt{'' if made == 1 else 's'}: "
            "use the number of one of them, or 0 for the last",
            metadata={"field": "attempt"},
        )

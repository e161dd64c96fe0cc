"""The writer thread of a partition: group commit. Many appends become one write and one sync.

While one batch is being synced, the next one gathers in the queue, so the load itself makes batches larger.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from libs.common.errors import Exhausted, Unavailable
from services.gateway.tunnel.domain.frame import Frame, Receipt
from services.gateway.tunnel.store.partition import Partition

T = TypeVar("T")

BATCH_BYTES = 4 * 1024 * 1024
"""Most bytes of frames in one block. A single append may be as large as that."""


@dataclass(slots=True, eq=False)
class _Job:
    """Either frames to append or a call to make between two batches."""

    done: asyncio.Future[object]
    frames: Sequence[Frame] = ()
    call: Callable[[], object] | None = None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(frame.cost for frame in self.frames)


class Writer:
    """Owns the writing side of a partition. Its methods are called from one event loop."""

    def __init__(
        self,
        partition: Partition,
        *,
        queue_bytes: int,
        monotonic: Callable[[], float],
        on_commit: Callable[[float, int], None],
        on_grown: Callable[[], None],
    ) -> None:
        """Start the thread.

        Args:
            partition: whose writing side this owns from now on.
            queue_bytes: appends beyond this many bytes of waiting frames are refused.
            monotonic: a clock in seconds.
            on_commit: told, on the event loop, the seconds and the number of frames of each commit.
            on_grown: called on the event loop after a commit, before its appends return.
        """
        self._partition = partition
        self._queue_bytes = queue_bytes
        self._monotonic = monotonic
        self._on_commit = on_commit
        self._on_grown = on_grown
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tunnel-log-writer", daemon=True)
        self._thread.start()

    async def append(self, frames: Sequence[Frame]) -> Receipt:
        """Queue frames and wait until they are durable; raises as `Log.append` does."""
        job = _Job(self._loop.create_future(), frames)
        if self._closed:
            raise Unavailable("the tunnel's log is closed", reason="LOG_CLOSED", retry_after_s=1.0)
        if self._waiting_bytes + job.size > self._queue_bytes:
            raise Exhausted(
                f"the tunnel's log has {self._waiting_bytes} bytes waiting to be written, of "
                f"{self._queue_bytes} allowed; "
                "send again later",
                reason="LOG_BUSY",
                retry_after_s=1.0,
            )
        self._waiting_bytes += job.size
        self._queue.put(job)
        return cast("Receipt", await job.done)

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the writer thread, between two batches; raises what it raises."""
        if self._closed:
            raise Unavailable("the tunnel's log is closed", reason="LOG_CLOSED")
        job = _Job(self._loop.create_future(), call=function)
        self._queue.put(job)
        return cast("T", await job.done)

    async def close(self) -> None:
        """Finish what was queued and stop the thread; the partition is closed by it."""
        self._closed = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        carry: _Job | None = None
        while (job := carry or self._queue.get()) is not None:
            carry = None
            if job.call is not None:
                self._serve(job, job.call)
                continue
            batch, size, stop = [job], job.size, False
            while True:
                try:
                    following = self._queue.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    stop = True
                    break
                if following.call is not None or size + following.size > BATCH_BYTES:
                    carry = following
                    break
                batch.append(following)
                size += following.size
            self._commit(batch)
            if stop:
                break
        self._partition.close()

    def _commit(self, batch: list[_Job]) -> None:
        started = self._monotonic()
        results: Sequence[object]
        try:
            results = self._partition.append([job.frames for job in batch])
        except Exception as error:
            results = [error] * len(batch)
        took = self._monotonic() - started
        self._tell(lambda: self._settle(batch, results, took))

    def _serve(self, job: _Job, call: Callable[[], object]) -> None:
        result: object
        try:
            result = call()
        except Exception as error:
            result = error
        self._tell(lambda: _resolve(job, result))

    def _tell(self, function: Callable[[], None]) -> None:
        # The loop may be gone when a process ends without closing; then nobody waits either.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def _settle(self, batch: list[_Job], results: Sequence[object], took: float) -> None:
        self._waiting_bytes -= sum(job.size for job in batch)
        self._on_commit(took, sum(len(job.frames) for job in batch))
        self._on_grown()
        for job, result in zip(batch, results, strict=True):
            _resolve(job, result)


def _resolve(job: _Job, result: object) -> None:
    if job.done.done():
        return
    if isinstance(result, Exception):
        job.done.set_exception(result)
    else:
        job.done.set_result(result)

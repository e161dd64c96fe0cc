"""One SQLite file, one thread that owns it, many waiting writes in one commit."""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from libs.common.clock import Clock, SystemClock
from libs.common.errors import Error, Unavailable
from services.device_agent.store.schema import migrate
from services.device_agent.store.trouble import passes, translate

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

# Writes that wait when one commit begins go into the next together; more would only lengthen the wait.
_GROUP = 64
# Callers beyond this many wait at the door, so that a stalled disk can't fill the memory.
_WAITING = 512
# Between attempts of what has to be stored in the end.
_RETRY_S = 1.0

_PROBE = "INSERT OR REPLACE INTO meta (key, value) VALUES ('probe', ?)"


@dataclass(slots=True)
class _Job(Generic[T]):
    work: Work[T]
    durable: bool
    future: asyncio.Future[T]
    result: T | None = None
    error: BaseException | None = None


class Database:
    """Runs functions over the connection, each all or nothing, in the order of their calls.

    A function runs inside a savepoint of a transaction that it may share with others: one that raises undoes
    only its own writes, and its caller alone gets the error. Nobody gets an answer before the commit; a
    durable one is on the disk by then (`synchronous=FULL`). One that isn't durable is lost by a power cut
    at worst together with everything after it, never on its own, so that it suits what can be derived anew.

    Args:
        path: the file.
        clock: what `insist` waits by.
        tell: told of trouble that passes (see `trouble`) whenever it stops a function, and with None when
            something has been written again.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock | None = None,
        tell: Callable[[Error | None], None] = lambda trouble: None,
    ) -> None:
        self._path = path
        self._clock = clock if clock is not None else SystemClock()
        self._tell = tell
        self._trouble = False
        self._queue: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._door: asyncio.Semaphore = asyncio.Semaphore(_WAITING)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        """Open the file, bring its schema up to date, start the thread.

        Raises:
            Precondition: when the file was written by a newer agent, or is damaged.
            Exhausted: reason DISK_FULL. Opening may be tried again, here and below.
            Unavailable: reason STORE_IO.
        """
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._main, args=(opened,), name="store", daemon=True)
        self._thread.start()
        await opened

    async def run(self, work: Work[T], *, durable: bool = True) -> T:
        """Run `work` and return what it returned, once that is committed.

        Cancelling the caller doesn't undo the work.

        Raises:
            Exhausted: reason DISK_FULL; nothing was written.
            Unavailable: reason STORE_IO, the same; and after `close`.
        """
        async with self._door:
            if self._loop is None or self._thread is None:
                raise Unavailable("the store is closed")
            job = _Job(work, durable, self._loop.create_future())
            self._queue.put(job)
            result: T = await job.future
            return result

    async def insist(self, work: Work[T], *, durable: bool = True) -> T:
        """Run `work` as `run` does, again and again for as long as trouble that passes stops it."""
        while True:
            try:
                return await self.run(work, durable=durable)
            except Error as error:
                if not passes(error):
                    raise
            await self._clock.sleep(_RETRY_S)

    async def probe(self) -> None:
        """After trouble, see whether something can be written again; else do nothing.

        Raises:
            Exhausted, Unavailable: as `run`.
        """
        if self._trouble:
            await self.run(lambda connection: connection.execute(_PROBE, (self._clock.monotonic(),)))

    async def close(self) -> None:
        """Finish what is queued, then close the file. Calling again does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(thread.join)

    # ---- on the thread ----

    def _main(self, opened: asyncio.Future[None]) -> None:
        assert self._loop is not None
        try:
            connection = sqlite3.connect(self._path, isolation_level=None, cached_statements=256)
            try:
                _prepare(connection)
            except BaseException:
                connection.close()
                raise
        except BaseException as error:
            self._loop.call_soon_threadsafe(_fail, opened, translate(error))
            return
        self._loop.call_soon_threadsafe(_succeed, opened)
        try:
            self._serve(connection)
        finally:
            connection.close()

    def _serve(self, connection: sqlite3.Connection) -> None:
        assert self._loop is not None
        durable_now: bool | None = None
        open_ = True
        while open_:
            first = self._queue.get()
            if first is None:
                break
            jobs = [first]
            while len(jobs) < _GROUP and not self._queue.empty():
                job = self._queue.get()
                if job is None:
                    open_ = False
                    break
                jobs.append(job)
            durable = any(job.durable for job in jobs)
            if durable != durable_now:
                connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                durable_now = durable
            before = connection.total_changes
            _transact(connection, jobs)
            wrote = connection.total_changes > before
            self._loop.call_soon_threadsafe(self._deliver, jobs, wrote)

    # ---- on the loop ----

    def _deliver(self, jobs: list[_Job[Any]], wrote: bool) -> None:
        trouble = next((e for e in (job.error for job in jobs) if isinstance(e, Error) and passes(e)), None)
        if trouble is not None:
            self._trouble = True
            self._tell(trouble)
        elif wrote and self._trouble:
            self._trouble = False
            self._tell(None)
        _settle(jobs)


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA cache_size=-2048")
    connection.execute("PRAGMA journal_size_limit=8388608")
    migrate(connection)


def _transact(connection: sqlite3.Connection, jobs: list[_Job[Any]]) -> None:
    try:
        _undo(connection)
        connection.execute("BEGIN")
        for job in jobs:
            connection.execute("SAVEPOINT job")
            try:
                job.result = job.work(connection)
                connection.execute("RELEASE job")
            except Exception as error:
                job.error = translate(error)
                connection.execute("ROLLBACK TO job")
                connection.execute("RELEASE job")
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        with contextlib.suppress(sqlite3.Error):  # else the next group begins with it
            _undo(connection)
        # A full disk may have rolled all back already; then it, not the missing savepoint, is what to tell.
        reason = next((job.error for job in jobs if job.error and passes(job.error)), translate(error))
        for job in jobs:
            job.error = job.error or reason


def _undo(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _succeed(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _settle(jobs: list[_Job[Any]]) -> None:
    for job in jobs:
        if job.future.done():  # the caller was cancelled
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)

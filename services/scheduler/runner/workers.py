"""All workers of this node: what is started, stopped, forgotten; which reports await acknowledgement."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from libs.common.errors import Error
from libs.common.names import NodeName
from services.scheduler.domain.lifecycle import Report
from services.scheduler.domain.objects import Worker, WorkerId, WorkerState
from services.scheduler.runner.assignment import Assignment
from services.scheduler.runner.folder import Folders, WorkerFolder, key_of
from services.scheduler.runner.life import Life, Tools
from services.scheduler.runner.users import Users

_log = logging.getLogger(__name__)

# How long a worker that is forgotten may still bring its log to the scheduler, in seconds.
_LAST_WORDS_S = 60.0
_LOOK_S = 0.05

AppendFor = Callable[[WorkerId, int, bytes, bool], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Started:
    """A worker as the scheduler asked for it: read, and as it came."""

    assignment: Assignment
    message: bytes


class Outbox:
    """Reports that the scheduler hasn't acknowledged yet: the last one of each worker."""

    def __init__(self) -> None:
        self._reports: dict[WorkerId, Report] = {}
        self._due_times: dict[WorkerId, float] = {}
        self.changed = asyncio.Event()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._reports)

    def put(self, report: Report) -> None:
        """Have a report sent, at once."""
        self._reports[report.id] = report
        self._due_times[report.id] = 0.0
        self.changed.set()

    def take(self, now: float, again_s: float) -> list[Report]:
        """Return what is to be sent now; it is due again after `again_s` unless it is acknowledged."""
        due = [report for worker, report in self._reports.items() if self._due_times[worker] <= now]
        for report in due:
            self._due_times[report.id] = now + again_s
        return due

    def acknowledged(self, worker: WorkerId, sequence: int) -> None:
        """Drop a report unless a later one has come."""
        report = self._reports.get(worker)
        if report is not None and report.sequence <= sequence:
            self.drop(worker)

    def drop(self, worker: WorkerId) -> None:
        """Drop whatever there is of a worker."""
        self._reports.pop(worker, None)
        self._due_times.pop(worker, None)


class Workers:
    """What this node runs."""

    def __init__(
        self,
        node: NodeName,
        folders: Folders,
        tools: Tools,
        append: AppendFor,
        *,
        read: Callable[[bytes], Assignment],
        users: Users | None = None,
        on_end: Callable[[Worker], None] = lambda worker: None,
    ) -> None:
        """Keep workers in `folders`.

        Args:
            node: this one.
            folders: of the workers.
            tools: what their lives are lived with.
            append: brings a piece of a worker's log to the scheduler.
            read: reads a stored start.
            users: whom workers run as; None for the runner's own user.
            on_end: told of each end.
        """
        self.outbox = Outbox()
        self._node = node
        self._folders = folders
        self._tools = tools
        self._append = append
        self._read = read
        self._users = users
        self._on_end = on_end
        self._lives: dict[WorkerId, Life] = {}
        self._tasks: dict[WorkerId, asyncio.Task[None]] = {}
        self._forgetting: set[asyncio.Task[None]] = set()

    @property
    def running_count(self) -> int:
        """How many haven't ended."""
        return sum(1 for life in self._lives.values() if not life.ended)

    async def adopt(self) -> None:
        """Go on with what earlier runners left."""
        for folder in await asyncio.to_thread(self._folders.all):
            try:
                user_id = await asyncio.to_thread(folder.user_id)
                if self._users is not None and user_id is not None:
                    self._users.hold([user_id])
                assignment = self._read(await asyncio.to_thread(folder.start))
            except (Error, OSError, ValueError) as error:
                # Written by us, so that only a fault of the disk leads here; its keeper goes on alone, and
                # its user, where that can be read, stays taken.
                _log.error("a worker's folder can't be read: %s", error, extra={"folder": folder.path.name})
                continue
            self._begin(assignment, folder)
        if self._lives:
            _log.info("workers that were there: %d; going on with them", len(self._lives))

    async def start(self, started: Started) -> None:
        """Start a worker, unless it is there: then its last report goes out again."""
        worker = started.assignment.id
        if (life := self._lives.get(worker)) is not None:
            if life.last_report is not None:
                self.outbox.put(life.last_report)
            return
        user_id = None
        try:
            key = key_of(worker)
            user_id = self._users.take() if self._users is not None else None
            folder = await asyncio.to_thread(self._folders.make, key, started.message, user_id)
        except (Error, OSError) as error:
            if self._users is not None and user_id is not None:
                self._users.free(user_id)
            self._refuse(worker, "START_FAILED", f"the runner has no room for it: {error}")
            return
        except Exception:
            self._refuse(worker, "START_FAILED", "the runner failed; its log says how")
            raise
        self._begin(started.assignment, folder)

    async def stop(self, worker: WorkerId, reason: str) -> None:
        """End a worker; one that isn't there is reported as lost."""
        life = self._lives.get(worker)
        if life is None:
            self._refuse(worker, "LOST", "its runner doesn't have it")
        elif life.ended and life.last_report is not None:
            self.outbox.put(life.last_report)
        else:
            await life.stop(reason)

    def forget(self, worker: WorkerId) -> None:
        """Remove what is left of a worker, once it has ended and its log is with the scheduler."""
        self.outbox.drop(worker)
        if worker in self._lives:
            task = asyncio.create_task(self._forget(worker))
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)

    async def stop_all(self, reason: str) -> None:
        """End every worker and wait until they have ended."""
        for life in list(self._lives.values()):
            if not life.ended:
                await life.stop(reason)
        while any(not life.ended and not self._tasks[id_].done() for id_, life in self._lives.items()):
            await self._tools.clock.sleep(_LOOK_S)

    async def close(self) -> None:
        """Let go of all workers; those that run go on, and the next runner finds them."""
        tasks = [*self._tasks.values(), *self._forgetting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def reports(self) -> list[Report]:
        """Return the last report of every worker that is here and has one."""
        return [life.last_report for life in self._lives.values() if life.last_report is not None]

    def unreported(self) -> list[WorkerId]:
        """Return the workers that are being started."""
        return [id_ for id_, life in self._lives.items() if life.last_report is None]

    def _begin(self, assignment: Assignment, folder: WorkerFolder) -> None:
        async def append(offset: int, data: bytes, last: bool) -> int:
            return await self._append(assignment.id, offset, data, last)

        life = Life(assignment, folder, self._tools, append, self._reported)
        self._lives[assignment.id] = life
        self._tasks[assignment.id] = asyncio.create_task(self._live(life), name=folder.path.name)

    async def _live(self, life: Life) -> None:
        try:
            await life.run()
        except Exception:
            _log.exception("a worker's life failed; it is ended", extra={"worker": life.folder.path.name})
            await life.give_up()

    def _reported(self, report: Report) -> None:
        self.outbox.put(report)
        if report.worker.state.ended:
            self._on_end(report.worker)

    def _refuse(self, worker: WorkerId, reason: str, message: str) -> None:
        told = Worker(
            worker.rank,
            self._node,
            WorkerState.FAILED,
            reason=reason,
            message=message,
            end_time=self._tools.clock.now(),
        )
        self.outbox.put(Report(worker, told, sequence=1))

    async def _forget(self, worker: WorkerId) -> None:
        life, task = self._lives[worker], self._tasks[worker]
        if not life.ended:
            await life.stop("LOST")
        while not life.ended and not task.done():
            await self._tools.clock.sleep(_LOOK_S)
        await asyncio.wait({task}, timeout=_LAST_WORDS_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._lives.pop(worker, None)
        self._tasks.pop(worker, None)
        self.outbox.drop(worker)
        user_id = life.folder.user_id()
        await asyncio.to_thread(self._folders.remove, life.folder)
        if self._users is not None and user_id is not None:
            self._users.free(user_id)

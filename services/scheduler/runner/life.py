"""One worker's life: files are fetched, its keeper starts it, its end is reported, artefacts are kept.

Wherever it is when the runner is killed, the next runner goes on from what the worker's folder says.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from libs.common.blobs import BlobClient, BlobRef
from libs.common.client import on_behalf_of
from libs.common.clock import Clock
from libs.common.errors import Error, Invalid, NotFound, Precondition
from services.scheduler.domain import objects
from services.scheduler.domain.lifecycle import Report
from services.scheduler.domain.objects import Artefact, JobFile, KeptArtefact, Worker
from services.scheduler.runner import assignment as assignments
from services.scheduler.runner.assignment import Assignment, failed, inside
from services.scheduler.runner.folder import WorkerFolder
from services.scheduler.runner.keepers import Keeper, sweep
from services.scheduler.runner.log_sender import Append, LogSender

T = TypeVar("T")

_log = logging.getLogger(__name__)

# A worker has no more reports than these, so that their sequence needs no place on the disk.
_RUNNING, _ENDED = 1, 2
_STOPPED = "STOPPED"
# What reading a record fails with when its worker has written over it.
_SCRIBBLED = (KeyError, ValueError, OverflowError)
_FETCHED_AT_ONCE = 4
# How long a worker's last report waits for its log, in seconds: a gang waits for its failed member.
_LOG_S = 10.0


@dataclass(frozen=True, slots=True)
class Tools:
    """What lives are lived with.

    Attributes:
        fetching: fetches files; tries as long as a start may take.
        keeping: keeps artefacts; tries for long, since they are what the work was for.
        clock: tells and waits.
        environ: the runner's environment.
        log_bytes: of output kept a worker.
        log_bytes_per_s: sent to the scheduler a worker.
        process_count: processes that a worker may have.
    """

    fetching: BlobClient
    keeping: BlobClient
    clock: Clock
    environ: Mapping[str, str]
    log_bytes: int
    log_bytes_per_s: float
    process_count: int


class Life:
    """One worker on this node."""

    def __init__(
        self,
        assignment: Assignment,
        folder: WorkerFolder,
        tools: Tools,
        append: Append,
        report: Callable[[Report], None],
    ) -> None:
        """Send its log by `append`, and say what happens by `report`."""
        self.folder = folder
        self.last_report: Report | None = None
        self._assignment = assignment
        self._tools = tools
        self._say = report
        self._keeper: Keeper | None = None
        self._stopping = asyncio.Event()
        self._sender = LogSender(folder.log, append, tools.clock, tools.log_bytes_per_s)

    @property
    def ended(self) -> bool:
        """Whether its last report was made."""
        return self.last_report is not None and self.last_report.sequence == _ENDED

    async def run(self) -> None:
        """Live it to the last report."""
        sending = asyncio.create_task(self._send_log())
        try:
            try:
                worker = await self._live()
            finally:
                if self._keeper is not None:
                    self._keeper.close()
                    self._keeper = None
            worker, kept = await self._keep(worker)
            self._sender.complete()
            await asyncio.wait({sending}, timeout=_LOG_S)
            self._tell(worker, _ENDED, kept)
            await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def stop(self, reason: str) -> None:
        """Make it end: what is asked here outlasts this process. Returns once it is noted."""
        await asyncio.to_thread(self.folder.request_stop, reason)
        self._stopping.set()
        if self._keeper is not None:
            self._keeper.wake()

    async def give_up(self) -> None:
        """End it, whatever state it is in, and report it as lost: for faults of ours."""
        await asyncio.to_thread(self.folder.request_stop, "LOST")
        keeper = await Keeper.find(self.folder)
        if keeper is not None:
            keeper.wake()
            await keeper.ended()
            keeper.close()
        await asyncio.to_thread(sweep, self.folder, self.folder.user_id())
        text = "the runner failed to look after it; its log says how"
        self._tell(failed(self._assignment, "LOST", text, self._tools.clock), _ENDED)

    # ---- to the end of the program ----
    async def _live(self) -> Worker:
        folder, clock = self.folder, self._tools.clock
        try:
            self._keeper = await Keeper.find(folder)
            if self._keeper is None and folder.exit() is None:
                if folder.keeper() is not None:
                    return await self._lost()
                await self._begin()
        except Error as error:
            return self._not_started(error)
        except OSError as error:
            _log.exception("a worker couldn't be started", extra={"worker": folder.path.name})
            message = f"the runner couldn't start it: {error.strerror or error}"
            return failed(self._assignment, "START_FAILED", message, clock)
        if self._keeper is not None:
            if await self._keeper.started(folder) and (record := folder.running()) is not None:
                with contextlib.suppress(*_SCRIBBLED):
                    self._tell(assignments.running(self._assignment, record), _RUNNING)
            await self._keeper.ended()
        record = await asyncio.to_thread(folder.exit)
        if record is None:
            return await self._lost()
        try:
            return await asyncio.to_thread(assignments.ended, self._assignment, folder, record, clock)
        except _SCRIBBLED:
            return await self._lost()

    async def _begin(self) -> None:
        """Fetch the files and start the keeper; raises Error when that can't be done or isn't wanted."""
        if await asyncio.to_thread(self.folder.stop_requested) is not None:
            self._stopping.set()
        await self._unless_stopped(self._fetch())
        self._keeper = await asyncio.to_thread(self._start)

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns; raise Precondition, reason STOPPED, when the end comes before."""
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Precondition("its end was asked for", reason=_STOPPED)
            return await working
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    def _not_started(self, error: Error) -> Worker:
        clock = self._tools.clock
        if error.reason == _STOPPED:
            reason = self.folder.stop_requested() or "CANCELLED"
            return failed(self._assignment, reason, "ended before it was started", clock)
        # What is wrong with the job itself is wrong next time too: 126, as a shell has it, isn't repeated.
        code = 126 if isinstance(error, Invalid | NotFound) else 0
        return failed(self._assignment, "START_FAILED", error.message, clock, code)

    def _start(self) -> Keeper:
        tools = self._tools
        entries = assignments.launch(
            self._assignment,
            self.folder,
            tools.environ,
            log_bytes=tools.log_bytes,
            process_count=tools.process_count,
        )
        self.folder.write_launch(entries)
        self.folder.give_away()
        lock = self.folder.take_lock()
        if lock is None:
            raise OSError("another runner has started it meanwhile")
        return Keeper.start(self.folder, lock)

    async def _fetch(self) -> None:
        """Put the job's files into its folder."""
        files = self._assignment.spec.files
        if not files:
            return
        at_once = asyncio.Semaphore(_FETCHED_AT_ONCE)
        with on_behalf_of(str(self._assignment.id.job)):
            tasks = [asyncio.create_task(self._fetch_one(file, at_once)) for file in files]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch_one(self, file: JobFile, at_once: asyncio.Semaphore) -> None:
        path = inside(self.folder.job, file.path, "files.path")
        async with at_once:
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            await self._tools.fetching.download(BlobRef(file.blob.digest, file.blob.size_bytes), path)
            await asyncio.to_thread(path.chmod, 0o700 if file.executable else 0o600)

    async def _lost(self) -> Worker:
        """Return what became of a worker whose keeper was killed, once nothing of it is left."""
        gone = await asyncio.to_thread(sweep, self.folder, self.folder.user_id())
        message = "its keeper was killed, its records were spoilt, or the machine restarted"
        if not gone:
            message += "; some of its processes couldn't be ended"
        worker = failed(self._assignment, "LOST", message, self._tools.clock)
        record = self.folder.running()
        with contextlib.suppress(*_SCRIBBLED):
            if record is not None:
                worker = replace(worker, start_time=assignments.running(self._assignment, record).start_time)
        return worker

    # ---- after the end ----
    async def _keep(self, worker: Worker) -> tuple[Worker, tuple[KeptArtefact, ...]]:
        """Keep the artefacts of a worker 0 that succeeded; without them it hasn't."""
        if not worker.succeeded or self._assignment.id.rank:
            return worker, ()
        try:
            with on_behalf_of(str(self._assignment.id.job)):
                return worker, await self._unless_stopped(self._keep_all())
        except (Error, OSError) as error:
            return replace(worker, reason="ARTEFACT_MISSING", message=str(error)), ()

    async def _keep_all(self) -> tuple[KeptArtefact, ...]:
        kept = []
        for artefact in self._assignment.spec.artefacts:
            path = await asyncio.to_thread(_artefact_file, self.folder, artefact)
            ref = await self._tools.keeping.upload(path)
            await self._tools.keeping.pin(ref, str(self._assignment.id.job))
            kept.append(KeptArtefact(artefact.id, objects.BlobRef(ref.digest, ref.size_bytes)))
        return tuple(kept)

    async def _send_log(self) -> None:
        try:
            await self._sender.run()
        except Error as error:
            _log.warning(
                "the scheduler doesn't take a log: %s", error, extra={"worker": self.folder.path.name}
            )
        except OSError:
            _log.exception("a log can't be read", extra={"worker": self.folder.path.name})

    def _tell(self, worker: Worker, sequence: int, kept: tuple[KeptArtefact, ...] = ()) -> None:
        self.last_report = Report(self._assignment.id, worker, kept, sequence)
        self._say(self.last_report)


def _artefact_file(folder: WorkerFolder, artefact: Artefact) -> Path:
    """Return the file of an artefact; raise NotFound when there is none, or it is somebody else's."""
    path = inside(folder.job, artefact.path, "artefacts.path")
    found = path.resolve()
    if found.is_dir() and found.is_relative_to(folder.job.resolve()):
        raise NotFound(
            f"artefact {artefact.id!r}: {artefact.path!r} is a directory; name a file, such as an archive "
            "of it",
            reason="ARTEFACT_MISSING",
        )
    if not found.is_file() or not found.is_relative_to(folder.job.resolve()):
        raise NotFound(
            f"artefact {artefact.id!r}: the job made no file {artefact.path!r}", reason="ARTEFACT_MISSING"
        )
    return found

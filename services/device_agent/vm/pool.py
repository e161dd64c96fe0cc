"""The task VM: a queue, and one loop per worker that starts it, feeds it and replaces it."""

import asyncio
import itertools
import logging
import signal
from collections import Counter
from dataclasses import dataclass, field, replace

from libs.common.backoff import backoff
from libs.common.clock import Clock
from libs.common.errors import Error, Exhausted, Invalid, NotFound, Unavailable
from libs.common.fsio import remove_tree
from libs.common.rand import Randomness
from services.device_agent.vm.model import (
    Answerer,
    Ask,
    Execution,
    LoadedTask,
    Outcome,
    Reason,
    Reply,
    VmConfig,
    VmStats,
)
from services.device_agent.vm.process import Exit, WorkerDied, WorkerProcess
from services.device_agent.vm.queue import FairQueue
from services.device_agent.vm.wire import (
    ProtocolFault,
    load_request,
    outcome_from,
    run_request,
    unload_request,
)

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0
_UNLOAD_TIMEOUT_S = 5.0


@dataclass(slots=True, eq=False)
class _Job:
    """A load or a run, from its arrival to its outcome."""

    task: LoadedTask
    request: bytes
    """Empty for a load."""
    done: asyncio.Future[Outcome]
    worker: WorkerProcess | None = None
    """Who runs it now."""
    answer: Answerer | None = None
    refusal: str = ""
    """Why it has failed with BAD_REQUEST, whatever the worker says."""

    @property
    def key(self) -> str:
        return self.task.key

    def settle(self, result: Outcome | Error) -> None:
        """End it, unless its caller has gone."""
        if self.done.done():
            return
        if isinstance(result, Outcome):
            self.done.set_result(result)
        else:
            self.done.set_exception(result)

    async def answered(self, ask: Ask) -> Reply:
        """Answer what its scripts ask."""
        if self.refusal:
            return Reply(refusal=self.refusal)
        reply = await self.answer(ask) if self.answer is not None else Reply(why="nothing answers here")
        self.refusal = reply.refusal
        return reply

    def judged(self, outcome: Outcome) -> Outcome:
        """Return how it ended: a run that asked for what it may not has failed."""
        if not self.refusal or outcome.reason is Reason.BAD_REQUEST:
            return outcome
        return replace(outcome, value=None, reason=Reason.BAD_REQUEST, message=self.refusal, sends=())


@dataclass(slots=True)
class _Counts:
    starts: int = 0
    dropped: int = 0
    deaths: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)


class TaskVm:
    """Runs scripts in a pool of killable processes; see the package's docstring. One event loop's own."""

    def __init__(self, config: VmConfig, *, clock: Clock, randomness: Randomness) -> None:
        self._config = config
        self._clock = clock
        self._randomness = randomness
        self._tasks: dict[str, LoadedTask] = {}
        self._queue: FairQueue[_Job] = FairQueue()
        self._jobs: set[_Job] = set()
        """Every job that isn't done."""
        self._workers: set[WorkerProcess] = set()
        self._idle: dict[WorkerProcess, asyncio.Future[_Job | None]] = {}
        self._slots: list[asyncio.Task[None]] = []
        self._folders = itertools.count()
        self._prefix = randomness.id(8)
        self._counts = _Counts()
        self._confinement: tuple[str, ...] = ()
        self._failures = 0
        self._closing = False

    async def start(self) -> None:
        """Start the workers. Raises Unavailable when they can't be started, and leaves nothing running."""
        if self._slots or self._closing:
            raise RuntimeError("a TaskVm starts once")
        await asyncio.to_thread(self._remove_leftovers)
        starts = [asyncio.ensure_future(self._start_worker()) for _ in range(self._config.workers)]
        try:
            workers = await asyncio.gather(*starts)
        except BaseException:
            await asyncio.gather(*starts, return_exceptions=True)
            await self.close()
            raise
        self._slots = [asyncio.create_task(self._slot(worker)) for worker in workers]

    async def load(self, task: LoadedTask) -> Outcome:
        """Compile `task` and run its module bodies in a worker; it may be executed when the outcome is ok.

        A task loaded under the same name and version is replaced. Raises Invalid for limits beyond the VM's,
        and what `execute` raises for the queue.
        """
        if not task.scripts and task.model is None:
            raise Invalid(f"task {task.key} has neither script nor model")
        if task.model is not None and task.resource_root is None:
            raise Invalid(f"task {task.key} has a model and no folder where its plan lies")
        most = self._config.max_memory_bytes
        if not 0 < task.limits.memory_bytes <= most or task.limits.wall_time_s <= 0:
            raise Invalid(
                f"task {task.key} has limits of {task.limits.memory_bytes} bytes and "
                f"{task.limits.wall_time_s} s; memory must be 1 to {most} bytes and time more than 0"
            )
        load_request(task, self._config)  # too large is the caller's fault, and said at once
        return await self._submit(task, b"")

    async def unload(self, task: str, version: str) -> None:
        """Forget a version: its waiting runs end with UNLOADED, one that is running ends by itself.

        Nothing happens when it isn't loaded. Workers let go of it before their next job.
        """
        key = f"{task}@{version}"
        self._tasks.pop(key, None)
        for job in self._queue.remove_all(key):
            job.settle(Outcome(None, Reason.UNLOADED, f"{key} was unloaded while the run waited"))

    async def execute(self, execution: Execution) -> Outcome:
        """Run a loaded task once and return how it ended.

        Raises NotFound when the version isn't loaded, Exhausted when the queue is full or this run is dropped
        from it (more than `pending_count` of its task wait and it is the oldest, or it has waited
        `max_wait_s`), Invalid when events and features exceed `max_request_bytes`, and Unavailable when the
        VM is closing. Cancelling takes the run back, killing its worker if it has started.
        """
        task = self._tasks.get(execution.key)
        if task is None:
            raise NotFound(f"task {execution.key} isn't loaded", reason="TASK_NOT_LOADED")
        outcome = await self._submit(task, run_request(task, execution, self._config), execution.answer)
        self._counts.outcomes[outcome.reason.value if outcome.reason else "OK"] += 1
        return outcome

    async def close(self) -> None:
        """Kill the workers; runs that wait or go on raise Unavailable. Safe to call twice."""
        self._closing = True
        for slot in self._slots:
            slot.cancel()
        for worker in self._workers:
            worker.kill_now()
        for job in list(self._jobs):
            job.settle(Unavailable("the task VM is closing", reason="VM_CLOSING"))
        if self._slots:
            await asyncio.wait(self._slots, timeout=_CLOSE_TIMEOUT_S)
        # What a slot was killing when it was cancelled.
        kills = [asyncio.create_task(worker.kill()) for worker in self._workers]
        if kills:
            await asyncio.wait(kills, timeout=_CLOSE_TIMEOUT_S)
        self._workers.clear()

    def stats(self) -> VmStats:
        """Return what the VM does now and has done."""
        counts = self._counts
        return VmStats(
            workers=len(self._workers),
            queued=len(self._queue),
            running=sum(1 for job in self._jobs if job.worker is not None),
            tasks=len(self._tasks),
            starts=counts.starts,
            deaths=dict(counts.deaths),
            outcomes=dict(counts.outcomes),
            dropped=counts.dropped,
            confinement=self._confinement,
        )

    def worker_pids(self) -> list[int]:
        """Return the process ids of the live workers."""
        return sorted(worker.pid for worker in self._workers)

    def _remove_leftovers(self) -> None:
        """Remove the folders of workers that have died with an earlier agent."""
        for folder in self._config.scratch_dir.glob("worker-*"):
            remove_tree(folder)

    # The queue.

    async def _submit(self, task: LoadedTask, request: bytes, answer: Answerer | None = None) -> Outcome:
        if self._closing or not self._slots:
            raise Unavailable("the task VM isn't running", reason="VM_CLOSING")
        if len(self._queue) >= self._config.max_queued:
            raise Exhausted(
                f"{len(self._queue)} runs wait already", reason="VM_QUEUE_FULL", retry_after_s=1.0
            )
        loop = asyncio.get_running_loop()
        job = _Job(task, request, loop.create_future(), answer=answer)
        self._jobs.add(job)
        timer = loop.call_later(self._config.max_wait_s, self._expire, job)
        try:
            self._enqueue(job)
            return await job.done
        finally:
            timer.cancel()
            self._jobs.discard(job)
            if not self._queue.remove(job) and job.worker is not None:
                job.worker.kill_now()  # the caller has gone; a script can't be stopped in any other way

    def _enqueue(self, job: _Job) -> None:
        """Hand `job` to an idle worker, best to one that has the task loaded, or let it wait."""
        if self._idle:
            worker = next((w for w in self._idle if job.key in w.loaded), None) or next(iter(self._idle))
            self._idle.pop(worker).set_result(job)
            return
        if job.request and self._queue.waiting(job.key) >= job.task.limits.pending_count:
            oldest = self._queue.drop_oldest(job.key)
            if oldest is not None:
                self._drop(oldest, f"more than {job.task.limits.pending_count} runs of {job.key} wait")
        self._queue.put(job)

    def _expire(self, job: _Job) -> None:
        if self._queue.remove(job):
            self._drop(job, f"a run of {job.key} has waited {self._config.max_wait_s:g} s for a worker")

    def _drop(self, job: _Job, why: str) -> None:
        self._counts.dropped += 1
        job.settle(Exhausted(f"{why}; it was dropped", reason="RUN_DROPPED"))

    # The workers.

    async def _slot(self, worker: WorkerProcess) -> None:
        """Keep one worker going, replacing it whenever it ends."""
        while True:
            cause = "closed"
            try:
                cause = await self._serve(worker)
            finally:
                self._counts.deaths[cause] += 1
                await worker.kill()
                self._workers.discard(worker)
            if cause not in ("retired", "cancelled"):
                self._failures += 1
            worker = await self._restart()

    async def _restart(self) -> WorkerProcess:
        """Start a worker, waiting longer after each failure in a row, of a start or of a worker.

        A good run ends the row.
        """
        while True:
            if self._failures > 1:
                delay_s = backoff(
                    self._failures - 2,
                    randomness=self._randomness,
                    base_s=self._config.restart_delay_s,
                    cap_s=self._config.max_restart_delay_s,
                )
                await self._clock.sleep(delay_s)
            try:
                return await self._start_worker()
            except Unavailable as error:
                self._failures += 1
                _log.warning("%s", error.message)

    async def _start_worker(self) -> WorkerProcess:
        folder = self._config.scratch_dir.absolute() / f"worker-{self._prefix}-{next(self._folders)}"
        worker = await WorkerProcess.start(self._config, folder)
        self._workers.add(worker)
        self._counts.starts += 1
        self._confinement = worker.confinement
        return worker

    async def _serve(self, worker: WorkerProcess) -> str:
        """Give `worker` one job after the other until it ends or must; returns the cause."""
        while worker.usable:
            job = self._queue.take() or await self._wait_for_job(worker)
            if job is None:
                break
            if not worker.usable:
                self._queue.put_back(job)
                break
            if not job.done.done():
                cause = await self._perform(worker, job)
                if cause:
                    return cause
        return "cancelled" if worker.killed else "idle"

    async def _wait_for_job(self, worker: WorkerProcess) -> _Job | None:
        """Wait for a job; None when the worker ends meanwhile."""
        future: asyncio.Future[_Job | None] = asyncio.get_running_loop().create_future()

        def ended() -> None:
            if self._idle.pop(worker, None) is not None:
                future.set_result(None)

        self._idle[worker] = future
        worker.on_exit(ended)
        try:
            return await future
        finally:
            self._idle.pop(worker, None)
            worker.on_exit(None)

    async def _perform(self, worker: WorkerProcess, job: _Job) -> str:
        """Make `worker` do `job` and settle it; returns why the worker can't go on, or ""."""
        job.worker = worker
        started = self._clock.monotonic()
        cause = ""
        try:
            outcome, cause = await self._call(worker, job)
        except TimeoutError:
            seconds = job.task.limits.wall_time_s if job.request else self._config.load_timeout_s
            what = "ran" if job.request and job.key in worker.loaded else "loaded"
            place = await worker.where(job.key)
            text = f"{what} longer than {seconds:g} s and was killed" + (f" in {place}" if place else "")
            outcome, cause = Outcome(None, Reason.TIMEOUT, text), "timeout"
            ended = await worker.kill()
            outcome = replace(outcome, cpu_s=ended.cpu_s, peak_rss_bytes=ended.peak_rss_bytes)
        except ProtocolFault as error:
            outcome = Outcome(None, Reason.CRASH, f"the worker broke the protocol: {error}")
            cause = "protocol"
        except WorkerDied:
            outcome, cause = _death(await worker.kill(), job.task)
        finally:
            job.worker = None
        if job.done.cancelled() and cause:
            return "cancelled"
        wall_s = self._clock.monotonic() - started
        outcome = replace(outcome, output=worker.take_output(), wall_s=wall_s)
        if outcome.ok:
            self._failures = 0
            if not job.request and not job.done.done():
                self._tasks[job.key] = job.task
        job.settle(outcome)
        return cause

    async def _call(self, worker: WorkerProcess, job: _Job) -> tuple[Outcome, str]:
        """Load what isn't loaded and run; returns the outcome and why the worker must be replaced, or ""."""
        task, config = job.task, self._config
        for key in [key for key, known in worker.loaded.items() if self._tasks.get(key) is not known]:
            await self._unload(worker, key)
        cause = ""
        if not job.request or worker.loaded.get(task.key) is not task:
            while len(worker.loaded) >= config.max_tasks_per_worker:
                await self._unload(worker, next(iter(worker.loaded)))
            reply = await worker.call(load_request(task, config), config.load_timeout_s)
            outcome = outcome_from(reply)
            cause = "retired" if "residue" in reply else ""
            if outcome.ok:
                worker.loaded[task.key] = task
            if not outcome.ok or not job.request:
                return outcome, cause
        worker.loaded.move_to_end(task.key)
        reply = await worker.call(job.request, task.limits.wall_time_s, job.answered)
        return job.judged(outcome_from(reply)), "retired" if "residue" in reply else cause

    async def _unload(self, worker: WorkerProcess, key: str) -> None:
        await worker.call(unload_request(key), _UNLOAD_TIMEOUT_S)
        del worker.loaded[key]


def _death(ended: Exit, task: LoadedTask) -> tuple[Outcome, str]:
    """Say why a worker has ended in the middle of a job."""
    limit, peak = task.limits.memory_bytes, ended.peak_rss_bytes
    if ended.code == -signal.SIGXCPU:
        reason, message = Reason.TIMEOUT, "used up its CPU time and was killed"
    # A library that can't allocate aborts, and out of memory the kernel kills: the size is the evidence.
    elif ended.code < 0 and peak >= 0.9 * limit:
        reason, message = Reason.MEMORY, f"its process ended by {ended} at {peak} bytes; its limit is {limit}"
    else:
        reason, message = Reason.CRASH, f"its process ended: {ended}"
    return Outcome(None, reason, message, cpu_s=ended.cpu_s, peak_rss_bytes=peak), reason.value.lower()

"""From waiting runs to results: features, the task VM, and one transaction for all that a run leaves."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from libs.common.clock import Clock
from libs.common.errors import Error, Exhausted, Invalid, NotFound, Unavailable
from libs.task.event import Event
from libs.task.jsontext import canonical
from libs.task.manifest import CheckedManifest
from libs.task.pipeline import Feature
from services.device_agent.asking import Asked, Requests, RunAsks
from services.device_agent.domain.rollout import Verdict
from services.device_agent.domain.uploads import Outgoing, check_send
from services.device_agent.identity import CloudClock
from services.device_agent.queueing import RunQueue
from services.device_agent.signals import Bell, Problems
from services.device_agent.store import events as event_store
from services.device_agent.store import runs as run_store
from services.device_agent.store.bad_rows import BAD_ROW
from services.device_agent.store.database import Database
from services.device_agent.store.runs import Bounds, Finished, QueuedRun, Run
from services.device_agent.store.trouble import passes
from services.device_agent.tasks import Tasks
from services.device_agent.tracing import Span, Spans
from services.device_agent.vm import Execution, Outcome, Reason, TaskVm

_log = logging.getLogger("isthmus.agent")

# Rows that one window may look at, so that a rare event type can't make a run read the whole store.
_MAX_SCANNED = 20_000
# Windows with more events than this are computed on a thread.
_INLINE_EVENTS = 512
_RETRY_S = 0.5
_NO_FEATURES: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Made:
    """A run that was made, for whoever watches the runner."""

    run: Run
    finished: Finished
    logs: tuple[str, ...] = ()
    """What the scripts gave to `context.log`."""
    output: str = ""
    """The end of what they printed."""
    wall_s: float = 0.0
    """What the scripts took."""
    asks: tuple[Asked, ...] = ()
    """What they asked models in the cloud."""


class Runner:
    """Takes runs off the queue and makes them.

    Attributes:
        queue: what waits.
        results: rings when a result is there.
        frames: rung when there may be frames for the tunnel.
        reports: rung when there may be reports.
        observe: told of each run once it is stored.
    """

    def __init__(
        self,
        database: Database,
        tasks: Tasks,
        vm: TaskVm,
        clock: Clock,
        cloud_clock: CloudClock,
        problems: Problems,
        bounds: Bounds,
        frames: Bell,
        reports: Bell,
        requests: Requests,
        spans: Spans,
    ) -> None:
        self.queue = RunQueue()
        self.results = Bell()
        self.frames = frames
        self.reports = reports
        self.observe: Callable[[Made], None] = lambda made: None
        self._database = database
        self._tasks = tasks
        self._vm = vm
        self._clock = clock
        self._cloud_clock = cloud_clock
        self._problems = problems
        self._bounds = bounds
        self._requests = requests
        self._spans = spans

    async def start(self) -> None:
        """Queue the runs that waited, or were interrupted, when the agent ended."""
        self.queue.add(await self._database.run(run_store.list_runs, durable=False))

    async def run(self) -> None:
        """Make runs, one at a time; start as many of these as runs may be under way at once."""
        while True:
            seen = self.queue.bell.rings
            queued = self.queue.take()
            if queued is None:
                await self.queue.bell.wait(seen)
                continue
            try:
                while not await self._make(queued):
                    await self._clock.sleep(_RETRY_S)
            except BAD_ROW as error:
                await self._database.insist(partial(run_store.drop_run, run_id=queued.run_id, error=error))
            finally:
                self.queue.done(queued)

    async def _make(self, queued: QueuedRun) -> bool:
        """Make a run; return False when it has to be tried again later."""
        installed = self._tasks.installed.get(f"{queued.task}@{queued.version}")
        if installed is None:
            # Given up or removed meanwhile: the store has dropped its runs with it.
            return True
        manifest = installed.manifest
        run, features = queued.run, _NO_FEATURES
        if run is None or manifest.pipeline.features:
            load = _loader(queued.run_id, manifest.pipeline.features)
            loaded = await self._database.insist(load, durable=False)
            if loaded is None:
                return True
            run, windows = loaded
            try:
                features = await _evaluate(windows, run.event_time_s)
            except BAD_ROW as error:
                await self._store(Made(run, _unexpected("features", error)), manifest)
                return True
        with self._spans.span("run", run.traceparent, task=run.task, version=run.version) as span:
            return await self._execute(run, features, manifest, span)

    async def _execute(
        self, run: Run, features: Mapping[str, object], manifest: CheckedManifest, span: Span
    ) -> bool:
        asks = RunAsks(self._requests, manifest, self._spans, span.traceparent)
        try:
            outcome = await self._vm.execute(
                Execution(run.task, run.version, run.events, features, asks.answer)
            )
        except Invalid as error:
            made = Made(run, Finished("", (), "INPUT_TOO_LARGE", error.message))
        except NotFound:
            outcome = await self._tasks.load(manifest)
            if outcome.ok:
                return False
            made = _made(run, outcome, manifest)
        except (Exhausted, Unavailable) as error:
            self._problems.set("task VM", error.message, error.reason)
            return False
        else:
            if outcome.reason is Reason.UNLOADED:
                return True
            made = replace(_made(run, outcome, manifest), asks=tuple(asks.made))
            self._requests.counts["refused_request_count"] += outcome.reason is Reason.BAD_REQUEST
        if made.finished.failure_reason:
            span.fail(made.finished.failure_reason)
        self._problems.clear("task VM")
        await self._store(made, manifest)
        return True

    async def _store(self, made: Made, manifest: CheckedManifest) -> None:
        """Store how a run ended."""
        try:
            await self._keep(made, manifest)
        except BAD_ROW as error:
            await self._keep(replace(made, finished=_unexpected("result", error)), manifest)

    async def _keep(self, made: Made, manifest: CheckedManifest) -> None:
        run, finished = made.run, made.finished
        if finished.failure_reason:
            report = await self._tasks.reportable(manifest, finished.failure_reason, finished.failure_message)
            finished = replace(finished, failure_report=report)
        moment = self._tasks.moment()
        offset_s = self._cloud_clock.offset_s
        counts = self._requests.take_counts()
        try:
            # On a full disk what was made waits here, and later runs with it: none is made for nothing.
            result, verdict = await self._database.insist(
                lambda connection: run_store.finish_run(
                    connection,
                    run,
                    finished,
                    health=manifest.health,
                    bounds=self._bounds,
                    now_s=self._cloud_clock.now_s(),
                    offset_s=offset_s,
                    moment=moment,
                    counts=counts,
                )
            )
        except BaseException:
            self._requests.counts.update(counts)
            raise
        if result is None:
            return
        self.observe(made)
        self.results.ring()
        if finished.outgoing:
            self._explain(run, finished.outgoing)
            self.frames.ring()
        if finished.failure_reason:
            _log.warning(
                "%s@%s failed: %s",
                run.task,
                run.version,
                finished.failure_reason,
                extra={"detail": finished.failure_message},
            )
        if verdict is Verdict.CONFIRM:
            await self._tasks.refresh()
            self.reports.ring()
        elif verdict is Verdict.ROLL_BACK:
            await self._give_up(run)

    async def _give_up(self, run: Run) -> None:
        while True:
            try:
                await self._tasks.give_up(run.task, run.version)
            except Error as error:
                if not passes(error):
                    raise
                await self._clock.sleep(_RETRY_S)
            else:
                self.reports.ring()
                return

    def _explain(self, run: Run, outgoing: Sequence[Outgoing]) -> None:
        for frame in outgoing:
            if frame.refusal:
                # The message names streams and fields, never values.
                text = f"a frame was refused: {frame.message}"
                self._problems.set(f"uploads of {run.task}@{run.version}", text, frame.refusal)


def _made(run: Run, outcome: Outcome, manifest: CheckedManifest) -> Made:
    return Made(run, _finish(outcome, manifest), outcome.logs, outcome.output, outcome.wall_s)


def _finish(outcome: Outcome, manifest: CheckedManifest) -> Finished:
    if outcome.value is None:
        return Finished("", (), str(outcome.reason or Reason.CRASH), outcome.message)
    sends = tuple(check_send(manifest.uploads, sent.stream, sent.fields) for sent in outcome.sends)
    return Finished(canonical(dict(outcome.value)), sends)


def _unexpected(what: str, error: Exception) -> Finished:
    """Return how a run ended whose own parts can't be handled: its version answers for it."""
    _log.error("the %s of a run can't be handled", what, exc_info=error)
    return Finished("", (), "INTERNAL", f"its {what} can't be handled: {type(error).__name__}: {error}")


def _loader(
    run_id: int, features: Sequence[Feature]
) -> Callable[[sqlite3.Connection], tuple[Run, list[tuple[Feature, list[Event]]]] | None]:
    def load(connection: sqlite3.Connection) -> tuple[Run, list[tuple[Feature, list[Event]]]] | None:
        run = run_store.read_run(connection, run_id)
        if run is None:
            return None
        return run, [(feature, _window(connection, run, feature)) for feature in features]

    return load


def _window(connection: sqlite3.Connection, run: Run, feature: Feature) -> list[Event]:
    key = feature.key_of(run.events[-1])
    if key is None:
        return []
    return event_store.window(
        connection,
        user=run.user if feature.key_by is None else None,
        start_s=run.event_time_s - feature.window_s,
        end_s=run.event_time_s,
        last_seq=run.last_seq,
        selects=lambda event: feature.key_of(event) == key and feature.selects(event),
        count=feature.max_events,
        max_scanned=_MAX_SCANNED,
    )


async def _evaluate(windows: Sequence[tuple[Feature, list[Event]]], now_s: float) -> Mapping[str, object]:
    def evaluate() -> dict[str, object]:
        return {feature.name: feature.evaluate(events, now_s) for feature, events in windows}

    if sum(len(events) for _, events in windows) <= _INLINE_EVENTS:
        return evaluate()
    return await asyncio.to_thread(evaluate)

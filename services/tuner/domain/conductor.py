"""Runs experiments: chooses points, has trials made, and ends when enough is known.

Everything that is decided follows from what is stored, so a tuner that was killed goes on: trials that were
being made are made again, with their numbers and points.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from libs.common.clock import Clock
from libs.common.errors import Error, NotFound
from libs.common.names import ExperimentName
from services.tuner.domain.keeping import Keeper
from services.tuner.domain.load import CALL_S
from services.tuner.domain.model import Experiment, ExperimentState, Trial, TrialState
from services.tuner.domain.ports import Meter, Trials
from services.tuner.domain.ranking import best, feasible
from services.tuner.domain.samplers import Sampler
from services.tuner.store import Store

_FAULT_S = 5.0
_log = logging.getLogger("isthmus.tuner")


class Conductor:
    """Runs every experiment that is there, each as a task of its own."""

    def __init__(
        self,
        store: Store,
        keeper: Keeper,
        trials: Trials,
        samplers: Sampler,
        meter: Meter,
        clock: Clock,
        *,
        most_trials: int,
        start_s: float,
    ) -> None:
        """Make at most `most_trials` trials at once; an instance has `start_s` seconds to answer."""
        self._store = store
        self._keeper = keeper
        self._trials = trials
        self._samplers = samplers
        self._meter = meter
        self._clock = clock
        self._slots = asyncio.Semaphore(most_trials)
        self._start_s = start_s
        self._new: asyncio.Queue[ExperimentName] = asyncio.Queue()
        self._running: dict[ExperimentName, _Conduct] = {}

    @property
    def experiment_count(self) -> int:
        """How many experiments run."""
        return len(self._running)

    def begin(self, name: ExperimentName) -> None:
        """Run an experiment that was stored."""
        self._new.put_nowait(name)

    def stop(self, name: ExperimentName) -> None:
        """Look again at an experiment that was ended by somebody."""
        conduct = self._running.get(name)
        if conduct is not None:
            conduct.stopped.set()

    async def run(self) -> None:
        """Run experiments until cancelled; what runs then is torn down, and goes on at the next start."""
        await self._trials.sweep()
        for trial in await self._store.open_trials():
            experiment = await self._store.get(trial.experiment)
            if experiment is not None and experiment.ended:
                await self._keeper.put(self._cancelled(trial))
        for experiment in await self._store.unsettled():
            if not experiment.ended:
                self.begin(experiment.name)
        async with asyncio.TaskGroup() as group:
            while True:
                name = await self._new.get()
                if name not in self._running:
                    conduct = _Conduct(name)
                    self._running[name] = conduct
                    group.create_task(self._conduct(conduct), name=f"experiment {name}")

    async def _conduct(self, conduct: "_Conduct") -> None:
        try:
            while True:
                try:
                    await self._experiment(conduct)
                except NotFound:
                    _log.info("%s was removed", conduct.name)
                except Exception:
                    # A fault of ours must stop neither this experiment for good nor the others.
                    _log.exception("experiment %s: going on after a fault", conduct.name)
                    await self._clock.sleep(_FAULT_S)
                    continue
                return
        finally:
            del self._running[conduct.name]

    async def _experiment(self, conduct: "_Conduct") -> None:
        experiment = await self._keeper.get(conduct.name)
        kept = {trial.number: trial for trial in await self._keeper.trials(conduct.name)}
        left = experiment.spec.deadline_s - (self._clock.now() - experiment.create_time).total_seconds()
        async with _Deadline(self._clock, left) as deadline:
            tasks: dict[asyncio.Task[Trial], int] = {}
            try:
                verdict = await self._make(experiment, kept, tasks, conduct, deadline.passed)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        for trial in kept.values():
            if not trial.state.ended:
                kept[trial.number] = self._cancelled(trial)
                await self._keeper.put(kept[trial.number])
        if verdict is not None:
            await self._end(experiment, list(kept.values()), *verdict)

    async def _make(
        self,
        experiment: Experiment,
        kept: dict[int, Trial],
        tasks: dict[asyncio.Task[Trial], int],
        conduct: "_Conduct",
        passed: asyncio.Event,
    ) -> tuple[ExperimentState | None, str] | None:
        """Make trials until there is a verdict: how it ended (None: by its best trial) and why.

        None when somebody else ended it.
        """
        spec = experiment.spec
        waiting = [trial for trial in kept.values() if not trial.state.ended]
        exhausted = False
        watches = [
            asyncio.create_task(conduct.stopped.wait()),
            asyncio.create_task(passed.wait()),
        ]
        try:
            while True:
                if conduct.stopped.is_set() and (await self._keeper.get(conduct.name)).ended:
                    return None
                conduct.stopped.clear()
                if watches[0].done():
                    watches[0] = asyncio.create_task(conduct.stopped.wait())
                failed = sum(1 for trial in kept.values() if trial.state is TrialState.FAILED)
                if failed >= spec.max_failures:
                    return ExperimentState.FAILED, f"{failed} trials failed; see their messages"
                if passed.is_set():
                    return None, f"the deadline of {spec.deadline_s:g} s came"
                while len(tasks) < spec.parallel_trials and not exhausted:
                    trial = waiting.pop(0) if waiting else await self._next(experiment, kept)
                    if trial is None:
                        exhausted = True
                        break
                    kept[trial.number] = trial
                    await self._keeper.put(trial)
                    tasks[asyncio.create_task(self._try(experiment, trial))] = trial.number
                if not tasks:
                    return None, f"{len(kept)} trials were made"
                done, _ = await asyncio.wait({*tasks, *watches}, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in tasks if task in done]:
                    number = tasks.pop(task)
                    kept[number] = task.result()
                    await self._keeper.put(kept[number])
                    await self._rank(experiment, list(kept.values()))
        finally:
            for watch in watches:
                watch.cancel()

    async def _next(self, experiment: Experiment, kept: dict[int, Trial]) -> Trial | None:
        if len(kept) >= experiment.spec.max_trials:
            return None
        trials = sorted(kept.values(), key=lambda trial: trial.number)
        point = await asyncio.to_thread(self._samplers.next, experiment.spec, trials)
        if point is None:
            return None
        number = max(kept, default=0) + 1
        return Trial(experiment.name, number, point, TrialState.STARTING, self._clock.now())

    async def _try(self, experiment: Experiment, trial: Trial) -> Trial:
        """Return the trial as it ended; what goes wrong in it is its own affair."""
        spec = experiment.spec
        async with self._slots:
            begun = self._clock.monotonic()
            trial = replace(trial, state=TrialState.STARTING, start_time=self._clock.now())

            async def loaded() -> None:
                nonlocal trial
                trial = replace(trial, state=TrialState.RUNNING)
                await self._keeper.put(trial)

            most_s = self._start_s + spec.load.warm_s + spec.load.duration_s + CALL_S
            try:
                async with asyncio.timeout(most_s):
                    metrics = await self._trials.measure(
                        experiment.name,
                        trial.number,
                        experiment.served,
                        trial.point,
                        spec.load,
                        spec.seed,
                        loaded,
                    )
            except TimeoutError:
                trial = self._failed(trial, f"it wasn't measured within {most_s:g} s")
            except Error as error:
                trial = self._failed(trial, error.message)
            except Exception:
                _log.exception("trial %s of %s", trial.number, experiment.name)
                trial = self._failed(trial, "a fault of the tuner; see its log")
            else:
                trial = replace(
                    trial,
                    state=TrialState.SUCCEEDED,
                    metrics=metrics,
                    feasible=feasible(spec.constraints, metrics),
                    end_time=self._clock.now(),
                )
        self._meter.trial_ended(trial.state.value, self._clock.monotonic() - begun)
        return trial

    def _failed(self, trial: Trial, message: str) -> Trial:
        return replace(
            trial,
            state=TrialState.FAILED,
            message=message.replace("\0", "")[:1000],
            metrics=(),
            end_time=self._clock.now(),
        )

    def _cancelled(self, trial: Trial) -> Trial:
        self._meter.trial_ended(TrialState.CANCELLED.value, 0.0)
        return replace(
            trial,
            state=TrialState.CANCELLED,
            message="torn down, as the experiment ended",
            end_time=self._clock.now(),
        )

    async def _rank(self, experiment: Experiment, trials: Sequence[Trial]) -> None:
        number = best(experiment.spec, trials)
        await self._keeper.change(experiment.name, lambda found: replace(found, best_trial=number))

    async def _end(
        self, experiment: Experiment, trials: Sequence[Trial], state: ExperimentState | None, message: str
    ) -> None:
        number = best(experiment.spec, trials)
        if state is None:
            state = ExperimentState.SUCCEEDED if number else ExperimentState.FAILED
            if not number:
                measured = sum(1 for trial in trials if trial.state is TrialState.SUCCEEDED)
                message += (
                    f"; {measured} were measured, and none meets every constraint"
                    if measured
                    else "; none could be measured, see their messages"
                )

        def end(found: Experiment) -> Experiment | None:
            if found.ended:
                return None
            return replace(found, state=state, message=message, best_trial=number, end_time=self._clock.now())

        if (await self._keeper.change(experiment.name, end)).state is state:
            self._meter.experiment_ended(state.value)


class _Conduct:
    """An experiment that runs."""

    def __init__(self, name: ExperimentName) -> None:
        self.name = name
        self.stopped = asyncio.Event()


class _Deadline:
    """Sets an event after some seconds, unless the block ends before."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self.passed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def _wait(self) -> None:
        await self._clock.sleep(self._seconds)
        self.passed.set()

    async def __aenter__(self) -> "_Deadline":
        if self._seconds <= 0:
            self.passed.set()
        else:
            self._task = asyncio.create_task(self._wait())
        return self

    async def __aexit__(self, *details: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

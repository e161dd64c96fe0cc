"""Applies a trial's configuration to the model, and goes back when the model does worse.

The configuration before is stored before it is replaced, so that a tuner that was killed in between goes back
at its next start: a configuration stays only if it was judged.
"""

import asyncio
import logging
from dataclasses import replace

from libs.common.clock import Clock
from libs.common.errors import Conflict, Error, Precondition
from libs.common.names import ExperimentName, ModelName
from services.tuner.domain.keeping import Keeper
from services.tuner.domain.model import (
    Application,
    ApplicationState,
    Experiment,
    Metric,
    Objective,
    Trial,
    TrialState,
)
from services.tuner.domain.ports import Endpoint, Meter
from services.tuner.domain.statistics import worse
from services.tuner.domain.validation import LOAD_METRICS
from services.tuner.store import Store

_log = logging.getLogger("isthmus.tuner")
_STUBBORN = 5
_AGAIN_S = 2.0
_FAULT = "a fault of the tuner; see its log, and the model's configuration"


class Applier:
    """Applies trials; one application of a model at a time."""

    def __init__(self, store: Store, keeper: Keeper, endpoint: Endpoint, meter: Meter, clock: Clock) -> None:
        self._store = store
        self._keeper = keeper
        self._endpoint = endpoint
        self._meter = meter
        self._clock = clock
        self._new: asyncio.Queue[tuple[ExperimentName, Trial]] = asyncio.Queue()
        self._models: set[ModelName] = set()

    async def begin(self, name: ExperimentName, number: int) -> Experiment:
        """Begin to apply a trial, the best one for 0; return the experiment.

        Raises:
            NotFound: when there is no such experiment.
            Precondition: when it runs, has no such trial that is fit, the model's live version is another
                than was tried, or an application of the model runs.
        """
        experiment = await self._keeper.get(name)
        if not experiment.ended:
            raise Precondition(f"{name}: runs; cancel it, or wait for its end", reason="EXPERIMENT_RUNS")
        trial = await self._fit(experiment, number or experiment.best_trial)
        model = experiment.spec.model
        served = await self._endpoint.served(model)
        if served.version != experiment.served.version:
            raise Precondition(
                f"{model}: its live version is {served.version.version!r}, and "
                f"{experiment.served.version.version!r} was tried; make an experiment with this one",
                reason="OTHER_VERSION",
            )
        if model in self._models:
            raise Precondition(
                f"{model}: a configuration is being applied to it; wait", reason="BEING_APPLIED"
            )
        self._models.add(model)
        application = Application(trial.number, ApplicationState.MEASURING_BEFORE, self._clock.now())
        try:
            kept = await self._keeper.change(name, lambda found: replace(found, application=application))
        except BaseException:
            self._models.discard(model)
            raise
        self._new.put_nowait((name, trial))
        return kept

    async def _fit(self, experiment: Experiment, number: int) -> Trial:
        trials = {trial.number: trial for trial in await self._keeper.trials(experiment.name)}
        trial = trials.get(number)
        if trial is None or trial.state is not TrialState.SUCCEEDED or not trial.feasible:
            what = f"trial {number}" if number else "no trial"
            why = "has no measured trial that meets every constraint" if not number else f"{what} isn't fit"
            raise Precondition(
                f"{experiment.name}: {why}; apply one that succeeded and is feasible", reason="NOT_FIT"
            )
        return trial

    async def run(self) -> None:
        """Apply what is asked for until cancelled; first, go back where an earlier process broke off."""
        async with asyncio.TaskGroup() as group:
            for experiment in await self._store.unsettled():
                application = experiment.application
                if application is not None and not application.state.ended:
                    self._models.add(experiment.spec.model)
                    group.create_task(self._go_back(experiment, application))
            while True:
                name, trial = await self._new.get()
                group.create_task(self._apply(name, trial), name=f"apply {name}")

    async def _apply(self, name: ExperimentName, trial: Trial) -> None:
        experiment = await self._keeper.get(name)
        application = experiment.application
        assert application is not None, "begin stored it"
        try:
            application = await self._measured(experiment, application, trial)
        except Error as error:
            application = await self._failed(name, application, error.message)
        except Exception:
            _log.exception("applying %s", name)
            application = await self._failed(name, application, _FAULT)
        finally:
            self._models.discard(experiment.spec.model)
        await self._end(name, application)

    async def _failed(self, name: ExperimentName, begun: Application, message: str) -> Application:
        # What was measured by then was stored.
        stored = (await self._keeper.get(name)).application or begun
        return replace(stored, state=ApplicationState.FAILED, message=message)

    async def _measured(self, experiment: Experiment, application: Application, trial: Trial) -> Application:
        name, spec = experiment.name, experiment.spec
        before = await self._endpoint.measure(spec.model, spec.load, spec.seed)
        previous, etag = await self._endpoint.config(spec.model)
        application = replace(
            application,
            state=ApplicationState.MEASURING_AFTER,
            before=before,
            previous=previous,
            previous_known=True,
        )
        current = application
        await self._keeper.change(name, lambda found: replace(found, application=current))
        wanted = self._endpoint.with_point(previous, trial.point)
        try:
            etag = await self._endpoint.put(spec.model, wanted, etag)
        except Error as error:
            # It may have been made all the same: what there is now decides.
            restored = await self._restored(spec.model, application, wanted, error.message)
            return replace(restored, state=ApplicationState.FAILED)
        try:
            after = await self._endpoint.measure(spec.model, spec.load, spec.seed)
        except Error as error:
            return await self._back(spec.model, application, etag, f"couldn't be measured: {error.message}")
        application = replace(application, after=after)
        objective = _judged(spec.objective)
        pair = _named(before, objective.metric), _named(after, objective.metric)
        text = _told(*pair)
        if worse(*pair, minimize=objective.minimize):
            return await self._back(spec.model, application, etag, text)
        return replace(application, state=ApplicationState.APPLIED, message=text)

    async def _back(self, model: ModelName, application: Application, etag: str, why: str) -> Application:
        """Return the application rolled back; tries hard, since a bad configuration is in force."""
        for attempt in range(_STUBBORN):
            try:
                await self._endpoint.put(model, application.previous, etag)
            except Conflict:
                if (await self._patient_config(model))[0] == application.previous:
                    break  # an earlier try was made, and only its answer was lost
                text = f"{why}; somebody changed the model meanwhile, so it was left as it is"
                return replace(application, state=ApplicationState.FAILED, message=text)
            except Error as error:
                if not error.retriable or attempt == _STUBBORN - 1:
                    text = f"{why}; it couldn't be rolled back: {error.message}"
                    return replace(application, state=ApplicationState.FAILED, message=text)
                await self._clock.sleep(_AGAIN_S)
            else:
                break
        return replace(application, state=ApplicationState.ROLLED_BACK, message=f"rolled back: {why}")

    async def _go_back(self, experiment: Experiment, application: Application) -> None:
        """End an application that an earlier process was at."""
        model = experiment.spec.model
        try:
            application = await self._gone_back(experiment, application)
        except Error as error:
            text = f"the tuner was stopped meanwhile; it couldn't be rolled back: {error.message}"
            application = replace(application, state=ApplicationState.FAILED, message=text)
        except Exception:
            _log.exception("going back from the application of %s", experiment.name)
            application = replace(application, state=ApplicationState.FAILED, message=_FAULT)
        finally:
            self._models.discard(model)
        await self._end(experiment.name, application)

    async def _gone_back(self, experiment: Experiment, application: Application) -> Application:
        why = "the tuner was stopped before it was judged"
        if not application.previous_known:
            text = f"{why}; nothing was changed, apply it again"
            return replace(application, state=ApplicationState.ROLLED_BACK, message=text)
        trials = {trial.number: trial for trial in await self._keeper.trials(experiment.name)}
        wanted = self._endpoint.with_point(application.previous, trials[application.trial].point)
        return await self._restored(experiment.spec.model, application, wanted, why)

    async def _restored(
        self, model: ModelName, application: Application, wanted: bytes, why: str
    ) -> Application:
        """Return the application rolled back where nobody knows whether `wanted` is in force."""
        current, etag = await self._patient_config(model)
        if current == wanted and wanted != application.previous:
            return await self._back(model, application, etag, why)
        if current == application.previous:
            text = f"{why}; nothing was changed"
            return replace(application, state=ApplicationState.ROLLED_BACK, message=text)
        text = f"{why}; somebody changed the model meanwhile, so it was left as it is"
        return replace(application, state=ApplicationState.FAILED, message=text)

    async def _patient_config(self, model: ModelName) -> tuple[bytes, str]:
        # At a start of everything, serving may come later than the tuner.
        for attempt in range(_STUBBORN * 6):
            try:
                return await self._endpoint.config(model)
            except Error as error:
                if not error.retriable or attempt == _STUBBORN * 6 - 1:
                    raise
                await self._clock.sleep(_AGAIN_S)
        raise AssertionError("the loop returns or raises")

    async def _end(self, name: ExperimentName, application: Application) -> None:
        ended = replace(application, end_time=self._clock.now())
        await self._keeper.change(name, lambda found: replace(found, application=ended))
        self._meter.application_ended(ended.state.value)


def _judged(objective: Objective) -> Objective:
    """Return the objective by which a model that is served is judged: its process can't be looked at."""
    return objective if objective.metric in LOAD_METRICS else Objective("goodput_rps")


def _named(metrics: tuple[Metric, ...], name: str) -> Metric:
    return next(metric for metric in metrics if metric.name == name)


def _told(before: Metric, after: Metric) -> str:
    change = f" ({after.value / before.value - 1:+.1%})" if before.value else ""
    return (
        f"{before.name} was {before.value:.4g} [{before.low:.4g}, {before.high:.4g}] and is "
        f"{after.value:.4g} [{after.low:.4g}, {after.high:.4g}]{change}"
    )

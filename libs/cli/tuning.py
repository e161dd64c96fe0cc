"""What the command shows of experiments, and how it follows them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from isthmus.tuner.v1 import tuner_pb2, tuner_pb2_grpc
from libs.cli.following import resuming
from libs.cli.jobs import last_part, moment, took
from libs.cli.output import counted, human_bytes, human_seconds
from libs.common.errors import Precondition

if TYPE_CHECKING:
    from libs.cli.session import Session

_State = tuner_pb2.Experiment
_Trial = tuner_pb2.Trial
_Application = tuner_pb2.Application
_TRIAL_ENDED = (_Trial.STATE_SUCCEEDED, _Trial.STATE_FAILED, _Trial.STATE_CANCELLED)
_APPLYING = (_Application.STATE_MEASURING_BEFORE, _Application.STATE_MEASURING_AFTER)
_BAR = 20
_UNITS = {"rps": "/s", "ms": "ms", "us_per_request": "µs"}
_NAMES = {"cpu_us_per_request": "CPU a request", "peak_memory_bytes": "peak memory"}


def stub(session: Session) -> tuner_pb2_grpc.ExperimentServiceStub:
    """Return the service of experiments."""
    return tuner_pb2_grpc.ExperimentServiceStub(session.channel)


def experiment_name(session: Session, experiment: str) -> str:
    """Return the resource name of an experiment."""
    return session.name("experiments", experiment)


def get_experiment(session: Session, name: str) -> tuner_pb2.Experiment:
    """Return an experiment; raise NotFound when there is none."""
    return session.call(stub(session).GetExperiment, tuner_pb2.GetExperimentRequest(name=name)).experiment


def list_trials(session: Session, name: str, limit: int | None = None) -> list[tuner_pb2.Trial]:
    """Return an experiment's trials by number."""
    request = tuner_pb2.ListTrialsRequest(parent=name)
    return [each for page in session.pages(stub(session).ListTrials, request, limit) for each in page.trials]


# ---- figures for people ----


def number(value: float) -> str:
    """Return a figure with three digits that count, or all of a whole one: 1234.5 → "1,234"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}" if digits <= 6 else f"{value:.3g}"


def figure(metric: tuner_pb2.Metric) -> str:
    """Return a metric with its interval: "812 /s (780 to 844)"."""
    if metric.name.endswith("_bytes"):
        return human_bytes(metric.value)
    unit = next((unit for end, unit in _UNITS.items() if metric.name.endswith(f"_{end}")), "")
    text = f"{number(metric.value)} {unit}".rstrip()
    if metric.low == metric.high:
        return text
    return f"{text} ({number(metric.low)} to {number(metric.high)})"


def metric_of(metrics: Iterable[tuner_pb2.Metric], name: str) -> str:
    """Return a metric of several for people, or "-" where it isn't there."""
    return next((figure(each) for each in metrics if each.name == name), "-")


def point_text(trial: tuner_pb2.Trial) -> str:
    """Return what a trial tried: "instance_count=2 max_batch_rows=16"."""
    return " ".join(_point(trial))


def _point(trial: tuner_pb2.Trial) -> tuple[str, ...]:
    return tuple(f"{name}={value:g}" for name, value in sorted(trial.point.items()))


def state_of(experiment: tuner_pb2.Experiment) -> str:
    """Return an experiment's state for people."""
    return _State.State.Name(experiment.state).removeprefix("STATE_")


def trial_state(trial: tuner_pb2.Trial) -> str:
    """Return a trial's state for people."""
    return _Trial.State.Name(trial.state).removeprefix("STATE_")


def application_state(application: tuner_pb2.Application) -> str:
    """Return an application's state for people."""
    return _Application.State.Name(application.state).removeprefix("STATE_")


def trial_total(spec: tuner_pb2.ExperimentSpec) -> int:
    """Return how many trials there will be at most: no point is tried twice."""
    return min(spec.max_trial_count, math.prod(len(each.values) for each in spec.parameters))


def counts_text(experiment: tuner_pb2.Experiment) -> str:
    """Return how far the trials are: "5 of 12 (1 failed)"."""
    done = experiment.succeeded_count + experiment.failed_count
    failed = f" ({experiment.failed_count} failed)" if experiment.failed_count else ""
    return f"{done} of {trial_total(experiment.spec)}{failed}"


def objective_text(spec: tuner_pb2.ExperimentSpec) -> str:
    """Return what is wanted: "most goodput_rps, p99_ms at most 60"."""
    bounds = [f"{each.metric} at most {each.at_most:g}" for each in spec.constraints]
    return ", ".join([f"{'least' if spec.objective.minimize else 'most'} {spec.objective.metric}", *bounds])


def load_text(load: tuner_pb2.Load) -> str:
    """Return a load for people."""
    sent = f"{load.rate_rps:g} requests a second" if load.rate_rps else counted(load.concurrency, "caller")
    rows = f" of {load.rows_per_request} rows" if load.rows_per_request > 1 else ""
    duration, target = (each.ToNanoseconds() / 1e9 for each in (load.duration, load.target_latency))
    return f"{sent}{rows} for {human_seconds(duration)}, in time within {human_seconds(target)}"


def show_experiment(
    session: Session, experiment: tuner_pb2.Experiment, best: tuner_pb2.Trial | None = None
) -> None:
    """Print an experiment, with its best trial where it is known."""
    spec = experiment.spec
    rows: list[tuple[str, object]] = [
        ("experiment", experiment.name or "none made: --dry-run only checks"),
        ("state", state_of(experiment) if experiment.name else "only checked"),
        *([("why", experiment.message)] if experiment.message else []),
        ("version", "/".join(experiment.version.split("/")[3::2]) or "-"),
        *((f"  {each.name}", ", ".join(f"{value:g}" for value in each.values)) for each in spec.parameters),
        ("wanted", objective_text(spec)),
        ("load", load_text(spec.load)),
        ("trials", counts_text(experiment)),
    ]
    if best is not None:
        rows.append(("best", f"trial {best.number}: {point_text(best)}"))
        rows += [(f"  {each.name}", figure(each)) for each in best.metrics]
    elif experiment.best_trial:
        rows.append(("best", f"trial {experiment.best_trial}"))
    if experiment.HasField("application"):
        rows.append(("applied", application_text(experiment.application)))
    rows.append(("made", moment(experiment.create_time)))
    if experiment.HasField("end_time"):
        spent = took(experiment.create_time, experiment.end_time)
        rows.append(("ended", f"{moment(experiment.end_time)}, after {spent}"))
    session.output.message(experiment, rows)


def application_text(application: tuner_pb2.Application) -> str:
    """Return what became of an application, in a line."""
    said = f": {application.message}" if application.message else ""
    return f"trial {application.trial} {application_state(application)}{said}"


def show_application(session: Session, experiment: tuner_pb2.Experiment) -> None:
    """Print what became of an application, with the figures before and after.

    Raises:
        Precondition: when it isn't applied, with reason NOT_APPLIED.
    """
    application = experiment.application
    if session.output.as_json:
        session.output.message(experiment, [])
    else:
        names = [each.name for each in application.before]
        names += [each.name for each in application.after if each.name not in names]
        session.output.table(
            ("METRIC", "BEFORE", "AFTER", "CHANGE"),
            (
                (
                    name,
                    metric_of(application.before, name),
                    metric_of(application.after, name),
                    _change(application, name),
                )
                for name in names
            ),
        )
        session.output.say(application_text(application))
    if application.state != _Application.STATE_APPLIED:
        raise Precondition(
            f"{experiment.name}: trial {application.trial} isn't applied, it is "
            f"{application_state(application)}: {application.message}",
            reason="NOT_APPLIED",
        )


def _change(application: tuner_pb2.Application, name: str) -> str:
    before, after = (
        next((each.value for each in metrics if each.name == name), 0.0)
        for metrics in (application.before, application.after)
    )
    return f"{after / before - 1:+.1%}" if before and after else "-"


# ---- following ----


class _Progress:
    """Tells on the standard error what changes; with `quiet` nothing of trials."""

    def __init__(self, session: Session, *, quiet: bool) -> None:
        self._output = session.output
        self._quiet = quiet
        self._told: set[int] = set()
        self._application = ""
        self.trials: dict[int, tuner_pb2.Trial] = {}

    def take(self, answer: tuner_pb2.WatchExperimentResponse) -> None:
        """Take in what a watch brings, and tell what is new."""
        experiment = answer.experiment
        self.trials.update({trial.number: trial for trial in answer.trials})
        for trial in sorted(answer.trials, key=lambda each: each.number):
            if trial.state in _TRIAL_ENDED and trial.number not in self._told:
                self._told.add(trial.number)
                if not self._quiet:
                    self._output.note(self._line(experiment.spec, trial))
        if experiment.HasField("application"):
            state = application_state(experiment.application)
            if experiment.application.state in _APPLYING and state != self._application:
                self._output.note(
                    f"applying trial {experiment.application.trial}: {state.lower().replace('_', ' ')}"
                )
            self._application = state

    def _line(self, spec: tuner_pb2.ExperimentSpec, trial: tuner_pb2.Trial) -> str:
        metric = spec.objective.metric
        if trial.state == _Trial.STATE_SUCCEEDED:
            said = f"{metric} {metric_of(trial.metrics, metric)}"
            said += "" if trial.feasible else ", breaks a constraint"
        else:
            said = trial_state(trial) + (f": {trial.message}" if trial.message else "")
        total = max(trial_total(spec), len(self._told))
        done = len(self._told)
        text = f"{bar(done, total)} {done}/{total}  trial {trial.number}  {point_text(trial)}  {said}"
        best = best_of(spec, [self.trials[number] for number in self._told])
        if best is None:
            return text
        if best.number == trial.number:
            return f"{text}  (best so far)"
        return f"{text}  (best: trial {best.number}, {metric_of(best.metrics, metric)})"

    def settled(self, experiment: tuner_pb2.Experiment) -> bool:
        """Tell whether nothing more becomes of an experiment."""
        return (
            experiment.state != _State.STATE_RUNNING
            and experiment.application.state not in _APPLYING
            and all(trial.state in _TRIAL_ENDED for trial in self.trials.values())
        )


def best_of(spec: tuner_pb2.ExperimentSpec, trials: Iterable[tuner_pb2.Trial]) -> tuner_pb2.Trial | None:
    """Return the best of the trials that meet every constraint; None where there is none.

    The tuner says which one is the best of all; this is for what a line tells of those before it.
    """
    sign = 1 if spec.objective.minimize else -1
    found = [
        (sign * metric.value, trial.number, trial)
        for trial in trials
        if trial.state == _Trial.STATE_SUCCEEDED and trial.feasible
        for metric in trial.metrics
        if metric.name == spec.objective.metric
    ]
    return min(found, key=lambda each: each[:2])[2] if found else None


def bar(done: int, total: int, width: int = _BAR) -> str:
    """Return how much is done, drawn: "[#####-----]"."""
    full = width * min(done, total) // total if total else width
    return f"[{'#' * full}{'-' * (width - full)}]"


def follow(
    session: Session, name: str, *, quiet: bool = False
) -> tuple[tuner_pb2.Experiment, dict[int, tuner_pb2.Trial]]:
    """Tell what becomes of an experiment until nothing more does; return it with its trials by number.

    With `quiet` only what becomes of its application is told.

    Raises:
        Error: what the tuner answered; Unavailable when it is away for a minute.
    """
    progress = _Progress(session, quiet=quiet)
    request = tuner_pb2.WatchExperimentRequest(name=name)
    last = tuner_pb2.Experiment()
    stream = resuming(
        session, lambda: session.stream(stub(session).WatchExperiment, request, timeout_s=None), endless=True
    )
    try:
        for answer in stream:
            last = answer.experiment
            progress.take(answer)
            if progress.settled(last):
                break
    except KeyboardInterrupt:
        experiment = last_part(name)
        cancel = "" if quiet else f", `isthmus tune cancel {experiment}`"
        session.output.note(f"it goes on without this command: `isthmus tune watch {experiment}`{cancel}")
        raise
    return last, progress.trials


def require_success(experiment: tuner_pb2.Experiment) -> None:
    """Raise Precondition, with reason EXPERIMENT_NOT_SUCCEEDED, when an experiment didn't succeed."""
    if experiment.state != _State.STATE_SUCCEEDED:
        said = f": {experiment.message}" if experiment.message else ""
        raise Precondition(
            f"{experiment.name}: {state_of(experiment)}{said}; see `isthmus tune trials "
            f"{last_part(experiment.name)}`",
            reason="EXPERIMENT_NOT_SUCCEEDED",
        )


def apply(session: Session, name: str, trial: int) -> tuner_pb2.Experiment:
    """Apply a trial, the best one for 0; return the experiment when it is known what became of it.

    Raises:
        Error: what the tuner answered, such as that there is no fit trial.
    """
    request = tuner_pb2.ApplyExperimentRequest(name=name, trial=trial)
    session.call(stub(session).ApplyExperiment, request)
    return follow(session, name, quiet=True)[0]


def show_trials(
    session: Session, experiment: tuner_pb2.Experiment, trials: Sequence[tuner_pb2.Trial]
) -> None:
    """Print trials, the best one marked, the objective's metric first."""
    spec = experiment.spec
    wanted = [spec.objective.metric, *(each.metric for each in spec.constraints)]
    seen = [metric.name for trial in trials for metric in trial.metrics]
    metrics = list(dict.fromkeys([*wanted, *seen]))
    session.output.messages(
        trials,
        ("TRIAL", "TRIED", "OUTCOME"),
        (
            (
                each.number,
                _point(each),
                tuple(_outcome(experiment, each, metrics)),
            )
            for each in trials
        ),
    )


def _outcome(
    experiment: tuner_pb2.Experiment, trial: tuner_pb2.Trial, metrics: Iterable[str]
) -> Iterator[str]:
    """Yield a trial's state and its figures, a line each."""
    note = _note(experiment, trial)
    yield f"{trial_state(trial)}{': ' if note else ''}{note}"
    for name in metrics:
        found = metric_of(trial.metrics, name)
        if found != "-":
            yield f"{_NAMES.get(name, name)} {found}"


def _note(experiment: tuner_pb2.Experiment, trial: tuner_pb2.Trial) -> str:
    if trial.number == experiment.best_trial:
        applied = experiment.application
        here = applied.trial == trial.number and applied.state == _Application.STATE_APPLIED
        return "best, applied" if here else "best"
    if trial.state == _Trial.STATE_SUCCEEDED and not trial.feasible:
        return "breaks a constraint"
    return trial.message

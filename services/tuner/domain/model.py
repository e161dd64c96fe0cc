"""Experiments and trials, as they are kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from libs.common.names import ExperimentName, ModelName, ModelVersionName

Point = Mapping[str, float]
"""A value for each parameter, by its name."""


class SamplerKind(Enum):
    """How points are chosen."""

    GRID = "grid"
    RANDOM = "random"
    BAYESIAN = "bayesian"


class ExperimentState(Enum):
    """Where an experiment is."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TrialState(Enum):
    """Where a trial is."""

    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more becomes of it."""
        return self not in (TrialState.STARTING, TrialState.RUNNING)


class ApplicationState(Enum):
    """Where an application is."""

    MEASURING_BEFORE = "measuring_before"
    MEASURING_AFTER = "measuring_after"
    APPLIED = "applied"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether nothing more becomes of it."""
        return self not in (ApplicationState.MEASURING_BEFORE, ApplicationState.MEASURING_AFTER)


@dataclass(frozen=True, slots=True)
class Parameter:
    """What may vary: a field of the serving configuration, and its values, ascending."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Objective:
    """What is maximised, or minimised."""

    metric: str
    minimize: bool = False

    def better(self, one: float, other: float) -> bool:
        """Tell whether `one` is better than `other`."""
        return one < other if self.minimize else one > other


@dataclass(frozen=True, slots=True)
class Constraint:
    """A bound on a metric's estimate."""

    metric: str
    at_most: float


@dataclass(frozen=True, slots=True)
class Load:
    """What an instance has to answer.

    Attributes:
        concurrency: callers that each wait for their answer; used when `rate_rps` is 0.
        rate_rps: arrivals a second by a Poisson process; 0 for callers that wait.
        duration_s: measured time.
        target_s: a request counts as goodput if it is answered within this time.
        rows: rows in a request.
    """

    concurrency: int = 8
    rate_rps: float = 0.0
    duration_s: float = 5.0
    target_s: float = 0.1
    rows: int = 1

    @property
    def warm_s(self) -> float:
        """How long it warms up before it is measured."""
        return min(self.duration_s / 5, 5.0)


@dataclass(frozen=True, slots=True)
class Spec:
    """What is searched, and how."""

    model: ModelName
    parameters: tuple[Parameter, ...]
    sampler: SamplerKind
    seed: int
    max_trials: int
    parallel_trials: int
    max_failures: int
    objective: Objective
    constraints: tuple[Constraint, ...]
    load: Load
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Metric:
    """A measured value with its 95 % confidence interval."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Application:
    """A trial's configuration, applied to the model.

    Attributes:
        trial: its number.
        previous: the configuration before, as the endpoint gave it; kept so that a restart can go back to it.
        previous_known: whether `previous` was read; before that nothing has been changed.
    """

    trial: int
    state: ApplicationState
    start_time: datetime
    message: str = ""
    previous: bytes = b""
    previous_known: bool = False
    before: tuple[Metric, ...] = ()
    after: tuple[Metric, ...] = ()
    end_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """What a model was served as when the experiment was made: every trial has this, but for its point.

    Attributes:
        version: the live version.
        platform: of its blob, as the endpoint calls it.
        digest: of its blob, `sha256:<hex>`.
        size_bytes: of its blob.
        config: the model's configuration, as the endpoint gave it.
    """

    version: ModelVersionName
    platform: str
    digest: str
    size_bytes: int
    config: bytes


@dataclass(frozen=True, slots=True)
class Experiment:
    """A search for a configuration.

    Attributes:
        served: what is tried.
        best_trial: number of the best trial that meets every constraint; 0 while there is none.
        revision: grows by one with each write.
    """

    name: ExperimentName
    spec: Spec
    served: Served
    state: ExperimentState
    create_time: datetime
    message: str = ""
    best_trial: int = 0
    end_time: datetime | None = None
    application: Application | None = None
    revision: int = 1

    @property
    def ended(self) -> bool:
        """Whether no more trials are made."""
        return self.state is not ExperimentState.RUNNING

    @property
    def settled(self) -> bool:
        """Whether nothing more becomes of it by itself."""
        return self.ended and (self.application is None or self.application.state.ended)


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration, tried. Only one that succeeded has metrics."""

    experiment: ExperimentName
    number: int
    point: Point
    state: TrialState
    start_time: datetime
    message: str = ""
    metrics: tuple[Metric, ...] = ()
    feasible: bool = False
    end_time: datetime | None = None

    def metric(self, name: str) -> Metric | None:
        """Return what was measured of that name, or None."""
        return next((metric for metric in self.metrics if metric.name == name), None)


@dataclass(frozen=True, slots=True)
class Counts:
    """An experiment's trials by state; those that start count as running."""

    running: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class PastRequest:
    """What a create was asked, for its repetitions."""

    request_id: str
    fingerprint: str

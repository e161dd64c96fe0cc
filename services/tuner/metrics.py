"""What the operator sees in Prometheus. Labels are bounded: states; never ids."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.tuner.domain.model import ApplicationState, ExperimentState, TrialState


class Metrics:
    """See `services.tuner.domain.ports.Meter`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register with `registry`."""
        self._registry = registry
        self._trials = Histogram(
            "isthmus_tuner_trial_seconds",
            "Time that a trial took, by the state in which it ended.",
            ("state",),
            buckets=(1, 3, 10, 30, 100, 300, 1000),
            registry=registry,
        )
        self._experiments = Counter(
            "isthmus_tuner_experiments_total",
            "Experiments that ended by themselves, by state.",
            ("state",),
            registry=registry,
        )
        self._applications = Counter(
            "isthmus_tuner_applications_total",
            "Applications, by how they ended.",
            ("state",),
            registry=registry,
        )
        for trial in TrialState:
            if trial.ended:
                self._trials.labels(trial.value)
        for experiment in (ExperimentState.SUCCEEDED, ExperimentState.FAILED):
            self._experiments.labels(experiment.value)
        for application in ApplicationState:
            if application.ended:
                self._applications.labels(application.value)

    def watch(self, running: Callable[[], float]) -> None:
        """Show how many experiments run, asked for at each scrape."""
        gauge = Gauge("isthmus_tuner_running_experiments", "Experiments that run.", registry=self._registry)
        gauge.set_function(running)

    def trial_ended(self, state: str, seconds: float) -> None:
        """See `Meter`."""
        self._trials.labels(state).observe(seconds)

    def experiment_ended(self, state: str) -> None:
        """See `Meter`."""
        self._experiments.labels(state).inc()

    def application_ended(self, state: str) -> None:
        """See `Meter`."""
        self._applications.labels(state).inc()

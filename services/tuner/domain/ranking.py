"""Which trial is the best."""

from collections.abc import Iterable, Sequence

from services.tuner.domain.model import Constraint, Metric, Spec, Trial, TrialState


def feasible(constraints: Sequence[Constraint], metrics: Sequence[Metric]) -> bool:
    """Tell whether every constraint holds; one on something that wasn't measured doesn't."""
    values = {metric.name: metric.value for metric in metrics}
    return all(c.metric in values and values[c.metric] <= c.at_most for c in constraints)


def best(spec: Spec, trials: Iterable[Trial]) -> int:
    """Return the number of the best trial that succeeded and is feasible; 0 when there is none.

    Of equals the first one is taken.
    """
    number, value = 0, 0.0
    for trial in sorted(trials, key=lambda trial: trial.number):
        metric = trial.metric(spec.objective.metric)
        if trial.state is not TrialState.SUCCEEDED or not trial.feasible or metric is None:
            continue
        if number == 0 or spec.objective.better(metric.value, value):
            number, value = trial.number, metric.value
    return number

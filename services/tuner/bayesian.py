"""The Bayesian sampler: Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011).

A study is built anew for each point from the trials so far, in memory: what is stored is ours, and Optuna's
state can't differ from it. Values are given by their positions, so that 1, 2, 4, …, 64 are equally far apart.
"""

import warnings
from collections.abc import Sequence

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from services.tuner.domain.model import Point, Spec, Trial, TrialState
from services.tuner.domain.samplers import RandomSampler, indices_of, point_at, tried

_TRIES = 16
_STATES = {
    TrialState.STARTING: OptunaState.RUNNING,
    TrialState.RUNNING: OptunaState.RUNNING,
    TrialState.SUCCEEDED: OptunaState.COMPLETE,
    TrialState.FAILED: OptunaState.FAIL,
    TrialState.CANCELLED: OptunaState.FAIL,
}


class BayesianSampler:
    """See `services.tuner.domain.samplers.Sampler`.

    In-flight trials are taken for bad ones (the constant liar), so that points asked for at once differ. Of
    trials that break constraints, those that break them less are preferred. Failed trials teach nothing but
    that their points are taken. The same trials and seed give the same point.
    """

    def next(self, spec: Spec, trials: Sequence[Trial]) -> Point | None:
        """See `Sampler`."""
        seen = tried(spec, trials)
        with warnings.catch_warnings():
            # The constant liar and the multivariate estimator are called experimental.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study = _study(spec, trials)
            space = _space(spec)
            for _ in range(_TRIES):
                params = study.ask(dict(space)).params
                indices = tuple(int(params[parameter.name]) for parameter in spec.parameters)
                if indices not in seen:
                    return point_at(spec.parameters, indices)
        # It insists on points that were tried: near the end of a small grid anything else is news.
        return RandomSampler().next(spec, trials)


def _study(spec: Spec, trials: Sequence[Trial]) -> optuna.Study:
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=max(4, min(10, spec.max_trials // 4)),
            multivariate=True,
            constant_liar=True,
            seed=(spec.seed * 1_000_003 + len(trials)) % 2**32,
        )
        study = optuna.create_study(
            direction="minimize" if spec.objective.minimize else "maximize", sampler=sampler
        )
    finally:
        optuna.logging.set_verbosity(verbosity)
    for trial in trials:
        study.add_trial(_frozen(spec, trial))
    return study


def _space(spec: Spec) -> dict[str, BaseDistribution]:
    return {p.name: IntDistribution(0, len(p.values) - 1) for p in spec.parameters}


def _frozen(spec: Spec, trial: Trial) -> FrozenTrial:
    params = dict(
        zip(
            (parameter.name for parameter in spec.parameters),
            indices_of(spec.parameters, trial.point),
            strict=True,
        )
    )
    state = _STATES[trial.state]
    measured = trial.metric(spec.objective.metric)
    if state is OptunaState.COMPLETE and measured is None:
        state = OptunaState.FAIL
    done = state is OptunaState.COMPLETE and measured is not None
    return optuna.trial.create_trial(
        state=state,
        value=measured.value if done and measured is not None else None,
        params=params,
        distributions=_space(spec),
        constraints={str(index): value for index, value in enumerate(excesses(spec, trial))}
        if done
        else None,
    )


def excesses(spec: Spec, trial: Trial) -> list[float]:
    """Return by how much each constraint is broken, as a share of its bound; not above 0 where it holds."""
    found = []
    for constraint in spec.constraints:
        metric = trial.metric(constraint.metric)
        excess = metric.value - constraint.at_most if metric is not None else 1e12
        found.append(excess / max(abs(constraint.at_most), 1e-9))
    return found

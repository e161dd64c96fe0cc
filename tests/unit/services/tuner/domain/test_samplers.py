"""Points: none twice, those in flight known, the same again after a restart."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tuner.bayesian import BayesianSampler, excesses
from services.tuner.domain.model import Constraint, Parameter, SamplerKind, TrialState
from services.tuner.domain.samplers import GridSampler, RandomSampler, size
from services.tuner.testing import make_spec, make_trial, metrics_of, surface


def drawn(sampler, spec, count, state=TrialState.SUCCEEDED):
    """Ask for `count` points, each trial ending in `state`."""
    trials = []
    for number in range(1, count + 1):
        point = sampler.next(spec, trials)
        if point is None:
            break
        metrics = metrics_of(surface(point)) if state is TrialState.SUCCEEDED else ()
        trials.append(make_trial(number, point, state=state, metrics=metrics, feasible=True))
    return trials


def test_a_grid_gives_every_point_in_order():
    points = [trial.point for trial in drawn(GridSampler(), make_spec(), 100)]
    assert len(points) == 12
    assert [tuple(point.values()) for point in points[:5]] == [(1, 1), (1, 2), (1, 3), (1, 4), (8, 1)]


@pytest.mark.parametrize("sampler", [RandomSampler(), BayesianSampler(), GridSampler()])
@pytest.mark.parametrize("state", [TrialState.SUCCEEDED, TrialState.RUNNING, TrialState.FAILED])
def test_every_point_comes_once_whatever_becomes_of_the_others(sampler, state):
    points = [tuple(trial.point.values()) for trial in drawn(sampler, make_spec(), 100, state)]
    assert len(points) == len(set(points)) == 12


@pytest.mark.parametrize("sampler", [RandomSampler(), BayesianSampler()])
def test_the_same_seed_and_trials_give_the_same_point(sampler):
    trials = drawn(sampler, make_spec(), 6)
    for cut in range(6):
        assert type(sampler)().next(make_spec(), trials[:cut]) == trials[cut].point
    others = {tuple(sampler.next(make_spec(seed=seed), []).values()) for seed in range(20)}
    assert len(others) > 3


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=16), st.integers(0, 2**64 - 1))
def test_random_points_are_of_the_space_even_where_it_is_huge(counts, seed):
    parameters = tuple(Parameter(f"p{i}", tuple(range(count))) for i, count in enumerate(counts))
    spec = make_spec(parameters=parameters, seed=seed)
    trials = drawn_points(RandomSampler(), spec, 20)
    assert len(trials) == len(set(trials)) == min(20, size(parameters))


def drawn_points(sampler, spec, count):
    trials = []
    for number in range(count):
        point = sampler.next(spec, trials)
        if point is None:
            break
        assert all(point[p.name] in p.values for p in spec.parameters)
        trials.append(make_trial(number + 1, point))
    return [tuple(trial.point.values()) for trial in trials]


def wide_spec(seed):
    rows = tuple(float(2**power) for power in range(13))
    names = ("max_batch_rows", "instance_count", "intra_op_thread_count")
    values = (rows, tuple(map(float, range(1, 9))), tuple(map(float, range(1, 9))))
    parameters = tuple(Parameter(name, ends) for name, ends in zip(names, values, strict=True))
    return make_spec(parameters=parameters, seed=seed, sampler=SamplerKind.BAYESIAN, max_trials=30)


def hill(point):
    """One optimum of 1000 at 2**6 rows, 5 instances, 2 threads."""
    rows = int(point["max_batch_rows"]).bit_length() - 1
    x, y, z = rows - 6, point["instance_count"] - 5, point["intra_op_thread_count"] - 2
    return 1000.0 - 12 * x * x - 15 * y * y - 10 * z * z


def best_of(sampler, spec):
    trials = []
    for number in range(1, 31):
        point = sampler.next(spec, trials)
        metrics = metrics_of(hill(point))
        trials.append(make_trial(number, point, state=TrialState.SUCCEEDED, metrics=metrics, feasible=True))
    return max(hill(trial.point) for trial in trials)


def test_the_estimator_learns_where_chance_does_not():
    seeds = range(4)
    learnt = sum(best_of(BayesianSampler(), wide_spec(seed)) for seed in seeds)
    lucky = sum(best_of(RandomSampler(), wide_spec(seed)) for seed in seeds)
    assert learnt > lucky


def test_constraints_steer_the_estimator():
    constraint = Constraint("p99_ms", 20.0)
    spec = wide_spec(1)
    spec = make_spec(parameters=spec.parameters, sampler=SamplerKind.BAYESIAN, constraints=(constraint,))
    trials = []
    for number in range(1, 31):
        point = BayesianSampler().next(spec, trials)
        # More instances are better, and above 4 of them too slow.
        slow = 10.0 * point["instance_count"] - 20.0
        metrics = metrics_of(100 * point["instance_count"], p99_ms=slow)
        state = TrialState.SUCCEEDED
        trials.append(make_trial(number, point, state=state, metrics=metrics, feasible=slow <= 20.0))
    later = trials[10:]
    assert sum(trial.feasible for trial in later) > len(later) / 2
    assert max(t.point["instance_count"] for t in later if t.feasible) == 4


def test_what_was_not_measured_breaks_its_constraint():
    spec = make_spec(constraints=(Constraint("p99_ms", 20.0), Constraint("goodput_rps", 50.0)))
    trial = make_trial(metrics=metrics_of(100.0, p99_ms=10.0)[:1])
    missing, broken = excesses(spec, trial)
    assert missing > 1e6
    assert broken == pytest.approx(1.0)

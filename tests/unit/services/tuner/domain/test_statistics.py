"""Metrics and their intervals."""

import numpy as np
import pytest

from libs.common.errors import Precondition
from services.tuner.domain.model import Metric
from services.tuner.domain.statistics import BATCHES, Run, summarise, worse


def run_of(arrivals, latencies, answered=None, **changes):
    values = {
        "duration_s": 10.0,
        "arrival_s": np.asarray(arrivals, float),
        "latency_s": np.asarray(latencies, float),
        "answered": np.ones(len(arrivals), bool) if answered is None else np.asarray(answered, bool),
        "target_s": 0.1,
        "cpu_s": np.array([]),
        "peak_memory_bytes": 0,
    }
    return Run(**{**values, **changes})


def named(run):
    return {metric.name: metric for metric in summarise(run, 1)}


def test_a_steady_run_has_rates_without_doubt():
    arrivals = np.arange(1000) / 100 + 0.001
    found = named(run_of(arrivals, np.full(1000, 0.004)))
    assert found["throughput_rps"] == Metric("throughput_rps", 100.0, 100.0, 100.0)
    assert found["goodput_rps"] == Metric("goodput_rps", 100.0, 100.0, 100.0)
    assert found["p99_ms"].value == pytest.approx(4.0)
    assert set(found) == {"throughput_rps", "goodput_rps", "p50_ms", "p99_ms"}


def test_only_what_meets_the_target_is_goodput_and_only_the_measured_time_counts():
    # Half of them late; as many again in the time of warming up.
    arrivals = np.arange(-1000, 1000) / 100 + 0.001
    latencies = np.where(np.arange(2000) % 2, 0.005, 0.2)
    found = named(run_of(arrivals, latencies))
    assert found["goodput_rps"].value == pytest.approx(50.0)
    assert found["throughput_rps"].value == pytest.approx(100.0, rel=0.02)
    assert found["p50_ms"].value in (pytest.approx(5.0), pytest.approx(200.0))


def test_refusing_does_not_look_fast():
    arrivals = np.arange(1000) / 100
    answered = np.arange(1000) % 10 != 0
    latencies = np.where(answered, 0.004, 30.0)
    found = named(run_of(arrivals, latencies, answered))
    assert found["p99_ms"].value == pytest.approx(30_000.0)
    assert found["throughput_rps"].value == pytest.approx(90.0, rel=0.02)


def test_the_processor_is_shared_by_the_answers():
    arrivals = np.arange(1000) / 100 + 0.001
    cpu = np.linspace(5.0, 7.0, BATCHES + 1)
    found = named(run_of(arrivals, np.full(1000, 0.001), cpu_s=cpu, peak_memory_bytes=5 << 20))
    assert found["cpu_us_per_request"].value == pytest.approx(2000.0)
    assert found["cpu_us_per_request"].low <= 2000.0 <= found["cpu_us_per_request"].high
    assert found["peak_memory_bytes"] == Metric("peak_memory_bytes", 5 << 20, 5 << 20, 5 << 20)


@pytest.mark.parametrize("answered", [[], [False, False]])
def test_nothing_answered_is_an_error_that_says_why(answered):
    run = run_of([1.0] * len(answered), [30.0] * len(answered), answered, message="shape mismatch")
    with pytest.raises(Precondition, match="shape mismatch"):
        summarise(run, 1)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """Sixty runs of a server of which the truth is known."""
    held = {"throughput_rps": 0, "p50_ms": 0, "p99_ms": 0}
    runs = 60
    for seed in range(runs):
        chance = np.random.default_rng(seed)
        arrivals = np.sort(chance.uniform(0, 10, chance.poisson(4000)))
        # Exponential service with a mean of 10 ms: p50 6.93 ms, p99 46.05 ms.
        latencies = chance.exponential(0.01, len(arrivals))
        found = named(run_of(arrivals, latencies))
        truth = {"throughput_rps": 400.0, "p50_ms": 6.931, "p99_ms": 46.05}
        for name, value in truth.items():
            held[name] += found[name].low <= value <= found[name].high
    assert all(count >= 50 for count in held.values()), held
    assert any(count < runs for count in held.values()), held


def test_worse_means_beyond_both_intervals():
    before, overlapping, below = (Metric("m", v, v - 5, v + 5) for v in (100, 91, 80))
    assert not worse(before, overlapping, minimize=False)
    assert worse(before, below, minimize=False)
    assert not worse(before, below, minimize=True)
    assert worse(below, before, minimize=True)

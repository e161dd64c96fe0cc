"""From samples to metrics with 95 % confidence intervals.

Requests of one run aren't independent: queues make neighbours alike. So the measured time is cut into batches
of equal length, and the batches are what is taken as independent.

- Rates: the mean over the batches with Student's interval, the method of batch means (Law, Simulation
  Modeling and Analysis, 5th ed., §9.5.3; 20 batches as advised by Schmeiser, Operations
  Research 30(3), 1982).
- Quantiles and ratios: the estimate is that of all samples; its interval comes from 400 resamplings of whole
  batches with replacement, 2.5 % to 97.5 % of what they give: the block bootstrap (Künsch, Annals of
  Statistics 17(3), 1989).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from libs.common.errors import Precondition
from services.tuner.domain.model import Metric

BATCHES = 20
_RESAMPLES = 400
_T_19 = 2.093
"""97.5 % quantile of Student's t with 19 degrees of freedom."""
_MOST_LATENCIES = 2_500
"""Latencies kept for each batch; of more, evenly spaced order statistics stand for all."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Run:
    """What a run of load saw, within its measured time.

    Attributes:
        duration_s: the measured time.
        arrival_s: when each request was due, seconds from the start of the measured time; shape [n].
        latency_s: from then until its answer; for one that failed, the longest that a request may take, so
            that refusing requests doesn't look fast; shape [n].
        answered: which didn't fail; shape [n].
        target_s: a request counts as goodput if it was answered within this time.
        cpu_s: processor seconds the server had used at each border of the batches, shape [BATCHES + 1]; empty
            where nobody could look.
        peak_memory_bytes: largest resident memory of the server; 0 where nobody could look.
        message: what the first failed request said.
    """

    duration_s: float
    arrival_s: Floats
    latency_s: Floats
    answered: npt.NDArray[np.bool_]
    target_s: float
    cpu_s: Floats
    peak_memory_bytes: int
    message: str = ""


def summarise(run: Run, seed: int) -> tuple[Metric, ...]:
    """Return the metrics of a run.

    Throughput and the processor's time count answers by when they came; goodput and latencies count requests
    by when they were due.

    Raises:
        Precondition: NOTHING_MEASURED, when no request was answered within the measured time.
    """
    due = (run.arrival_s >= 0) & (run.arrival_s < run.duration_s)
    end_s = run.arrival_s + run.latency_s
    ended = run.answered & (end_s >= 0) & (end_s < run.duration_s)
    if not (due & run.answered).any() or not ended.any():
        raise Precondition(
            f"none of {int(due.sum())} requests was answered in time"
            + (f"; the first failed with: {run.message}" if run.message else "; lower the load"),
            reason="NOTHING_MEASURED",
        )
    counts = np.bincount(_batch(run, end_s[ended]), minlength=BATCHES).astype(np.float64)
    met = due & run.answered & (run.latency_s <= run.target_s)
    good = np.bincount(_batch(run, run.arrival_s[met]), minlength=BATCHES).astype(np.float64)
    latencies, batch = run.latency_s[due], _batch(run, run.arrival_s[due])
    width = run.duration_s / BATCHES
    found = [_mean("goodput_rps", good / width), _mean("throughput_rps", counts / width)]
    picks = np.random.default_rng(seed).integers(0, BATCHES, size=(_RESAMPLES, BATCHES))
    by_batch = [_thinned(latencies[batch == index]) for index in range(BATCHES)]
    sizes = np.bincount(batch, minlength=BATCHES).astype(np.float64)
    p50, p99 = _quantiles(latencies, by_batch, sizes, picks)
    found += [p50, p99]
    if len(run.cpu_s) == BATCHES + 1:
        found.append(_ratio("cpu_us_per_request", np.diff(run.cpu_s) * 1e6, counts, picks))
    if run.peak_memory_bytes:
        peak = float(run.peak_memory_bytes)
        found.append(Metric("peak_memory_bytes", peak, peak, peak))
    return tuple(found)


def _batch(run: Run, times: Floats) -> npt.NDArray[np.int64]:
    return np.minimum((times / run.duration_s * BATCHES).astype(np.int64), BATCHES - 1)


def _mean(name: str, values: Floats) -> Metric:
    mean = float(values.mean())
    half = _T_19 * float(values.std(ddof=1)) / BATCHES**0.5
    return Metric(name, mean, max(0.0, mean - half), mean + half)


def _thinned(latencies: Floats) -> Floats:
    if len(latencies) <= _MOST_LATENCIES:
        return latencies
    ordered = np.sort(latencies)
    return ordered[np.linspace(0, len(ordered) - 1, _MOST_LATENCIES).astype(np.int64)]


def _quantiles(
    latencies: Floats, by_batch: Sequence[Floats], counts: Floats, picks: npt.NDArray[np.int64]
) -> tuple[Metric, Metric]:
    """Return p50 and p99 in ms. Every resampling is a weighting of the sorted latencies by batch."""
    pooled = np.concatenate(by_batch)
    owner = np.repeat(np.arange(BATCHES), [len(part) for part in by_batch])
    share = np.array([count / max(len(part), 1) for count, part in zip(counts, by_batch, strict=True)])
    order = np.argsort(pooled, kind="stable")
    pooled, owner = pooled[order], owner[order]
    resampled = []
    for pick in picks:
        weights = (np.bincount(pick, minlength=BATCHES) * share)[owner]
        cumulative = np.cumsum(weights)
        if cumulative[-1] > 0:  # batches that were idle may be all that was drawn
            at = np.searchsorted(cumulative, np.array([0.5, 0.99]) * cumulative[-1])
            resampled.append(pooled[np.minimum(at, len(pooled) - 1)])
    drawn = np.array(resampled)
    found = []
    for index, (name, level) in enumerate((("p50_ms", 0.5), ("p99_ms", 0.99))):
        value = float(np.quantile(latencies, level, method="inverted_cdf"))
        found.append(_interval(name, value * 1e3, drawn[:, index] * 1e3))
    return found[0], found[1]


def _ratio(name: str, above: Floats, below: Floats, picks: npt.NDArray[np.int64]) -> Metric:
    sums = below[picks].sum(axis=1)
    drawn = above[picks].sum(axis=1)[sums > 0] / sums[sums > 0]
    return _interval(name, float(above.sum() / below.sum()), drawn)


def _interval(name: str, value: float, drawn: Floats) -> Metric:
    low, high = (float(end) for end in np.quantile(drawn, (0.025, 0.975)))
    return Metric(name, value, min(low, value), max(high, value))


def worse(before: Metric, after: Metric, *, minimize: bool) -> bool:
    """Tell whether `after` is worse than `before` beyond both intervals."""
    return after.low > before.high if minimize else after.high < before.low

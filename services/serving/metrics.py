"""What the operator sees in Prometheus: read from the versions' statistics when it is scraped."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from services.serving.domain.dataplane import DataPlane
from services.serving.domain.deployment import Fleet
from services.serving.domain.model import State
from services.serving.domain.statistics import BUCKETS_S

_LABELS = ("tenant", "model", "version")


class Metrics(Collector):
    """Shows a fleet. Labels are bounded by the models there are; those of a deleted one go with it."""

    def __init__(self, registry: CollectorRegistry, fleet: Fleet, plane: DataPlane) -> None:
        """Register with `registry`."""
        self._fleet = fleet
        self._plane = plane
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as they are now."""
        requests = CounterMetricFamily(
            "isthmus_serving_requests",
            "Requests by outcome: success, failed, cancelled, or the reason of a refusal.",
            labels=(*_LABELS, "outcome"),
        )
        rows = CounterMetricFamily("isthmus_serving_rows", "Rows computed.", labels=_LABELS)
        executions = CounterMetricFamily("isthmus_serving_executions", "Runs of the model.", labels=_LABELS)
        queued = CounterMetricFamily(
            "isthmus_serving_queue_seconds", "Time that requests waited.", labels=_LABELS
        )
        computed = CounterMetricFamily(
            "isthmus_serving_compute_seconds", "Time that the model took, by execution.", labels=_LABELS
        )
        seconds = HistogramMetricFamily(
            "isthmus_serving_request_seconds", "Time from queue to outputs.", labels=_LABELS
        )
        # Copies: a scrape comes on another thread.
        for key, version, statistics in list(self._fleet.statistics()):
            names = (key.tenant, key.model, version)
            refused = dict(statistics.refused)
            requests.add_metric((*names, "success"), statistics.success.count)
            requests.add_metric((*names, "failed"), statistics.fail.count - sum(refused.values()))
            requests.add_metric((*names, "cancelled"), statistics.cancelled)
            for reason, count in refused.items():
                requests.add_metric((*names, reason.lower()), count)
            rows.add_metric(names, statistics.rows)
            executions.add_metric(names, statistics.executions)
            queued.add_metric(names, statistics.queue.ns / 1e9)
            spent = sum(batch.infer.ns for batch in list(statistics.batches.values()))
            computed.add_metric(names, spent / 1e9)
            seconds.add_metric(names, *_histogram(statistics.seconds, statistics.success.ns / 1e9))
        yield from (requests, rows, executions, queued, computed, seconds)
        yield from self._now()

    def _now(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("isthmus_serving_waiting", "Requests that wait.", labels=_LABELS)
        ready = GaugeMetricFamily(
            "isthmus_serving_version_ready", "1 for a version that answers requests.", labels=_LABELS
        )
        for (key, version), deployment in list(self._fleet.deployed().items()):
            waiting.add_metric((key.tenant, key.model, version), deployment.batcher.waiting)
        for key, endpoint in list(self._fleet.endpoints.items()):
            for version, condition in list(endpoint.conditions.items()):
                ready.add_metric((key.tenant, key.model, version), condition.state is State.READY)
        yield from (waiting, ready)
        held = GaugeMetricFamily("isthmus_serving_held_bytes", "Bytes of the requests in hand.")
        held.add_metric((), self._plane.held_bytes)
        yield held


def _histogram(counts: list[int], total: float) -> tuple[list[tuple[str, float]], float]:
    buckets, sofar = [], 0
    for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), counts, strict=True):
        sofar += count
        buckets.append((bound, float(sofar)))
    return buckets, total

"""What the operator sees in Prometheus. Labels are bounded: stages and outcomes; never ids."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.engine.domain.model import STAGES, Stage


class Metrics:
    """See `services.engine.domain.optimiser.Meter`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register with `registry`."""
        self._registry = registry
        self._stages = Histogram(
            "isthmus_engine_stage_seconds",
            "Time that a stage of making a plan took.",
            ("stage",),
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
            registry=registry,
        )
        self._cache = Counter(
            "isthmus_engine_cache_requests_total",
            "Plans asked of the cache, by outcome: hit or miss.",
            ("outcome",),
            registry=registry,
        )
        for stage in STAGES:
            self._stages.labels(stage)
        for outcome in ("hit", "miss"):
            self._cache.labels(outcome)

    def watch(self, jobs: Callable[[], float], held_bytes: Callable[[], float]) -> None:
        """Show what is asked for at each scrape: models worked on or waiting, and memory of loaded plans."""
        Gauge("isthmus_engine_jobs", "Models worked on or waiting.", registry=self._registry).set_function(
            jobs
        )
        Gauge(
            "isthmus_engine_held_bytes", "Memory of loaded plans, buffers included.", registry=self._registry
        ).set_function(held_bytes)

    def stage(self, stage: Stage) -> None:
        """See `Meter`."""
        self._stages.labels(stage.name).observe(stage.elapsed_s)

    def cached(self, hit: bool) -> None:
        """See `Meter`."""
        self._cache.labels("hit" if hit else "miss").inc()

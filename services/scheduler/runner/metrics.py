"""What Prometheus sees of a runner."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from services.scheduler.domain.objects import Worker

_REASONS = frozenset(
    {
        "OUT_OF_MEMORY",
        "TOO_MANY_PROCESSES",
        "DEADLINE",
        "CANCELLED",
        "SIBLING_FAILED",
        "START_FAILED",
        "LOST",
        "ARTEFACT_MISSING",
    }
)


class Metrics:
    """Counts the ends of workers, and tells how many run and whether a scheduler is there."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register with `registry`."""
        self._ended = Counter(
            "isthmus_scheduler_runner_workers_ended",
            "Workers that ended, by why: ok, exit_code, signal, or the reason.",
            ["reason"],
            registry=registry,
        )
        self._running = Gauge(
            "isthmus_scheduler_runner_workers", "Workers that haven't ended.", registry=registry
        )
        self._attached = Gauge(
            "isthmus_scheduler_runner_attached",
            "Whether the runner is attached to a scheduler.",
            registry=registry,
        )

    def watch(self, running_count: Callable[[], int]) -> None:
        """Ask `running_count` how many run."""
        self._running.set_function(running_count)

    def attached(self, attached: bool) -> None:
        """Note whether a scheduler is there."""
        self._attached.set(attached)

    def ended(self, worker: Worker) -> None:
        """Count an end."""
        if worker.succeeded:
            reason = "ok"
        elif worker.reason:
            reason = worker.reason.lower() if worker.reason in _REASONS else "other"
        else:
            reason = "signal" if worker.exit_code >= 128 else "exit_code"
        self._ended.labels(reason).inc()

"""What the operator sees of the simulator in Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_OUTCOMES = ("passed", "failed", "refused", "cancelled", "error")


class Metrics:
    """See `services.device_agent.simulator.simulations.Meter`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register with `registry`."""
        self._running = Gauge(
            "isthmus_simulator_running_simulations", "Simulations in hand.", registry=registry
        )
        self._ended = Counter(
            "isthmus_simulator_simulations_total",
            "Simulations that ended: " + ", ".join(_OUTCOMES) + ".",
            ("outcome",),
            registry=registry,
        )
        self._seconds = Histogram(
            "isthmus_simulator_simulation_seconds",
            "Time that a simulation took, its files' download included.",
            buckets=(0.5, 1, 2, 4, 8, 16, 32, 64, 128),
            registry=registry,
        )
        for outcome in _OUTCOMES:
            self._ended.labels(outcome)

    def running(self, count: int) -> None:
        """See `Meter`."""
        self._running.set(count)

    def ended(self, outcome: str, seconds: float) -> None:
        """See `Meter`."""
        self._ended.labels(outcome).inc()
        if outcome in ("passed", "failed"):
            self._seconds.observe(seconds)

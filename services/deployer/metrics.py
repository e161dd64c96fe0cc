"""What the operator sees in Prometheus. Labels are bounded: stages, states, decisions; never ids."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from libs.common.names import ReleaseName
from services.deployer.domain.model import Counts, ReleaseState, Stage

_PREFLIGHTS = ("passed", "failed", "skipped", "error")
_STAGES = ("targeted", *(stage.name.lower() for stage in Stage))


class Metrics:
    """See `services.deployer.domain.signals.Meter`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register with `registry`."""
        self._sets = Counter("isthmus_deployer_sets_signed_total", "Device sets signed.", registry=registry)
        self._reports = Counter(
            "isthmus_deployer_reports_total",
            "Stage reports that changed something, by stage.",
            ("stage",),
            registry=registry,
        )
        self._bytes = Counter(
            "isthmus_deployer_blob_bytes_total",
            "Bytes of blobs written and read.",
            ("direction",),
            registry=registry,
        )
        self._decisions = Counter(
            "isthmus_deployer_release_decisions_total",
            "What the controller decided: step, succeed, pause, roll_back.",
            ("decision",),
            registry=registry,
        )
        self._releases = Gauge(
            "isthmus_deployer_releases", "Releases, by state.", ("state",), registry=registry
        )
        self._devices = Gauge(
            "isthmus_deployer_release_devices",
            "Devices of running releases: targeted, and by the furthest stage reported.",
            ("stage",),
            registry=registry,
        )
        self._preflights = Counter(
            "isthmus_deployer_preflights_total",
            "Pre-flights: " + ", ".join(_PREFLIGHTS) + ".",
            ("outcome",),
            registry=registry,
        )
        self._preflight_seconds = Histogram(
            "isthmus_deployer_preflight_seconds",
            "Time that publishing waited for the simulator's verdict.",
            buckets=(0.5, 1, 2, 4, 8, 16, 32, 64, 128),
            registry=registry,
        )
        self._counts: dict[ReleaseName, Counts] = {}
        for stage in Stage:
            self._reports.labels(stage.name.lower())
        for direction in ("written", "read"):
            self._bytes.labels(direction)
        for decision in ("step", "succeed", "pause", "roll_back"):
            self._decisions.labels(decision)
        for outcome in _PREFLIGHTS:
            self._preflights.labels(outcome)
        self.states({})
        self._show()

    def set_signed(self) -> None:
        """See `Meter`."""
        self._sets.inc()

    def reported(self, stage: Stage) -> None:
        """See `Meter`."""
        self._reports.labels(stage.name.lower()).inc()

    def preflight(self, outcome: str, seconds: float) -> None:
        """See `Meter`."""
        self._preflights.labels(outcome).inc()
        if outcome in ("passed", "failed"):
            self._preflight_seconds.observe(seconds)

    def blob_bytes(self, direction: str, count: int) -> None:
        """See `Meter`."""
        self._bytes.labels(direction).inc(count)

    def decided(self, decision: str) -> None:
        """See `Meter`."""
        self._decisions.labels(decision).inc()

    def release_counts(self, name: ReleaseName, counts: Counts | None) -> None:
        """See `Meter`."""
        if counts is None:
            self._counts.pop(name, None)
        else:
            self._counts[name] = counts
        self._show()

    def states(self, counts: Mapping[ReleaseState, int]) -> None:
        """Show how many releases are in each state."""
        for state in ReleaseState:
            self._releases.labels(state.name.lower()).set(counts.get(state, 0))

    def _show(self) -> None:
        for stage in _STAGES:
            self._devices.labels(stage).set(sum(getattr(counts, stage) for counts in self._counts.values()))

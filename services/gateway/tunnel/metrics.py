"""The tunnel's own metrics, `isthmus_tunnel_*`."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.gateway.tunnel.domain.frame import Outcome
from services.gateway.tunnel.domain.requests import Fate
from services.gateway.tunnel.store.log import LogStats

_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class TunnelMetrics:
    """Counts for Prometheus; an `Observer` of sessions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._frames = Counter(
            "isthmus_tunnel_frames_total",
            "Frames that devices sent, by what the log did with them.",
            ("result", "kind"),
            registry=registry,
        )
        self._refused = Counter(
            "isthmus_tunnel_frames_refused_total",
            "Malformed frames that the tunnel put a tombstone in the place of, by why.",
            ("reason",),
            registry=registry,
        )
        self._ack_seconds = Histogram(
            "isthmus_tunnel_ack_seconds",
            "From the reading of a batch's first frame until the batch is durable.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._commit_seconds = Histogram(
            "isthmus_tunnel_commit_seconds",
            "One group commit of the log: write and fsync.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._commit_frames = Histogram(
            "isthmus_tunnel_commit_frames",
            "Frames in a group commit.",
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000),
            registry=registry,
        )
        self._connections = Gauge("isthmus_tunnel_connections", "Devices connected.", registry=registry)
        self._ended = Counter(
            "isthmus_tunnel_connections_ended_total",
            "Connections that ended, by why.",
            ("reason",),
            registry=registry,
        )
        self._requests = Counter(
            "isthmus_tunnel_requests_total",
            "Devices' requests to models, by how they ended.",
            ("outcome",),
            registry=registry,
        )
        for fate in Fate:
            self._requests.labels(fate.value)
        self._request_seconds = Histogram(
            "isthmus_tunnel_request_seconds",
            "From the reading of a request that was put to a model until it ended.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._open_requests = Gauge(
            "isthmus_tunnel_open_requests", "Requests put to models and not over yet.", registry=registry
        )

    def frames(self, outcome: Outcome, tombstones: int, others: int) -> None:
        """See `Observer`."""
        if tombstones:
            self._frames.labels(outcome.value, "tombstone").inc(tombstones)
        if others:
            self._frames.labels(outcome.value, "data").inc(others)

    def refused(self, reason: str) -> None:
        """See `Observer`."""
        self._refused.labels(reason).inc()

    def acked(self, seconds: float) -> None:
        """See `Observer`."""
        self._ack_seconds.observe(seconds)

    def connections(self, count: int) -> None:
        """See `Observer`."""
        self._connections.set(count)

    def ended(self, reason: str) -> None:
        """See `Observer`."""
        self._ended.labels(reason).inc()

    def asked(self, fate: Fate, seconds: float) -> None:
        """See `Observer`."""
        self._requests.labels(fate.value).inc()
        if fate is not Fate.REFUSED:
            self._request_seconds.observe(seconds)

    def asking(self, count: int) -> None:
        """See `Observer`."""
        self._open_requests.set(count)

    def committed(self, seconds: float, frames: int) -> None:
        """One group commit of the log took so long."""
        self._commit_seconds.observe(seconds)
        self._commit_frames.observe(frames)


class LogCollector(Collector):
    """Asks the log for its sizes and faults whenever Prometheus asks."""

    def __init__(self, stats: Callable[[], LogStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of this moment."""
        stats = self._stats()
        for name, text, value in (
            ("bytes", "Bytes in all segments of the log.", stats.bytes),
            ("segments", "Segments of the log.", stats.segments),
            ("quarantined_segments", "Segments with damaged acknowledged records.", stats.quarantined),
            ("torn_bytes", "Bytes of torn tails cut at the last start.", stats.torn_bytes),
            ("fault", "1 while the log can't write.", 1 if stats.fault else 0),
        ):
            yield GaugeMetricFamily(f"isthmus_tunnel_log_{name}", text, value=value)

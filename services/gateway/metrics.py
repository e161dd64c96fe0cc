"""The gateway's own metrics. Labels are bounded: services, ways and codes, never a device, key or tenant."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from services.gateway.domain.live import LiveStreams
from services.gateway.domain.push import PushState
from services.gateway.feed import Feed
from services.gateway.sizes import Sizes


class Metrics:
    """Counters that the door counts with."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._hints = Counter(
            "isthmus_gateway_hints_total", "Hints given to devices.", ["way"], registry=registry
        )
        self._http = Counter(
            "isthmus_gateway_http_requests_total", "HTTP requests.", ["method", "code"], registry=registry
        )
        self._unreachable = Counter(
            "isthmus_gateway_upstream_unreachable_total",
            "Calls that failed since the service behind the door couldn't be reached.",
            ["upstream"],
            registry=registry,
        )
        self.blob_bytes = Counter(
            "isthmus_gateway_blob_sent_bytes_total", "Bytes of blobs sent over HTTP.", registry=registry
        )

    def hint(self, way: str) -> None:
        """Count a hint, given by a "trailer" or on a "stream"."""
        self._hints.labels(way).inc()

    def http(self, method: str, code: int) -> None:
        """Count an HTTP answer."""
        self._http.labels(method if method in ("GET", "HEAD") else "other", str(code)).inc()

    def unreachable(self, upstream: str) -> None:
        """Count a call that didn't reach its service."""
        self._unreachable.labels(upstream).inc()

    def watch(self, push: PushState, live: LiveStreams, feed: Feed | None, sizes: Sizes) -> None:
        """Show what these hold whenever the metrics are read."""
        for name, text, value in (
            ("push_index_devices", "Devices that should pull.", lambda: len(push.index)),
            ("push_index_bytes", "Memory of the push index.", lambda: push.index.memory_bytes),
            (
                "push_index_ready",
                "1 from the first snapshot on: before it no device is let in.",
                lambda: push.ready,
            ),
            ("revoked_devices", "Devices that are revoked.", lambda: push.index.revoked_count),
            ("held_watches", "Streams held open by idle devices.", lambda: len(push.hub)),
            ("held_bytes", "Bytes of the larger requests in hand.", lambda: sizes.held_bytes),
            ("open_streams", "Streams that pass through or end here.", lambda: len(live)),
            (
                "push_index_current",
                "1 while the push index follows the deployer.",
                lambda: 0 if feed is None else feed.current,
            ),
        ):
            Gauge(f"isthmus_gateway_{name}", text, registry=self._registry).set_function(value)

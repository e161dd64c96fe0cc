"""What is seen of a process: metrics for Prometheus, spans for OpenTelemetry.

Every served call is counted by service, method and status code, timed, and put into a trace. The W3C
`traceparent` that came with a call continues its trace; a call without one starts a trace, so that logs can
be joined by trace id even where no exporter is configured (then no SDK is loaded and no span is made).
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIServer

import grpc
import prometheus_client
from opentelemetry import context as otel_context
from opentelemetry import trace
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from libs.common.errors import Precondition
from libs.common.identity import Metadata
from libs.common.tracing import carry
from libs.common.tracing import extract as extract
from libs.common.tracing import inject as inject

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# Labels are bounded even when a handler serves any name: more methods than this share one label.
_METHODS_MAX = 1000


@dataclass(frozen=True, slots=True)
class MethodName:
    """A method as gRPC spells it, taken apart."""

    full: str
    service: str
    method: str

    @staticmethod
    def parse(full: str) -> "MethodName":
        """Return the parts of "/package.Service/Method"."""
        service, _, method = full.removeprefix("/").partition("/")
        return MethodName(full, service, method)


UNKNOWN_METHOD = MethodName("/unknown/unknown", "unknown", "unknown")


def new_registry() -> CollectorRegistry:
    """Return a registry that already knows this process's memory, CPU, files and garbage collection."""
    registry = CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)
    prometheus_client.PlatformCollector(registry=registry)
    prometheus_client.GCCollector(registry=registry)
    return registry


class _Series:
    """One method's numbers. `counts` are calls by the bucket that their time fell in, not summed up."""

    __slots__ = ("codes", "counts", "labels", "ok", "seconds")

    def __init__(self, method: MethodName) -> None:
        self.labels = (method.service, method.method)
        self.ok = 0
        self.codes: dict[grpc.StatusCode, int] = {}
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.seconds = 0.0


class _Calls(Collector):
    """Counts and times calls; for each number the client library's own take a lock and a dozen calls."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}
        self._unknown = _Series(UNKNOWN_METHOD)

    def record(self, method: MethodName, code: grpc.StatusCode, seconds: float) -> None:
        """Count one call."""
        series = self._series.get(method.full)
        if series is None:
            series = self._series_of(method)
        if code is grpc.StatusCode.OK:
            series.ok += 1
        else:
            series.codes[code] = series.codes.get(code, 0) + 1
        series.counts[bisect_left(_BUCKETS, seconds)] += 1
        series.seconds += seconds

    def _series_of(self, method: MethodName) -> _Series:
        if len(self._series) >= _METHODS_MAX:
            return self._unknown
        return self._series.setdefault(method.full, _Series(method))

    def describe(self) -> Iterable[prometheus_client.Metric]:
        """Return the metrics without their numbers."""
        labels = ("grpc_service", "grpc_method")
        yield CounterMetricFamily(
            "grpc_server_handled", "Calls that ended, by status code.", labels=(*labels, "grpc_code")
        )
        yield HistogramMetricFamily(
            "grpc_server_handling_seconds", "Time from the start of a call to its end.", labels=labels
        )

    def collect(self) -> Iterable[prometheus_client.Metric]:
        """Return the metrics; called on the thread that serves them, beside `record`."""
        handled, times = self.describe()
        for series in (*self._series.values(), self._unknown):
            codes = {grpc.StatusCode.OK: series.ok, **series.codes}
            for code, count in codes.items():
                if count:
                    handled.add_metric((*series.labels, code.name), count)  # type: ignore[attr-defined]
            counts = list(series.counts)
            if not any(counts):
                continue
            buckets = []
            total = 0
            for bound, count in zip((*_BUCKETS, float("inf")), counts, strict=True):
                total += count
                buckets.append((floatToGoString(bound), total))  # type: ignore[no-untyped-call]
            times.add_metric(series.labels, buckets, series.seconds)  # type: ignore[attr-defined]
        return handled, times


class Telemetry:
    """Counts, times and traces the calls of one process.

    Attributes:
        service: the process's name.
        registry: where its metrics are; a domain adds its own there.
        tracer: makes spans when an exporter is configured; None otherwise.
    """

    def __init__(
        self,
        service: str,
        registry: CollectorRegistry | None = None,
        tracer_provider: trace.TracerProvider | None = None,
    ) -> None:
        self.service = service
        self.registry = registry if registry is not None else new_registry()
        self._provider = tracer_provider
        self.tracer = tracer_provider.get_tracer("isthmus") if tracer_provider is not None else None
        self._calls = _Calls()
        self.registry.register(self._calls)

    def record(self, method: MethodName, code: grpc.StatusCode, seconds: float) -> None:
        """Count one call that ended with `code` after `seconds`; one thread's."""
        self._calls.record(method, code, seconds)

    def start_server_span(self, method: MethodName, metadata: Metadata) -> trace.Span | None:
        """Return the span of a call that came in, after making it the current one of this task.

        The caller ends it. It stays current until the task ends, as each call has a task of its own. Where no
        exporter is configured there is no span; the call's trace is current all the same.
        """
        if self.tracer is None:
            carry(metadata)
            return None
        parent = extract(metadata)
        span = self.tracer.start_span(
            method.full.removeprefix("/"),
            context=parent,
            kind=trace.SpanKind.SERVER,
            attributes={"rpc.system": "grpc", "rpc.service": method.service, "rpc.method": method.method},
        )
        otel_context.attach(trace.set_span_in_context(span, parent))
        return span

    @contextmanager
    def span(
        self, name: str, attributes: Mapping[str, str | int | float | bool] = {}
    ) -> Iterator[trace.Span]:
        """Wrap a piece of work in a span of its own; free when no exporter is configured."""
        if self.tracer is None:
            yield trace.get_current_span()
            return
        with self.tracer.start_as_current_span(name, attributes=attributes) as span:
            yield span

    def close(self) -> None:
        """Send what spans are left and stop the exporter; blocks for some seconds at most."""
        shutdown = getattr(self._provider, "shutdown", None)
        if shutdown is not None:
            shutdown()


def setup_tracing(service: str, otlp_endpoint: str) -> trace.TracerProvider | None:
    """Return a provider that sends spans to `otlp_endpoint` (host:port, OTLP over gRPC); None when it is "".

    The SDK and the exporter are only imported here: a device without tracing doesn't pay for them.

    Raises:
        Precondition: when they aren't installed.
    """
    if not otlp_endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise Precondition(
            f"traces can't be sent: {error.name} is not installed; install the extra 'cloud' or leave "
            "otlp_endpoint empty",
            reason="TRACING_NOT_INSTALLED",
        ) from None
    secure = otlp_endpoint.startswith("https://")
    provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=otlp_endpoint, insecure=not secure, timeout=5)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class MetricsServer:
    """The HTTP server of /metrics; `port` is the one it really has."""

    def __init__(self, server: WSGIServer, thread: Thread) -> None:
        self._server = server
        self._thread = thread
        self.port: int = server.server_port

    def close(self) -> None:
        """Stop serving and release the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def start_metrics_server(
    host: str,
    port: int,
    registry: CollectorRegistry,
    *,
    cert_file: Path | None = None,
    key_file: Path | None = None,
    client_ca_file: Path | None = None,
) -> MetricsServer | None:
    """Serve `registry` over HTTP on a thread of its own; port 0 takes a free one, a negative one none at all.

    With certificate files it speaks TLS, and with `client_ca_file` it asks scrapers for a certificate.

    Raises:
        Precondition: when the port is taken.
    """
    if port < 0:
        return None
    options: dict[str, Any] = {}
    if cert_file is not None and key_file is not None:
        options = {"certfile": str(cert_file), "keyfile": str(key_file)}
        if client_ca_file is not None:
            options |= {"client_cafile": str(client_ca_file), "client_auth_required": True}
    try:
        server, thread = prometheus_client.start_http_server(port, host, registry, **options)
    except OSError as error:
        raise Precondition(
            f"metrics_port: can't listen on {host}:{port} ({error.strerror}); free it or choose another",
            reason="PORT_TAKEN",
        ) from error
    return MetricsServer(server, thread)

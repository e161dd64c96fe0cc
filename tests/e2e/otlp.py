"""A collector of traces, as Jaeger or Tempo would be one: OTLP over gRPC."""

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans over OTLP, and keeps them by trace."""

    def __init__(self) -> None:
        self.traces: dict[bytes, list[tuple[str, trace_pb2.Span]]] = defaultdict(list)

    def Export(  # noqa: N802 - gRPC's name
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            (service,) = (
                a.value.string_value for a in resource.resource.attributes if a.key == "service.name"
            )
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                self.traces[span.trace_id].append((service, span))
        return trace_service_pb2.ExportTraceServiceResponse()

    def complete(self, *wanted: tuple[str, str]) -> list[tuple[str, trace_pb2.Span]] | None:
        """Return the spans of a trace that has all these, by service and the end of their name."""
        for spans in list(self.traces.values()):
            if all(
                any(s == service and span.name.endswith(name) for s, span in spans)
                for service, name in wanted
            ):
                return list(spans)
        return None

    def names(self) -> list[list[tuple[str, str]]]:
        """Return what has come, for a failure's text."""
        return [[(service, span.name) for service, span in spans] for spans in list(self.traces.values())]


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """Give a collector and its host:port."""
    collected = Collector()
    server = grpc.server(ThreadPoolExecutor(4))
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(collected, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collected, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()

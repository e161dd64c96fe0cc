import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2
from prometheus_client import CollectorRegistry

from libs.common import errors
from libs.common.echo import EchoService, EchoStub
from libs.common.logs import JsonFormatter
from libs.common.telemetry import Telemetry, setup_tracing
from libs.common.testing import running_server
from libs.common.tracing import current_ids


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans over OTLP, as a real collector does, and keeps them."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, trace_pb2.Span]] = []

    def Export(  # noqa: N802 - gRPC's name
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            names = [a.value.string_value for a in resource.resource.attributes if a.key == "service.name"]
            for scope in resource.scope_spans:
                self.spans.extend((names[0], span) for span in scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, service: str) -> list[trace_pb2.Span]:
        return [span for name, span in self.spans if name == service]


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    collected = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(collected, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collected, f"127.0.0.1:{port}"
    server.stop(None).wait()


def traced(service: str, endpoint: str) -> Telemetry:
    return Telemetry(service, CollectorRegistry(), setup_tracing(service, endpoint))


async def test_one_trace_runs_through_two_services(collector: tuple[Collector, str]) -> None:
    collected, endpoint = collector
    front, back = traced("front", endpoint), traced("back", endpoint)
    async with running_server(EchoService(), telemetry=back) as behind:
        stub = EchoStub(behind)

        async def act(value: str) -> str:
            with front.span("work"):
                return str((await stub.echo(StringValue(value=value))).value)

        async with running_server(EchoService(act), telemetry=front) as channel:
            await EchoStub(channel).echo(StringValue(value="x"))
            outer = EchoStub(channel).chat()
            await outer.write(StringValue(value="y"))
            await outer.read()
            await outer.done_writing()
            assert await outer.code() is grpc.StatusCode.OK
    for telemetry in (front, back):
        await asyncio.to_thread(telemetry.close)
    roots = [span for span in collected.named("front") if not span.parent_span_id]
    assert [span.name for span in roots] == [
        "isthmus.testing.v1.EchoService/Echo",
        "isthmus.testing.v1.EchoService/Chat",
    ]
    for root, served in zip(roots, collected.named("back"), strict=True):
        (work,) = [span for span in collected.named("front") if span.parent_span_id == root.span_id]
        assert served.trace_id == work.trace_id == root.trace_id
        assert served.parent_span_id == work.span_id
        assert served.kind == trace_pb2.Span.SPAN_KIND_SERVER


async def test_a_span_carries_the_status_of_its_call(collector: tuple[Collector, str]) -> None:
    async def act(value: str) -> str:
        raise errors.NotFound("no x")

    collected, endpoint = collector
    telemetry = traced("one", endpoint)
    async with running_server(EchoService(act), telemetry=telemetry) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await EchoStub(channel).echo(StringValue(value="x"))
    await asyncio.to_thread(telemetry.close)
    (span,) = collected.named("one")
    assert {a.key: a.value.int_value for a in span.attributes}["rpc.grpc.status_code"] == 5


async def test_without_an_exporter_logs_of_both_services_still_share_the_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[str] = []

    async def note(value: str) -> str:
        ids = current_ids()
        assert ids is not None
        seen.append(ids[0])
        record = logging.makeLogRecord({"msg": "x", "levelname": "INFO"})
        assert f'"trace_id": "{seen[-1]}"' in JsonFormatter("s").format(record)
        return value

    async with running_server(EchoService(note)) as behind:
        stub = EchoStub(behind)

        async def act(value: str) -> str:
            await note(value)
            return str((await stub.echo(StringValue(value=value))).value)

        async with running_server(EchoService(act)) as channel:
            for _ in range(2):
                await EchoStub(channel).echo(StringValue(value="x"))
    assert seen[0] == seen[1] != seen[2] == seen[3]
    assert "0" * 32 not in seen

import subprocess
import sys
import urllib.request

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from prometheus_client import CollectorRegistry

from libs.common.errors import Precondition
from libs.common.telemetry import (
    MethodName,
    Telemetry,
    extract,
    inject,
    new_registry,
    start_metrics_server,
)
from libs.common.testing import counted

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_calls_are_counted_by_service_method_and_code() -> None:
    telemetry = Telemetry("t", CollectorRegistry())
    name = MethodName.parse("/a.B/C")
    for code in (grpc.StatusCode.OK, grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND):
        telemetry.record(name, code, 0.002)
    assert counted(telemetry, "/a.B/C", "OK") == 2
    assert counted(telemetry, "/a.B/C", "NOT_FOUND") == 1
    labels = {"grpc_service": "a.B", "grpc_method": "C"}
    assert telemetry.registry.get_sample_value("grpc_server_handling_seconds_count", labels) == 3


def test_times_fall_in_buckets_up_to_their_bound() -> None:
    telemetry = Telemetry("t", CollectorRegistry())
    for seconds in (0.0005, 0.0006, 0.002, 99.0):
        telemetry.record(MethodName.parse("/a.B/C"), grpc.StatusCode.OK, seconds)

    def below(bound: str) -> float | None:
        labels = {"grpc_service": "a.B", "grpc_method": "C", "le": bound}
        return telemetry.registry.get_sample_value("grpc_server_handling_seconds_bucket", labels)

    assert [below(bound) for bound in ("0.0005", "0.001", "0.0025", "30.0", "+Inf")] == [1, 2, 3, 3, 4]
    labels = {"grpc_service": "a.B", "grpc_method": "C"}
    total = telemetry.registry.get_sample_value("grpc_server_handling_seconds_sum", labels)
    assert total == pytest.approx(99.0031)


def test_two_telemetries_cannot_share_a_registry() -> None:
    registry = CollectorRegistry()
    Telemetry("one", registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Telemetry("other", registry)


def test_labels_stay_bounded_whatever_is_called() -> None:
    telemetry = Telemetry("t", CollectorRegistry())
    for n in range(5000):
        telemetry.record(MethodName.parse(f"/a.B/M{n}"), grpc.StatusCode.OK, 0.0)
    samples = [
        s for m in telemetry.registry.collect() for s in m.samples if s.name == "grpc_server_handled_total"
    ]
    assert len(samples) <= 1001
    assert sum(sample.value for sample in samples) == 5000
    assert counted(telemetry, "/unknown/unknown", "OK") == 4000


def test_a_trace_goes_on_where_it_came_from() -> None:
    context = trace.get_current_span(extract([("x", "y"), ("traceparent", PARENT)])).get_span_context()
    assert f"{context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    with trace.use_span(trace.NonRecordingSpan(context)):
        assert dict(inject())["traceparent"] == PARENT
    assert inject() == []


@given(st.text(max_size=80) | st.binary(max_size=20))
def test_a_malformed_parent_starts_a_new_trace(value: str | bytes) -> None:
    context = trace.get_current_span(extract([("traceparent", value)])).get_span_context()
    assert not context.is_valid or context.is_remote


def test_metrics_are_served_and_the_port_is_released() -> None:
    registry = new_registry()
    Telemetry("t", registry).record(MethodName.parse("/a.B/C"), grpc.StatusCode.OK, 0.002)
    server = start_metrics_server("127.0.0.1", 0, registry)
    assert server is not None
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as response:
            body = response.read().decode()
        assert 'grpc_server_handled_total{grpc_code="OK",grpc_method="C",grpc_service="a.B"} 1.0' in body
        assert "process_resident_memory_bytes" in body
        with pytest.raises(Precondition, match=f"127.0.0.1:{server.port}"):
            start_metrics_server("127.0.0.1", server.port, registry)
    finally:
        server.close()
    again = start_metrics_server("127.0.0.1", server.port, registry)
    assert again is not None
    again.close()
    assert start_metrics_server("127.0.0.1", -1, registry) is None


def test_without_an_endpoint_nothing_is_traced_and_no_sdk_is_loaded() -> None:
    code = (
        "import sys, libs.common.server, libs.common.client, libs.common.telemetry as t;"
        "assert t.setup_tracing('x', '') is None; t.Telemetry('x').close();"
        "heavy = ('opentelemetry.sdk', 'sqlalchemy', 'alembic', 'numpy', 'aiohttp', 'click');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

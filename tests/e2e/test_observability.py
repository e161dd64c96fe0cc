"""What an operator sees of the running stack: metrics over HTTP, and one trace through all services."""

import re
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.local.stack import Stack
from tests.e2e.otlp import Collector, collecting
from tests.integration.system.agents import Agent, event
from tests.integration.system.world import WITHOUT_COMPUTE, Cloud, publish, running_stack, tenant, until

ECHO = """
def run(context):
    n = context.events[-1].fields["n"]
    context.send("out", {"n": n})
    return {"n": n}
"""


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, str]]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def stack(collector: tuple[Collector, str]) -> Iterator[Stack]:
    endpoint = collector[1]
    settings = {f"ISTHMUS_{name}_OTLP_ENDPOINT": endpoint for name in ("GATEWAY", "DEPLOYER", "TUNNEL")}
    with running_stack(without=WITHOUT_COMPUTE, **settings) as stack:
        yield stack


@pytest.fixture(scope="module")
def cloud(stack: Stack) -> Iterator[Cloud]:
    with tenant(stack, "seen") as cloud:
        yield cloud


@pytest.fixture(scope="module")
def agent(cloud: Cloud, collector: tuple[Collector, str]) -> Iterator[Agent]:
    """A device that has pulled a task and sent a frame."""
    echo = publish(cloud, "echo", "1", ECHO)
    flags = ("--otlp-endpoint", collector[1], "--metrics-port", "0")
    agent = Agent("device-seen-by-nobody", cloud.home / "d", cloud.gateway, cloud.enrolment_token(), *flags)
    agent.start()
    try:
        cloud.isthmus("release", "create", echo.key)
        until("the task to run", lambda: agent.runs() == {echo.key}, lambda: (agent.status(), agent.log))
        agent.send(event(1, "e1"), event(2, "e2"))
        until("frames to be there", lambda: agent.status().counters.acked_frame_count == 2, agent.status)
        yield agent
    finally:
        agent.stop()


def scrape(address: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return a page of metrics: samples by name."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as page:
        text = page.read().decode()
    found: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name].append((sample.labels, sample.value))
    return found


def metrics_addresses(stack: Stack) -> dict[str, str]:
    return {
        process.name: endpoint.address
        for process in stack.processes()
        for endpoint in process.endpoints
        if endpoint.what == "metrics"
    }


def test_every_service_counts_its_calls_by_method_and_code(stack: Stack, cloud: Cloud, agent: Agent) -> None:
    addresses = metrics_addresses(stack)
    assert set(addresses) == {"gateway", "deployer", "tunnel"}
    expected = {
        "gateway": ("isthmus.deployer.v1.TaskService", "PublishVersion"),
        "deployer": ("isthmus.deployer.v1.TaskService", "PublishVersion"),
        "tunnel": ("isthmus.tunnel.v1.ExportService", "Export"),
    }
    cloud.exported()
    for name, (service, method) in expected.items():
        labels = {"grpc_service": service, "grpc_method": method, "grpc_code": "OK"}
        samples = scrape(addresses[name])["grpc_server_handled_total"]
        assert [value for found, value in samples if found == labels and value >= 1], (name, samples)
        for what in ("process_resident_memory_bytes", "grpc_server_handling_seconds_bucket"):
            assert scrape(addresses[name])[what], (name, what)


def test_made_up_methods_make_no_labels(stack: Stack, cloud: Cloud) -> None:
    address = metrics_addresses(stack)["gateway"]
    with grpc.insecure_channel(stack.gateway) as channel:
        for number in range(50):
            for service in ("isthmus.deployer.v1.TaskService", f"made.up{number}.Service"):
                method: Any = channel.unary_unary(f"/{service}/Method{number}")
                with pytest.raises(grpc.RpcError):
                    method(b"", timeout=60)
    samples = scrape(address)["grpc_server_handled_total"]
    methods = {(labels["grpc_service"], labels["grpc_method"]) for labels, _ in samples}
    assert not [method for method in methods if "Method" in method[1] or "made.up" in method[0]]
    assert ("unknown", "unknown") in methods


def test_no_label_names_a_tenant_a_device_or_a_key(stack: Stack, cloud: Cloud, agent: Agent) -> None:
    (key,) = re.findall(r"isk_(\w{16})_", (cloud.home / "api.key").read_text())
    names = (agent.device_id, key, f"tenants/{cloud.tenant}", "ann", str(cloud.home))
    for service, address in metrics_addresses(stack).items():
        for name, samples in scrape(address).items():
            values = [value for labels, _ in samples for value in labels.values()]
            assert not [value for value in values for each in names if each in value], (service, name)
            assert len(samples) < 1500, (service, name, len(samples))


def test_a_command_is_one_trace_through_gateway_and_deployer(
    cloud: Cloud, collector: tuple[Collector, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    collected, _ = collector
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    monkeypatch.setenv("TRACEPARENT", f"00-{trace_id}-00f067aa0ba902b7-01")
    cloud.isthmus("task", "list")
    name = "isthmus.deployer.v1.TaskService/ListTasks"
    spans = collected.traces[bytes.fromhex(trace_id)]
    until("the trace of the pipeline", lambda: len(spans) >= 2, collected.names)
    by_service = {service: span for service, span in spans}
    assert {service: span.name for service, span in spans} == {"gateway": name, "deployer": name}
    assert by_service["gateway"].parent_span_id.hex() == "00f067aa0ba902b7"
    assert by_service["deployer"].parent_span_id == by_service["gateway"].span_id


def test_each_command_is_a_trace_of_its_own(cloud: Cloud, collector: tuple[Collector, str]) -> None:
    collected, _ = collector
    name = "ReleaseService/ListReleases"
    for _ in range(2):
        cloud.isthmus("release", "list")

    def found() -> bool:
        traces = [
            trace_id
            for trace_id, spans in list(collected.traces.items())
            if {service for service, span in list(spans) if span.name.endswith(name)}
            == {"gateway", "deployer"}
        ]
        return len(traces) == 2

    until("two traces", found, collected.names)


def test_a_pull_is_one_trace_from_the_device_to_the_deployer(
    agent: Agent, collector: tuple[Collector, str]
) -> None:
    collected, _ = collector
    plan, read = "PullService/Plan", "BlobService/ReadBlob"
    wanted = [("device_agent", "pull")]
    wanted += [(service, call) for service in ("gateway", "deployer") for call in (plan, read)]
    spans = until("the trace of a pull", lambda: collected.complete(*wanted), collected.names)
    assert spans is not None
    (pull,) = (span for service, span in spans if service == "device_agent" and span.name == "pull")
    assert not pull.parent_span_id
    at_the_door = {span.span_id: span for service, span in spans if service == "gateway"}
    assert {span.parent_span_id for span in at_the_door.values()} == {pull.span_id}
    behind = [span for service, span in spans if service == "deployer"]
    assert behind
    assert {span.parent_span_id for span in behind} <= set(at_the_door)


def test_a_log_line_has_the_trace_id_of_its_call(
    stack: Stack, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    monkeypatch.setenv("TRACEPARENT", f"00-{trace_id}-b7ad6b7169203331-01")
    with pytest.raises(Exception, match="no-such-task"):
        cloud.isthmus("task", "get", "no-such-task@1")
    # An expected error is logged where it arose, with the trace that its caller knows.
    until(
        "the deployer's log to name the trace",
        lambda: any(trace_id in line for line in stack.log_tail("deployer", 200)),
        lambda: stack.log_tail("deployer", 20),
    )

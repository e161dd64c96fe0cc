"""When a runner counts as healthy: it says that it is attached, and the scheduler that its node is ready."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from deploy.local import health, topology
from deploy.local.layout import Layout, Options
from deploy.local.topology import Endpoint, Process
from isthmus.scheduler.v1 import object_pb2
from libs.cli.testing import KEY, FakeCloud, fake_cloud


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with fake_cloud() as cloud:
        node = cloud.nodes["local"] = object_pb2.Node()
        node.status.state = object_pb2.NodeStatus.STATE_READY
        yield cloud


@pytest.fixture
def attached() -> Iterator[tuple[Gauge, int]]:
    """What a runner says of itself, and where."""
    registry = CollectorRegistry()
    gauge = Gauge("isthmus_scheduler_runner_attached", "Whether.", registry=registry)
    gauge.set(1)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield gauge, server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def at(name: str, port: int) -> Process:
    found = {each.name: each for each in topology.services(Layout(Path("/h")), Options(), {})}[name]
    first = Endpoint("", port, "http" if found.node else "grpc")
    return dataclasses.replace(found, endpoints=(first, *found.endpoints[1:]))


def test_a_runner_is_healthy_when_both_say_so(cloud: FakeCloud, attached: tuple[Gauge, int]) -> None:
    gauge, port = attached
    gateway = at("gateway", int(cloud.target.rpartition(":")[2]))

    def fault() -> str:
        return health.fault_of_runner(at("runner", port), gateway, Path("none"), KEY)

    assert fault() == ""
    gauge.set(0)
    # The scheduler takes a while to find that out.
    assert fault() == "it doesn't say 'isthmus_scheduler_runner_attached 1.0'"
    gauge.set(1)
    cloud.nodes["local"].status.state = object_pb2.NodeStatus.STATE_LOST
    assert fault() == "its node is LOST"
    del cloud.nodes["local"]
    assert fault() == "NOT_FOUND: nodes/local: not found"


def test_a_runner_that_does_not_answer_is_unhealthy(cloud: FakeCloud) -> None:
    gateway = at("gateway", int(cloud.target.rpartition(":")[2]))
    assert "GET /metrics" in health.fault_of_runner(at("runner", 1), gateway, Path("none"), KEY)

"""Whether a process of the stack serves.

It does when gRPC's health service says so, or an HTTP page answers 200; a runner, which serves nobody, when
it is attached and the scheduler says that its node is ready.
"""

import contextlib
import http.client
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.local.topology import HOST, Process
from isthmus.scheduler.v1 import object_pb2, scheduler_pb2, scheduler_pb2_grpc

ANSWER_S = 2.0
"""Seconds within which a healthy process answers a probe."""
_ATTACHED = b"\nisthmus_scheduler_runner_attached 1.0\n"
_MOST_BYTES = 1024 * 1024


@contextlib.contextmanager
def _channel(port: int, ca_file: Path | None) -> Iterator[grpc.Channel]:
    address = f"{HOST}:{port}"
    # A pooled connection in backoff from before a restart would report a service down that is up again.
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
    if ca_file is None:
        channel = grpc.insecure_channel(address, options)
    else:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca_file.read_bytes()), options)
    with channel:
        yield channel


def _bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),) if key else ()


def _said(error: grpc.RpcError) -> str:
    status: Any = error
    return f"{status.code().name}: {status.details()}"


def _grpc(port: int, ca_file: Path | None, service: str = "", key: str = "") -> str:
    request = health_pb2.HealthCheckRequest(service=service)
    try:
        with _channel(port, ca_file) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(request, timeout=ANSWER_S, metadata=_bearer(key))
    except grpc.RpcError as error:
        return _said(error)
    states = health_pb2.HealthCheckResponse
    return "" if answer.status == states.SERVING else states.ServingStatus.Name(answer.status)


def fault_of_node(node: str, gateway: Process, ca_file: Path, key: str) -> str:
    """Return why a node isn't ready, as the scheduler says behind the gateway; "" when it is."""
    door = gateway.endpoints[0]
    request = scheduler_pb2.GetNodeRequest(name=f"nodes/{node}")
    try:
        with _channel(door.port, ca_file if door.scheme == "grpcs" else None) as channel:
            stub = scheduler_pb2_grpc.NodeServiceStub(channel)
            found = stub.GetNode(request, timeout=ANSWER_S, metadata=_bearer(key)).node
    except grpc.RpcError as error:
        return _said(error)
    states = object_pb2.NodeStatus
    if found.status.state == states.STATE_READY:
        return ""
    return f"its node is {states.State.Name(found.status.state).removeprefix('STATE_')}"


def fault_of_runner(runner: Process, gateway: Process, ca_file: Path, key: str) -> str:
    """Return why a runner is of no use yet, or "" when it is attached and its node is ready.

    A node counts as ready for a while after its runner was killed, so that the runner itself is asked first.
    """
    reason = _http(runner.endpoints[0].port, "/metrics", _ATTACHED)
    return reason or fault_of_node(runner.node, gateway, ca_file, key)


def _http(port: int, path: str, holds: bytes = b"") -> str:
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        status, text = answer.status, answer.read(_MOST_BYTES) if holds else b""
    except (OSError, http.client.HTTPException) as error:
        return f"GET {path}: {error}"
    finally:
        connection.close()
    if status != 200:
        return f"GET {path}: HTTP {status}"
    return "" if holds in text else f"it doesn't say {holds.decode().strip()!r}"


def fault(process: Process, ca_file: Path) -> str:
    """Return why a process that listens doesn't serve, or "" when it does."""
    endpoint = process.endpoints[0]
    if process.probe:
        return _http(endpoint.port, process.probe)
    return _grpc(endpoint.port, ca_file if endpoint.scheme == "grpcs" else None)


def fault_at_the_door(gateway: Process, services: Iterable[Process], ca_file: Path, key: str) -> str:
    """Return which of the services that serve the gateway doesn't reach, and why; "" when it reaches all.

    A service that has just come up is reached a moment later: who was refused before waits a little until
    he knocks again.

    Args:
        gateway: the process that is asked.
        services: those behind it; one that doesn't serve is left out.
        ca_file: certificate of the development authority.
        key: an API key; strangers learn nothing of what is behind the door.
    """
    door = gateway.endpoints[0]
    for service in services:
        if fault(service, ca_file):
            continue
        reason = _grpc(door.port, ca_file if door.scheme == "grpcs" else None, service.name, key)
        if reason:
            return f"it doesn't reach {service.name}: {reason}"
    return ""

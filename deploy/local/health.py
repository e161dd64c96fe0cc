"""Whether a process of the stack serves: gRPC's health service, or an HTTP page that answers 200."""

import http.client
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.local.topology import HOST, Process

ANSWER_S = 2.0
"""Seconds within which a healthy process answers a probe."""


def _grpc(port: int, ca_file: Path | None) -> str:
    address = f"{HOST}:{port}"
    # A pooled connection in backoff from before a restart would report a service down that is up again.
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
    if ca_file is None:
        channel = grpc.insecure_channel(address, options)
    else:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca_file.read_bytes()), options)
    try:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_S)
    except grpc.RpcError as error:
        status: Any = error
        return f"{status.code().name}: {status.details()}"
    finally:
        channel.close()
    serving = health_pb2.HealthCheckResponse.SERVING
    return (
        "" if answer.status == serving else health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    )


def _http(port: int, path: str) -> str:
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"GET {path}: {error}"
    finally:
        connection.close()
    return "" if status == 200 else f"GET {path}: HTTP {status}"


def fault(process: Process, ca_file: Path) -> str:
    """Return why the process doesn't serve, or "" when it does."""
    endpoint = process.endpoints[0]
    if process.probe:
        return _http(endpoint.port, process.probe)
    return _grpc(endpoint.port, ca_file if endpoint.scheme == "grpcs" else None)

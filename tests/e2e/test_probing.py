"""Probing with the real grpcurl: with a key it lists and calls every service through the gateway, without one
nothing."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.layout import ROOT
from deploy.local.stack import Stack
from tests.integration.system.world import running_stack

GRPCURL = Path(sys.executable).with_name("grpcurl")
SERVICES = {
    "grpc.health.v1.Health",
    *(f"isthmus.gateway.v1.{name}Service" for name in ("Tenant", "Key", "Push")),
    *(
        f"isthmus.deployer.v1.{name}Service"
        for name in ("Audit", "Blob", "Device", "Enrolment", "Pull", "Release", "Task", "Trust")
    ),
    *(f"isthmus.tunnel.v1.{name}Service" for name in ("Tunnel", "Export")),
    *(f"isthmus.scheduler.v1.{name}Service" for name in ("Job", "Node", "Queue")),
    "isthmus.engine.v1.EngineService",
}
CALLS = {
    "isthmus.gateway.v1.TenantService/ListTenants": {},
    "isthmus.gateway.v1.KeyService/ListKeys": {"parent": "tenants/default"},
    "isthmus.deployer.v1.TaskService/ListTasks": {"parent": "tenants/default"},
    "isthmus.deployer.v1.ReleaseService/ListReleases": {"parent": "tenants/default"},
    "isthmus.deployer.v1.DeviceService/ListDevices": {"parent": "tenants/default"},
    "isthmus.deployer.v1.AuditService/ListAuditEntries": {"parent": "tenants/default"},
    "isthmus.deployer.v1.TrustService/GetDeployerKeys": {},
    "isthmus.tunnel.v1.ExportService/Export": {"parent": "tenants/default"},
    "isthmus.scheduler.v1.JobService/ListJobs": {"parent": "tenants/default"},
    "isthmus.scheduler.v1.QueueService/ListQueues": {"parent": "tenants/default"},
    "isthmus.scheduler.v1.NodeService/ListNodes": {},
    "isthmus.engine.v1.EngineService/ListOperators": {},
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as stack:
        yield stack


def grpcurl(stack: Stack, *arguments: str, key: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run it with the operator's key, or with another one; "" sends none."""
    bearer = stack.admin_key if key is None else key
    header = ["-H", f"authorization: Bearer {bearer}"] if bearer else []
    return subprocess.run(
        [GRPCURL, "-plaintext", *header, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_it_lists_every_service_behind_the_door(stack: Stack) -> None:
    listed = grpcurl(stack, stack.gateway, "list")
    assert listed.returncode == 0, listed.stderr
    assert set(listed.stdout.split()) >= SERVICES


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_it_describes_each_service_and_its_messages(stack: Stack, service: str) -> None:
    described = grpcurl(stack, stack.gateway, "describe", service)
    assert described.returncode == 0, described.stderr
    assert "rpc " in described.stdout
    request = described.stdout.partition("( ")[2].removeprefix("stream ").split()[0].lstrip(".")
    message = grpcurl(stack, stack.gateway, "describe", request)
    assert message.returncode == 0, message.stderr
    assert f"{request} is a message" in message.stdout


@pytest.mark.parametrize("method", sorted(CALLS))
def test_it_calls_each_service(stack: Stack, method: str) -> None:
    called = grpcurl(stack, "-d", json.dumps(CALLS[method]), stack.gateway, method)
    assert called.returncode == 0, called.stderr
    assert method.endswith("Export") or isinstance(json.loads(called.stdout), dict)


def test_what_only_runners_call_is_not_there(stack: Stack) -> None:
    service = "isthmus.scheduler.v1.RunnerService"
    assert service not in grpcurl(stack, stack.gateway, "list").stdout.split()
    protos = ["-import-path", "protos", "-proto", "isthmus/scheduler/v1/runner.proto"]
    for method in ("Attach", "AppendLog"):
        called = grpcurl(stack, *protos, "-d", "{}", stack.gateway, f"{service}/{method}")
        assert "Unimplemented" in called.stderr, called.stdout + called.stderr


def test_it_asks_for_the_health_of_each_service(stack: Stack) -> None:
    for service in ("", "gateway", "deployer", "tunnel", "engine", "scheduler"):
        called = grpcurl(
            stack, "-d", json.dumps({"service": service}), stack.gateway, "grpc.health.v1.Health/Check"
        )
        assert json.loads(called.stdout) == {"status": "SERVING"}, called.stderr


def test_it_writes_and_reads_again(stack: Stack) -> None:
    made = grpcurl(
        stack,
        "-d",
        json.dumps({"parent": "tenants/default", "taskId": "probed", "description": "by hand"}),
        stack.gateway,
        "isthmus.deployer.v1.TaskService/CreateTask",
    )
    assert made.returncode == 0, made.stderr
    read = grpcurl(
        stack,
        "-d",
        json.dumps({"name": "tenants/default/tasks/probed"}),
        stack.gateway,
        "isthmus.deployer.v1.TaskService/GetTask",
    )
    assert json.loads(read.stdout)["task"]["description"] == "by hand"


@pytest.mark.parametrize(
    "key", ["", "nonsense", "isk_" + "a" * 16 + "_" + "0" * 64], ids=["none", "bad", "wrong"]
)
def test_without_a_good_key_it_is_refused(stack: Stack, key: str) -> None:
    listed = grpcurl(stack, stack.gateway, "list", key=key)
    assert listed.returncode != 0
    assert "Unauthenticated" in listed.stderr
    # Whoever has the protos needs no reflection, and is refused all the same.
    protos = ["-import-path", "protos", "-proto", "isthmus/gateway/v1/gateway.proto"]
    for proto in ("task", "release", "device", "audit", "trust_service"):
        protos += ["-proto", f"isthmus/deployer/v1/{proto}.proto"]
    for proto in ("tunnel/v1/tunnel", "scheduler/v1/scheduler", "engine/v1/engine"):
        protos += ["-proto", f"isthmus/{proto}.proto"]
    for method, request in CALLS.items():
        called = grpcurl(stack, *protos, "-d", json.dumps(request), stack.gateway, method, key=key)
        assert called.returncode != 0
        assert "Unauthenticated" in called.stderr, f"{method}: {called.stderr}"


def test_a_wrong_field_is_named_by_grpcurl_and_a_wrong_value_by_us(stack: Stack) -> None:
    method = "isthmus.deployer.v1.TaskService/ListTasks"
    field = grpcurl(stack, "-d", '{"parnt": "tenants/default"}', stack.gateway, method)
    assert field.returncode != 0
    assert "parnt" in field.stderr
    value = grpcurl(stack, "-d", '{"parent": "tenant/default"}', stack.gateway, method)
    assert "InvalidArgument" in value.stderr
    assert "tenant/default" in value.stderr

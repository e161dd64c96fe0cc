"""The stack with the real services: what a newcomer does after `make up`, and kill -9 of each service."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.local.ports import free_offset
from deploy.local.stack import Stack
from isthmus.client import connect
from isthmus.deployer.v1 import task_pb2, task_pb2_grpc
from isthmus.gateway.v1 import gateway_pb2, gateway_pb2_grpc

WITHOUT = ("engine", "grafana", "prometheus", "scheduler", "serving")
GRPCURL = Path(sys.executable).with_name("grpcurl")
PARENT = "tenants/default"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    # A space in the path must trouble nobody.
    home = tmp_path_factory.mktemp("stack") / "my home"
    with Stack(home, free_offset(Stack(home).ports()), without=WITHOUT) as stack:
        stack.up()
        yield stack


@pytest.fixture
def channel(stack: Stack) -> Iterator[grpc.Channel]:
    with connect(stack.gateway, stack.admin_key, plaintext=True) as channel:
        yield channel


def grpcurl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([GRPCURL, *arguments], capture_output=True, text=True, timeout=60)


def with_key(stack: Stack) -> list[str]:
    return ["-plaintext", "-H", f"authorization: Bearer {stack.admin_key}"]


def patiently(call: Callable[[], Any]) -> Any:
    """Return what the call returns once the service behind it is back."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:  # type: ignore[attr-defined]
                raise
        time.sleep(0.1)


def test_all_of_it_is_healthy(stack: Stack) -> None:
    assert [(row.name, row.state, row.health) for row in stack.status()] == [
        ("deployer", "running", ""),
        ("tunnel", "running", ""),
        ("simulator", "running", ""),
        ("gateway", "running", ""),
    ]


def test_grpcurl_lists_and_calls_through_the_gateway_with_a_key(stack: Stack) -> None:
    listed = grpcurl(*with_key(stack), stack.gateway, "list")
    assert listed.returncode == 0, listed.stderr
    assert {"isthmus.gateway.v1.KeyService", "isthmus.deployer.v1.TaskService"} <= set(listed.stdout.split())
    described = grpcurl(*with_key(stack), stack.gateway, "describe", "isthmus.deployer.v1.TaskService")
    assert "ListTasksRequest" in described.stdout, described.stderr
    for method in ("isthmus.gateway.v1.KeyService/ListKeys", "isthmus.deployer.v1.TaskService/ListTasks"):
        called = grpcurl(*with_key(stack), "-d", json.dumps({"parent": PARENT}), stack.gateway, method)
        assert called.returncode == 0, called.stderr
        assert isinstance(json.loads(called.stdout), dict)


@pytest.mark.parametrize("header", [[], ["-H", "authorization: Bearer isk_wrong_key"]], ids=["none", "wrong"])
def test_grpcurl_is_refused_without_a_good_key(stack: Stack, header: list[str]) -> None:
    listed = grpcurl("-plaintext", *header, stack.gateway, "list")
    assert listed.returncode != 0
    assert "Unauthenticated" in listed.stderr
    method = "isthmus.deployer.v1.TaskService/ListTasks"
    protos = ["-import-path", "protos", "-proto", "isthmus/deployer/v1/task.proto"]
    called = grpcurl(
        "-plaintext", *header, *protos, "-d", json.dumps({"parent": PARENT}), stack.gateway, method
    )
    assert called.returncode != 0
    assert "Unauthenticated" in called.stderr


def test_the_services_themselves_take_no_callers_key(stack: Stack) -> None:
    # Behind the door only identity tokens count, and the gateway alone vouches for people.
    with connect(stack.endpoints["deployer"], stack.admin_key, plaintext=True) as channel:
        stub = task_pb2_grpc.TaskServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListTasks(task_pb2.ListTasksRequest(parent=PARENT))
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]


def test_the_isthmus_command_finds_the_stack(stack: Stack) -> None:
    environment = {**os.environ, "ISTHMUS_HOME": str(stack.layout.home)}
    command = [Path(sys.executable).with_name("isthmus"), "--json", "status"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr + done.stdout
    assert {name: answer["state"] for name, answer in json.loads(done.stdout).items()} == {
        "gateway": "SERVING",
        "deployer": "SERVING",
        "tunnel": "SERVING",
    }


@pytest.mark.parametrize("service", ["gateway", "deployer", "tunnel", "simulator"])
def test_a_killed_service_comes_back_with_what_it_had_acknowledged(
    stack: Stack, channel: grpc.Channel, service: str
) -> None:
    tasks, keys = task_pb2_grpc.TaskServiceStub(channel), gateway_pb2_grpc.KeyServiceStub(channel)
    task = tasks.CreateTask(
        task_pb2.CreateTaskRequest(parent=PARENT, task_id=f"before-{service}", request_id=f"a-{service}")
    ).task
    key = keys.CreateKey(
        gateway_pb2.CreateKeyRequest(parent=PARENT, display_name=f"before {service}", scopes=["tasks:read"])
    )
    stack.kill(service)
    stack.wait_healthy(service)
    assert task.name in {
        found.name
        for found in patiently(lambda: tasks.ListTasks(task_pb2.ListTasksRequest(parent=PARENT))).tasks
    }
    with connect(stack.gateway, key.secret, plaintext=True) as other:
        stub = task_pb2_grpc.TaskServiceStub(other)
        patiently(lambda: stub.ListTasks(task_pb2.ListTasksRequest(parent=PARENT)))
    assert next(row.restarts for row in stack.status() if row.name == service) >= 1


def test_a_restart_of_everything_keeps_everything(stack: Stack, channel: grpc.Channel) -> None:
    tasks = task_pb2_grpc.TaskServiceStub(channel)
    tasks.CreateTask(task_pb2.CreateTaskRequest(parent=PARENT, task_id="kept", request_id="kept"))
    key = stack.admin_key
    assert stack.down()
    stack.up()
    assert stack.admin_key == key
    found = patiently(lambda: tasks.ListTasks(task_pb2.ListTasksRequest(parent=PARENT)))
    assert f"{PARENT}/tasks/kept" in {task.name for task in found.tasks}


def test_the_logs_hold_no_key(stack: Stack) -> None:
    texts = [path.read_text("utf-8") for path in stack.log_files()]
    assert all(
        stack.admin_key not in text and stack.admin_key.rpartition("_")[2] not in text for text in texts
    )
    assert any('"service": "gateway"' in text for text in texts)


def test_a_stack_with_tls(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Stack(home, free_offset(Stack(home).ports()), without=WITHOUT, tls=True) as stack:
        stack.up()
        assert {row.health for row in stack.status()} == {""}
        with connect(stack.gateway, stack.admin_key, ca_file=stack.ca_file) as channel:
            stub = task_pb2_grpc.TaskServiceStub(channel)
            patiently(lambda: stub.ListTasks(task_pb2.ListTasksRequest(parent=PARENT)))
        listed = grpcurl(
            "-cacert",
            str(stack.ca_file),
            "-H",
            f"authorization: Bearer {stack.admin_key}",
            stack.gateway,
            "list",
        )
        assert "isthmus.deployer.v1.TaskService" in listed.stdout, listed.stderr
        assert grpcurl("-plaintext", "-connect-timeout", "5", stack.gateway, "list").returncode != 0

"""A real stack with real agents: what the tests of the whole system kill, cut and abuse."""

import contextlib
import dataclasses
import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc

from deploy.local.ports import free_offset
from deploy.local.stack import Stack
from isthmus.client import connect
from isthmus.deployer.v1 import device_pb2, device_pb2_grpc, release_pb2, release_pb2_grpc
from libs.cli.main import main
from libs.trust.digests import sha256_of

WITHOUT = ("grafana", "prometheus")
WITHOUT_COMPUTE = (*WITHOUT, "engine", "scheduler", "serving", "simulator")
PATIENCE_S = 90.0
"""Long enough for any machine; a test that waits so long has failed."""
UNAVAILABLE = 5
"""Exit status of an `isthmus` command that found nobody home."""

T = TypeVar("T")


def until(what: str, done: Callable[[], T | None], detail: Callable[[], object] = lambda: "") -> T:
    """Return what `done` returns once that is true; fail, saying what was waited for, when it never is."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := done()):
        if time.monotonic() > deadline:
            raise AssertionError(f"gave up waiting for {what}: {detail()}")
        time.sleep(0.05)
    return found


def patiently(call: Callable[[], T]) -> T:
    """Return what an idempotent call returns once the services behind it are back."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if code_of(error) is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    """Return the status code of a call that failed."""
    assert isinstance(error, grpc.Call)
    code: grpc.StatusCode = error.code()
    return code


@contextmanager
def running_stack(*, without: Sequence[str] = WITHOUT, **settings: str) -> Iterator[Stack]:
    """Give a stack of its own, on free ports, in a folder with a short path; it is gone afterwards."""
    home = Path(tempfile.mkdtemp(prefix="ist-", dir="/tmp"))
    try:
        offset = free_offset(Stack(home).ports())
        environ = {**os.environ, **settings}
        with Stack(home / "s", offset, without=without, environ=environ) as stack:
            stack.up()
            yield stack
    finally:
        shutil.rmtree(home, ignore_errors=True)


class CommandFailed(Exception):
    """An `isthmus` command ended with another status than 0."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        self.status = status
        self.error = error
        super().__init__(f"exit status {status}: {error}")


@dataclasses.dataclass(slots=True)
class Cloud:
    """A tenant's way to the cloud: the command, and the stubs for what is asked often."""

    gateway: str
    tenant: str
    home: Path
    """For keys; the tenant's API key lies in its `api.key`."""
    channel: grpc.Channel

    @property
    def key(self) -> str:
        """The tenant's API key, which may do all."""
        return (self.home / "api.key").read_text("utf-8").strip()

    def isthmus(self, *arguments: str) -> list[Any]:
        """Run a command and return the JSON values that it printed.

        Raises:
            CommandFailed: with what it said.
        """
        flags = ["--gateway", self.gateway, "--tenant", self.tenant, "--json"]
        flags += ["--api-key-file", str(self.home / "api.key")]
        return run_isthmus(*flags, *arguments)

    def release(self, name: str) -> release_pb2.Release:
        """Return a release as it stands; waits for services that are away."""
        stub = release_pb2_grpc.ReleaseServiceStub(self.channel)
        return patiently(lambda: stub.GetRelease(release_pb2.GetReleaseRequest(name=name)).release)

    def devices(self) -> dict[str, device_pb2.Device]:
        """Return the tenant's devices by id; waits for services that are away."""
        stub = device_pb2_grpc.DeviceServiceStub(self.channel)
        request = device_pb2.ListDevicesRequest(parent=f"tenants/{self.tenant}")
        found = patiently(lambda: stub.ListDevices(request).devices)
        return {device.name.rpartition("/")[2]: device for device in found}

    def exported(self) -> list[dict[str, Any]]:
        """Return what the tunnel has of the tenant, tombstones included; waits for one that is away."""
        found: list[dict[str, Any]] = []

        def done() -> bool:
            nonlocal found
            try:
                found = self.isthmus("tunnel", "export", "--tombstones")
            except CommandFailed as error:
                if error.status != UNAVAILABLE:
                    raise
                return False
            return True

        until("the tunnel to answer", done)
        return found

    def enrolment_token(self, uses: int = 1) -> str:
        """Return a token with which so many devices can enrol."""
        (made,) = self.isthmus("device", "token", "--uses", str(uses))
        token: str = made["token"]
        return token


def run_isthmus(*arguments: str) -> list[Any]:
    """Run an `isthmus` command in this process; return the JSON that it printed, value by value."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(arguments))
    if status:
        raise CommandFailed(status, json.loads(err.getvalue().strip().splitlines()[-1])["error"])
    return list(_objects(out.getvalue()))


def _objects(text: str) -> Iterator[Any]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        value, at = decoder.raw_decode(text, at)
        yield value


@contextmanager
def tenant(stack: Stack, name: str) -> Iterator[Cloud]:
    """Give a new tenant with a key that may do all, a trust root and an author key."""
    home = stack.layout.home.parent / name
    home.mkdir(mode=0o700)
    admin = ["--gateway", stack.gateway, "--api-key-file", str(stack.admin_key_file), "--json"]
    run_isthmus(*admin, "tenant", "create", name)
    run_isthmus(*admin, "--tenant", name, "key", "create", "--scope", "*", "--out", str(home / "api.key"))
    with connect(stack.gateway, (home / "api.key").read_text(), plaintext=True) as channel:
        cloud = Cloud(stack.gateway, name, home, channel)
        cloud.isthmus("trust", "init", "--keys", str(home / "keys"))
        yield cloud


@dataclasses.dataclass(frozen=True, slots=True)
class Published:
    """A published version, and what its files must be."""

    key: str
    """`task@version`."""
    digests: Mapping[str, str]
    """By path in the version's folder."""


def publish(
    cloud: Cloud, task: str, version: str, source: str, *, resource: bytes = b"", **changes: object
) -> Published:
    """Publish a version whose function `run` is called for each event "tick".

    Args:
        cloud: where to.
        task: its id.
        version: its version.
        source: the script.
        resource: content of a file `data.bin`, if any.
        changes: members of task.json in place of the usual ones.
    """
    folder = cloud.home / f"{task}-{version}"
    folder.mkdir()
    files = {"run.py": source.encode()}
    members: dict[str, object] = {
        "task": task,
        "version": version,
        "phases": [{"kind": "post", "script": "run.py", "entry_point": "run"}],
        "trigger": {"sequence": [{"event": "tick"}]},
        "limits": {"wall_time": "20s", "pending_count": 4096},
        "uploads": {"out": {"n": "number"}},
        "health": {"confirm_run_count": 2, "confirm_idle_time": "1h", "max_failure_count": 2},
    }
    if resource:
        files["data.bin"] = resource
        members["resources"] = [{"path": "data.bin", "sharing": "exclusive"}]
    for path, content in files.items():
        (folder / path).write_bytes(content)
    (folder / "task.json").write_text(json.dumps(members | changes))
    cloud.isthmus("task", "publish", str(folder), "--keys", str(cloud.home / "keys"))
    return Published(f"{task}@{version}", {path: sha256_of(content) for path, content in files.items()})

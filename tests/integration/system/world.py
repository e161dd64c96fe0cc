"""A real stack with real agents: what the tests of the whole system kill, cut and abuse."""

import contextlib
import dataclasses
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc

from deploy.local.ports import free_offset
from deploy.local.stack import Stack
from isthmus.client import connect
from isthmus.deployer.v1 import device_pb2, device_pb2_grpc, release_pb2, release_pb2_grpc
from isthmus.device_agent.v1 import device_agent_pb2, device_agent_pb2_grpc
from libs.cli.main import main
from libs.trust.digests import sha256_of

WITHOUT = ("grafana", "prometheus")
RUNNING = ("ACTIVE", "CONFIRMED")
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
def running_stack(**settings: str) -> Iterator[Stack]:
    """Give a stack of its own, on free ports, in a folder with a short path; it is gone afterwards."""
    home = Path(tempfile.mkdtemp(prefix="ist-", dir="/tmp"))
    try:
        offset = free_offset(Stack(home).ports())
        environ = {**os.environ, **settings}
        with Stack(home / "s", offset, without=WITHOUT, environ=environ) as stack:
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

    def isthmus(self, *arguments: str) -> list[dict[str, Any]]:
        """Run a command and return the JSON objects that it printed.

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


def run_isthmus(*arguments: str) -> list[dict[str, Any]]:
    """Run an `isthmus` command in this process; return the JSON that it printed, object by object."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(arguments))
    if status:
        raise CommandFailed(status, json.loads(err.getvalue().strip().splitlines()[-1])["error"])
    return list(_objects(out.getvalue()))


def _objects(text: str) -> Iterator[dict[str, Any]]:
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


class Agent:
    """A device agent in a process of its own."""

    def __init__(self, device_id: str, home: Path, gateway: str, token: str, *flags: str) -> None:
        self.device_id = device_id
        self.home = home
        self._command = [sys.executable, "-m", "services.device_agent", "--state-dir", str(home / "state")]
        self._command += ["--socket-path", str(home / "a.sock"), "--gateway-target", gateway, "--plaintext"]
        self._command += ["--device-id", device_id, "--vm-workers", "1", "--disk-reserve-bytes", "0"]
        self._command += ["--retry-initial-s", "0.2", "--retry-max-s", "1", *flags]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")}
        self._environ = {**clean, "ISTHMUS_DEVICE_AGENT_ENROLMENT_TOKEN": token}
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: grpc.Channel | None = None
        home.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> str:
        """The end of what it logged."""
        path = self.home / "log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def start(self) -> None:
        """Start the process."""
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self._environ, stdout=log, stderr=log)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it in order, if it runs."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def exit_status(self) -> int | None:
        """Return the process's exit status; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    @property
    def stub(self) -> device_agent_pb2_grpc.AgentServiceStub:
        """The agent's API, as an app on the device sees it."""
        if self._channel is None:
            options = (("grpc.max_reconnect_backoff_ms", 500), ("grpc.use_local_subchannel_pool", 1))
            self._channel = grpc.insecure_channel(f"unix:{self.home / 'a.sock'}", options)
        return device_agent_pb2_grpc.AgentServiceStub(self._channel)

    def status(self) -> device_agent_pb2.GetStatusResponse:
        """Return its status; waits for an agent that is starting."""
        try:
            return self.stub.GetStatus(
                device_agent_pb2.GetStatusRequest(), timeout=PATIENCE_S, wait_for_ready=True
            )
        except grpc.RpcError as error:
            if code_of(error) is grpc.StatusCode.UNAVAILABLE and self.exit_status() is None:
                return self.status()  # it was killed, and started again, while it answered
            raise AssertionError(f"{self.device_id} doesn't answer: {error}\n{self.log}") from error

    def states(self) -> dict[str, str]:
        """Return the state of each `task@version` on the device."""
        return {f"{task.task}@{task.version}": task.state for task in self.status().tasks}

    def runs(self) -> set[str]:
        """Return each `task@version` that runs."""
        return {key for key, state in self.states().items() if state in RUNNING}

    def results(self) -> list[device_agent_pb2.WatchResultsResponse]:
        """Return all results of its runs."""
        request = device_agent_pb2.WatchResultsRequest(no_follow=True)
        return list(self.stub.WatchResults(request, timeout=PATIENCE_S))

    def send(self, *events: device_agent_pb2.Event) -> device_agent_pb2.SendEventsResponse:
        """Hand over events."""
        return self.stub.SendEvents(device_agent_pb2.SendEventsRequest(events=events), timeout=PATIENCE_S)

    def disk_faults(self, published: Mapping[str, Published]) -> list[str]:
        """Return what is wrong with the versions that it has: each must be whole, as it was published."""
        # What the store no longer names is being cleared away, file by file.
        torn = [key for key in self._torn(published) if self.states().get(key, "FAILED") != "FAILED"]
        return [f"{self.device_id}: {key}" for key in torn if key in self._torn(published)]

    def _torn(self, published: Mapping[str, Published]) -> list[str]:
        torn = []
        for folder in (self.home / "state" / "versions").glob("*/*"):
            key = f"{folder.parent.name}@{folder.name}"
            try:
                found = {
                    str(path.relative_to(folder)): sha256_of(path.read_bytes())
                    for path in folder.rglob("*")
                    if path.is_file()
                }
            except FileNotFoundError:
                found = {}
            if key not in published or found != published[key].digests:
                torn.append(key)
        return torn


def event(n: int, event_id: str, **fields: object) -> device_agent_pb2.Event:
    """Return an event that carries a number, and happens now."""
    made = device_agent_pb2.Event(
        event_id=event_id, type="tick", user="ann", fields_json=json.dumps({"n": n, **fields})
    )
    made.event_time.GetCurrentTime()
    return made


class Feeder:
    """An app that hands its agent one event after the other, and each again until it is acknowledged."""

    def __init__(self, agent: Agent, interval_s: float = 0.2) -> None:
        self.acknowledged: list[int] = []
        """The numbers of the events that the agent said it has."""
        self.fault = ""
        self._agent = agent
        self._interval_s = interval_s
        self._go, self._idle, self._stop = threading.Event(), threading.Event(), threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Feed."""
        self._go.set()

    def pause(self) -> None:
        """Feed no more; what is in flight is acknowledged on return."""
        self._go.clear()
        assert self._idle.wait(PATIENCE_S), f"an event stays without an answer: {self.fault}"

    def stop(self) -> None:
        """End for good."""
        self._stop.set()
        self._go.set()
        self._thread.join(timeout=PATIENCE_S)

    def _run(self) -> None:
        n = 0
        while not self._stop.is_set():
            self._go.wait()
            self._idle.clear()
            if self._go.is_set() and not self._stop.is_set():
                n += 1
                self._hand_over(event(n, f"e{n}"))
                self.acknowledged.append(n)
            self._idle.set()
            self._stop.wait(self._interval_s)

    def _hand_over(self, made: device_agent_pb2.Event) -> None:
        while not self._stop.is_set():
            request = device_agent_pb2.SendEventsRequest(events=[made])
            try:
                self._agent.stub.SendEvents(request, timeout=PATIENCE_S, wait_for_ready=True)
                return
            except grpc.RpcError as error:
                self.fault = str(error)
            self._stop.wait(0.05)


class SlowLink:
    """A TCP relay to the gateway, whose way down can be made slow: a phone's network."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.bytes_down = 0
        self._slow = threading.Event()
        self._fast = threading.Event()
        self._fast.set()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def slow_down(self) -> None:
        """Let through 64 KiB a second and connection."""
        self._fast.clear()

    def speed_up(self) -> None:
        """Let everything through."""
        self._fast.set()

    def cut(self) -> None:
        """Break every connection."""
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.speed_up()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target, timeout=10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            self._sockets |= {near, far}
            threading.Thread(target=self._pump, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, down: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16 * 1024):
                if down:
                    self.bytes_down += len(data)
                    self._fast.wait(len(data) / (64 * 1024))
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        # The pump of the other way closes the other one.
        source.close()
        self._sockets.discard(source)

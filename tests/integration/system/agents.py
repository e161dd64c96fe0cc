"""Real agents, apps that feed them, and the slow links that phones have."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import grpc

from isthmus.device_agent.v1 import device_agent_pb2, device_agent_pb2_grpc
from libs.trust.digests import sha256_of
from tests.integration.system.world import PATIENCE_S, Published, code_of

RUNNING = ("ACTIVE", "CONFIRMED")


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
        """Return its status; waits for an agent that is starting, and fails at once when it has ended."""
        request, deadline = device_agent_pb2.GetStatusRequest(), time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.stub.GetStatus(request, timeout=5, wait_for_ready=True)
            except grpc.RpcError as error:
                passing = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
                ended = self.exit_status()
                if code_of(error) not in passing or ended is not None or time.monotonic() > deadline:
                    raise AssertionError(
                        f"{self.device_id} doesn't answer (exit status {ended}): {error}\n{self.log}"
                    ) from error

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
        request = device_agent_pb2.SendEventsRequest(events=events)
        try:
            return self.stub.SendEvents(request, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert self._process is not None
                self._process.wait(timeout=5)  # if it is ending, its last words are the interesting ones
            raise AssertionError(f"{self.device_id} takes no events: {error}\n{self.log}") from error

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

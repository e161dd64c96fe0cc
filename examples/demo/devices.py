"""The demo's devices: one agent process each, fed with its users' events over its socket.

The demo is the app that embeds the agent: it starts it again when it ended by itself, sends events until they
are acknowledged, and reads results from where it stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from isthmus.device_agent.v1 import device_agent_pb2, device_agent_pb2_grpc
from libs.task.event import Event

_BATCH = 100
_PAUSE_S = 0.2
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of a task came to."""

    version: str
    value: dict[str, object] | None
    """None when the run failed."""
    failure: str
    latency_ms: float
    read_s: float
    """When it was read, by the monotonic clock."""


@dataclass(slots=True)
class Device:
    """An agent process with its own state, and what it was fed and gave back."""

    device_id: str
    home: Path
    gateway: str
    token: str
    attributes: Mapping[str, str]
    events: list[Event] = field(default_factory=list)
    sent: int = 0
    """How many of the events the agent has acknowledged."""
    allowed: int = 0
    """How many of them may be sent so far."""
    results: list[Result] = field(default_factory=list)
    restarts: int = 0
    """How often the agent ended by itself, and was started again."""
    fault: str = ""
    """Why feeding or reading broke off; empty when it didn't."""
    _read_to: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _process: subprocess.Popen[bytes] | None = None
    _channel: grpc.Channel | None = None
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def socket(self) -> Path:
        """Where the agent listens."""
        return self.home / "agent.sock"

    @property
    def log(self) -> Path:
        """What the agent logged."""
        return self.home / "agent.log"

    def start(self) -> None:
        """Start the agent process; it enrols by itself."""
        self.home.mkdir(parents=True, exist_ok=True)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")},
            # By the environment, since every user of a machine can read a process's flags.
            "ISTHMUS_DEVICE_AGENT_ENROLMENT_TOKEN": self.token,
        }
        command = [sys.executable, "-m", "services.device_agent"]
        command += ["--state-dir", str(self.home / "state"), "--socket-path", str(self.socket)]
        command += ["--gateway-target", self.gateway, "--plaintext", "--device-id", self.device_id]
        command += ["--vm-workers", "1"]
        command += ["--attributes", ",".join(f"{name}={value}" for name, value in self.attributes.items())]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def revive(self) -> bool:
        """Start the agent again if it has ended by itself; tell whether it had."""
        if self._process is None or self._over.is_set() or self._process.poll() is None:
            return False
        self.restarts += 1
        self.start()
        return True

    def stub(self) -> device_agent_pb2_grpc.AgentServiceStub:
        """Return a stub on the agent's socket."""
        if self._channel is None:
            # An agent that is started again is called as soon as it listens.
            quickly = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
            self._channel = grpc.insecure_channel(f"unix:{self.socket}", quickly)
        return device_agent_pb2_grpc.AgentServiceStub(self._channel)

    def status(self, timeout_s: float = 10.0) -> device_agent_pb2.GetStatusResponse:
        """Return the agent's status; waits for the socket as long as `timeout_s`.

        Raises:
            grpc.RpcError: when the agent doesn't answer.
        """
        request = device_agent_pb2.GetStatusRequest()
        return self.stub().GetStatus(request, timeout=timeout_s, wait_for_ready=True)

    def quick_status(self) -> device_agent_pb2.GetStatusResponse | None:
        """Return the agent's status, or None while it is away."""
        try:
            return self.status()
        except grpc.RpcError:
            return None

    @property
    def pid(self) -> int:
        """The agent's process id.

        Raises:
            RuntimeError: before `start`.
        """
        if self._process is None:
            raise RuntimeError(f"{self.device_id} hasn't been started")
        return self._process.pid

    def alive(self) -> bool:
        """Tell whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def feed(self, rate: Callable[[], float]) -> None:
        """Start to send the events that are `allowed`, and to read results, until `stop`.

        Args:
            rate: events a second, asked anew for each batch.
        """
        self._threads = [
            threading.Thread(target=self._guard, args=(self._send, rate), daemon=True),
            threading.Thread(target=self._guard, args=(self._read,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _guard(self, work: Callable[..., None], *args: object) -> None:
        """Do work over an agent's restarts, until it is done or the device is stopped."""
        while not self._over.is_set():
            try:
                work(*args)
                return
            except grpc.RpcError as error:
                code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
                if self._over.is_set() or code is grpc.StatusCode.CANCELLED:
                    return
                if code not in _AWAY:
                    self.fault = f"{self.device_id}: {code.name}: {error.details()}"
                    return
            self._over.wait(_PAUSE_S)

    def _send(self, rate: Callable[[], float]) -> None:
        stub = self.stub()
        while self.sent < len(self.events):
            per_s = rate()
            ready = min(self.allowed, self.sent + max(1, min(_BATCH, round(per_s / 4))))
            batch = self.events[self.sent : ready]
            began = time.monotonic()
            if batch:
                # Sent again after a break, an event is taken once: it has an id.
                stub.SendEvents(
                    device_agent_pb2.SendEventsRequest(events=[_message(event) for event in batch]),
                    timeout=30.0,
                )
                self.sent += len(batch)
            due = began + max(len(batch) / per_s, 0.05)
            if self._over.wait(max(0.0, due - time.monotonic())):
                return

    def _read(self) -> None:
        request = device_agent_pb2.WatchResultsRequest(after_sequence=self._read_to)
        for each in self.stub().WatchResults(request):
            value = json.loads(each.result_json) if each.result_json else None
            made = Result(each.version, value, each.failure_reason, each.latency_ms, time.monotonic())
            self.results.append(made)
            self._read_to = each.sequence

    def finish(self) -> None:
        """Send no more events than have been sent; goes on reading results."""
        self.allowed = 0

    def stop(self) -> None:
        """End the agent and the threads."""
        self._over.set()
        if self._channel is not None:
            self._channel.close()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for thread in self._threads:
            # Ctrl-C may come while a thread is being started: it can't be joined, and ends at its first step.
            if thread.is_alive():
                thread.join(timeout=10)


def _message(event: Event) -> device_agent_pb2.Event:
    made = device_agent_pb2.Event(
        event_id=event.event_id,
        type=event.type,
        page=event.page,
        user=event.user,
        fields_json=json.dumps(dict(event.fields), ensure_ascii=False),
    )
    made.event_time.FromMicroseconds(round(event.time_s * 1e6))
    return made

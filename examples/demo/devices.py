"""The demo's devices: one agent process each, fed with its users' events over its socket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from isthmus.device_agent.v1 import device_agent_pb2, device_agent_pb2_grpc
from libs.task.event import Event

_BATCH = 15


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of a task came to."""

    version: str
    value: dict[str, object] | None
    """None when the run failed."""
    failure: str
    latency_ms: float


@dataclass(slots=True)
class Device:
    """An agent process with its own state, and what it was fed and gave back."""

    device_id: str
    home: Path
    gateway: str
    token: str
    attributes: dict[str, str]
    events: list[Event]
    sent: int = 0
    results: list[Result] = field(default_factory=list)
    fault: str = ""
    """Why feeding or reading broke off; empty when it didn't."""
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

    def stub(self) -> device_agent_pb2_grpc.AgentServiceStub:
        """Return a stub on the agent's socket."""
        if self._channel is None:
            self._channel = grpc.insecure_channel(f"unix:{self.socket}")
        return device_agent_pb2_grpc.AgentServiceStub(self._channel)

    def status(self, timeout_s: float = 10.0) -> device_agent_pb2.GetStatusResponse:
        """Return the agent's status; waits for the socket as long as `timeout_s`.

        Raises:
            grpc.RpcError: when the agent doesn't answer.
        """
        request = device_agent_pb2.GetStatusRequest()
        return self.stub().GetStatus(request, timeout=timeout_s, wait_for_ready=True)

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

    def feed(self, events_per_s: float, stop: threading.Event) -> None:
        """Start to replay the events and to read results, in threads, until `stop` is set."""
        self._threads = [
            threading.Thread(target=self._guard, args=(self._send, events_per_s, stop), daemon=True),
            threading.Thread(target=self._guard, args=(self._read,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _guard(self, work: Callable[..., None], *args: object) -> None:
        try:
            work(*args)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                self.fault = f"{self.device_id}: {error.code().name}: {error.details()}"

    def _send(self, events_per_s: float, stop: threading.Event) -> None:
        stub = self.stub()
        started = time.monotonic()
        size = max(1, min(_BATCH, round(events_per_s / 2)))
        while self.sent < len(self.events):
            due = started + self.sent / events_per_s
            if stop.wait(max(0.0, due - time.monotonic())):
                return
            batch = self.events[self.sent : self.sent + size]
            stub.SendEvents(
                device_agent_pb2.SendEventsRequest(events=[_message(event) for event in batch]), timeout=30.0
            )
            self.sent += len(batch)

    def _read(self) -> None:
        for each in self.stub().WatchResults(device_agent_pb2.WatchResultsRequest()):
            value = json.loads(each.result_json) if each.result_json else None
            self.results.append(Result(each.version, value, each.failure_reason, each.latency_ms))

    def stop(self) -> None:
        """End the agent and the threads."""
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

"""A device agent on this machine, spoken to over its socket: waited for, and sent no more than it can use."""

from __future__ import annotations

import json
import os
import re
import socket as socket_module
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import grpc

from isthmus.device_agent.v1 import device_agent_pb2 as pb
from isthmus.device_agent.v1 import device_agent_pb2_grpc
from libs.common.client import error_from_rpc
from libs.common.errors import Error, Exhausted, Invalid, Precondition, Unavailable
from libs.task.event import event_from_json

_BATCH = 500
_MAX_LINE_BYTES = 256 * 1024
# What the kernel takes as the path of a socket.
_MAX_PATH_BYTES = 107
_RUNS = ("ACTIVE", "CONFIRMED")
_LEAST_POLL_S, _MOST_POLL_S = 0.002, 0.1
_INDEX = re.compile(r"events\[(\d+)\]")
_BOM = b"\xef\xbb\xbf"

Reply = TypeVar("Reply")


@dataclass(slots=True)
class Sent:
    """What has been handed over so far."""

    accepted: int = 0
    duplicates: int = 0
    line: int = 0
    """The last line of it."""


@dataclass(frozen=True, slots=True)
class Line:
    """An event, and where in the file it stands."""

    number: int
    event: pb.Event


class AgentClient:
    """An agent that answers.

    Args:
        stub: its service.
        socket: where it listens, for messages.
        timeout_s: how long one call may take, and how long it may stand still.
    """

    def __init__(self, stub: device_agent_pb2_grpc.AgentServiceStub, socket: str, timeout_s: float) -> None:
        self._stub = stub
        self._socket = socket
        self._timeout_s = timeout_s

    def status(self) -> pb.GetStatusResponse:
        """Return what it runs and how it does; raise Error."""
        return self._call(self._stub.GetStatus, pb.GetStatusRequest())

    def results(self, request: pb.WatchResultsRequest) -> Iterator[pb.WatchResultsResponse]:
        """Yield results; raise Error."""
        call = self._stub.WatchResults(request, timeout=self._timeout_s if request.no_follow else None)
        try:
            yield from call
        except grpc.RpcError as error:
            raise self._explain(error) from error
        finally:
            cast("grpc.Call", call).cancel()

    def send(self, file: BinaryIO, sent: Sent) -> None:
        """Hand over the events (JSON Lines) of a file, no faster than their runs are made; count in `sent`.

        Raises:
            Invalid: for a line that is no event, naming it; the lines before have been handed over.
            Unavailable: when the agent is gone, or makes no runs any more.
        """
        for batch in _batches(file):
            rest = batch
            while rest:
                room = self._wait_for_room()
                self._hand_over(rest[:room], sent)
                rest = rest[room:]

    def wait_until_idle(self, wait_s: float) -> pb.GetStatusResponse:
        """Wait until nothing waits on the agent, `wait_s` seconds at most; return its status then."""
        return self._poll(wait_s, lambda status: not (status.pending_event_count or status.pending_run_count))

    def wait_for_version(self, task: str, version: str, wait_s: float) -> pb.GetStatusResponse:
        """Wait until the agent runs a version; return its status then.

        Raises:
            Precondition: when it has given the version up, or doesn't run it after `wait_s` seconds.
        """

        def of(status: pb.GetStatusResponse) -> pb.TaskStatus:
            found = [each for each in status.tasks if (each.task, each.version) == (task, version)]
            return found[0] if found else pb.TaskStatus()

        status = self._poll(wait_s, lambda status: of(status).state in (*_RUNS, "FAILED"))
        found = of(status)
        if found.state == "FAILED":
            raise Precondition(
                f"{task}@{version} was given up: {failure_text(found)}", reason="VERSION_FAILED"
            )
        if found.state not in _RUNS:
            where = f"it is {found.state}" if found.state else "it isn't on the device"
            raise Precondition(
                f"{task}@{version} doesn't run after {wait_s:g} s: {where}; is there a release of it for "
                "this device, and is the agent connected? --wait gives it longer",
                reason="NOT_ACTIVE",
            )
        return status

    def _poll(self, wait_s: float, done: Callable[[pb.GetStatusResponse], bool]) -> pb.GetStatusResponse:
        end = time.monotonic() + wait_s
        for pause_s in _pauses():
            status = self.status()
            left_s = end - time.monotonic()
            if done(status) or left_s <= 0:
                return status
            time.sleep(min(pause_s, left_s))
        raise AssertionError("unreachable")

    def _wait_for_room(self) -> int:
        seen, since = None, time.monotonic()
        for pause_s in _pauses():
            status = self.status()
            if not status.HasField("event_room"):
                return _BATCH  # An agent that doesn't say: as fast as it takes them.
            if status.event_room:
                return status.event_room
            counters = status.counters
            done = counters.success_count + counters.failure_count + counters.dropped_run_count
            standing = (status.pending_event_count, status.pending_run_count, done)
            if standing != seen:
                seen, since = standing, time.monotonic()
            elif time.monotonic() - since > self._timeout_s:
                problems = (
                    "; ".join(status.problems) or "no problem is named; raise --timeout for longer runs"
                )
                raise Unavailable(
                    f"the agent at {self._socket} hasn't made a run for {self._timeout_s:g} s, "
                    f"{status.pending_run_count} wait: {problems}",
                    reason="STALLED",
                )
            time.sleep(pause_s)
        raise AssertionError("unreachable")

    def _hand_over(self, lines: list[Line], sent: Sent) -> None:
        request = pb.SendEventsRequest(events=[line.event for line in lines])
        for pause_s in _pauses():
            try:
                answer = self._call(self._stub.SendEvents, request)
            except Exhausted as error:
                if error.reason != "BACKLOG":
                    raise
                # Others hand events over too; of these none has been taken.
                time.sleep(max(pause_s, _MOST_POLL_S))
                continue
            except Invalid as error:
                raise Invalid(_name_lines(error.message, lines), reason=error.reason) from error
            sent.accepted += answer.accepted_count
            sent.duplicates += answer.duplicate_count
            sent.line = lines[-1].number
            return

    def _call(self, method: Callable[..., Reply], request: object) -> Reply:
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self._explain(error) from error

    def _explain(self, error: grpc.RpcError) -> Error:
        found = error_from_rpc(cast("grpc.aio.AioRpcError", error))
        if isinstance(found, Unavailable):
            found.message = f"no agent answers at {self._socket}: {found.message}"
        return found


@contextmanager
def connect(
    socket: str, wait_s: float, timeout_s: float, note: Callable[[str], None] = lambda text: None
) -> Iterator[AgentClient]:
    """Connect to an agent, waiting for its socket.

    Args:
        socket: path of its Unix socket.
        wait_s: how long to wait until somebody listens there.
        timeout_s: for each call afterwards.
        note: told at once that an agent which was there has ended.

    Raises:
        Invalid: when `socket` can't be one.
        Unavailable: when nobody listens in time.
    """
    path = Path(socket).absolute()
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise Invalid(
            f"--socket {path}: is longer than the {_MAX_PATH_BYTES} bytes a socket's path may have",
            reason="BAD_SOCKET",
        )
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise Invalid(f"--socket {socket}: is no socket", reason="BAD_SOCKET")
    if _left_over(path):
        note(
            f"nobody listens at {socket}: the agent that made it has ended, and its log says why; waiting "
            f"{wait_s:g} s for one to start"
        )
    options = [(f"grpc.{which}_reconnect_backoff_ms", 100) for which in ("initial", "min", "max")]
    with grpc.insecure_channel(f"unix:{path}", options) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=max(wait_s, 0.5))
        except grpc.FutureTimeoutError as error:
            raise Unavailable(
                f"no agent answers at {socket} within {wait_s:g} s: is it running? If it has ended, its log "
                f"says why; start one with `isthmus agent run --socket-path {socket} ...`",
                reason="NO_AGENT",
            ) from error
        yield AgentClient(device_agent_pb2_grpc.AgentServiceStub(channel), socket, timeout_s)


def _left_over(path: Path) -> bool:
    """Tell whether a socket is there that nobody listens at."""
    with socket_module.socket(socket_module.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def failure_text(task: pb.TaskStatus) -> str:
    """Return why a version was given up."""
    text = f"{task.failure_reason}: {task.failure_message}" if task.failure_message else task.failure_reason
    return text.strip() or "the agent gives no reason"


def _pauses() -> Iterator[float]:
    """Yield ever longer pauses, in seconds: a quick agent isn't waited for, a slow one isn't pestered."""
    pause_s = _LEAST_POLL_S
    while True:
        yield pause_s
        pause_s = min(_MOST_POLL_S, pause_s * 1.5)


def _batches(file: BinaryIO) -> Iterator[list[Line]]:
    """Yield the events of a file in parts; those before a bad line are yielded before it is told."""
    batch: list[Line] = []
    fault: Invalid | None = None
    try:
        for line in _lines(file):
            batch.append(line)
            if len(batch) == _BATCH:
                yield batch
                batch = []
    except Invalid as error:
        fault = error
    if batch:
        yield batch
    if fault is not None:
        raise fault


def _lines(file: BinaryIO) -> Iterator[Line]:
    number = 0
    while text := file.readline(_MAX_LINE_BYTES + 1):
        number += 1
        if len(text) > _MAX_LINE_BYTES:
            raise Invalid(f"line {number}: longer than {_MAX_LINE_BYTES} bytes", reason="TOO_LARGE")
        if number == 1:
            text = text.removeprefix(_BOM)
        if text.strip():
            yield Line(number, _event(text.rstrip(b"\r\n"), number))


def _event(text: bytes, number: int) -> pb.Event:
    try:
        event = event_from_json(text)
    except Invalid as error:
        # A line is one line: of the place within it only the column says something.
        place = error.message.removeprefix("event: line 1, ")
        joint = ", " if place != error.message else ": "
        raise Invalid(
            f"line {number}{joint}{place}", reason=error.reason, metadata={"line": str(number)}
        ) from error
    made = pb.Event(
        event_id=event.event_id,
        type=event.type,
        page=event.page,
        user=event.user,
        fields_json=json.dumps(dict(event.fields), ensure_ascii=False),
    )
    made.event_time.FromMicroseconds(round(event.time_s * 1e6))
    return made


def _name_lines(message: str, lines: list[Line]) -> str:
    """Return an agent's message with the lines of the file in place of its own counting."""

    def number(match: re.Match[str]) -> str:
        index = int(match[1])
        return f"line {lines[index].number}" if index < len(lines) else match[0]

    return _INDEX.sub(number, message)

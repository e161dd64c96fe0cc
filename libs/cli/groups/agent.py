"""`isthmus agent`: start a device agent here, and speak to one over its socket."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import grpc

from isthmus.device_agent.v1 import device_agent_pb2, device_agent_pb2_grpc
from libs.cli.main import Group
from libs.cli.output import Output, human_bytes, human_seconds
from libs.cli.session import Settings
from libs.common.client import error_from_rpc
from libs.common.errors import Invalid, Unavailable
from libs.task.event import event_from_json

_BATCH = 500


@click.group(cls=Group)
def agent() -> None:
    """Run a device agent on this machine, or look at one."""


@agent.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(arguments: tuple[str, ...]) -> None:
    """Start an agent in this terminal; `isthmus agent run --help` lists its flags."""
    os.execv(sys.executable, [sys.executable, "-m", "services.device_agent", *arguments])


@contextmanager
def _agent(settings: Settings, socket: str) -> Iterator[device_agent_pb2_grpc.AgentServiceStub]:
    with grpc.insecure_channel(f"unix:{Path(socket).resolve()}") as channel:
        try:
            yield device_agent_pb2_grpc.AgentServiceStub(channel)
        except grpc.RpcError as error:
            found = error_from_rpc(error)  # type: ignore[arg-type]
            if isinstance(found, Unavailable):
                found.message = f"no agent answers at {socket}: {found.message}"
            raise found from error


_SOCKET = click.option(
    "--socket", required=True, envvar="ISTHMUS_AGENT_SOCKET", help="The agent's Unix socket."
)


@agent.command()
@_SOCKET
@click.pass_obj
def status(settings: Settings, socket: str) -> None:
    """Show what the agent runs and how it does."""
    with _agent(settings, socket) as stub:
        found = stub.GetStatus(device_agent_pb2.GetStatusRequest(), timeout=settings.timeout_s)
    counters = found.counters
    settings.output.message(
        found,
        [
            ("device", found.device or "not enrolled"),
            ("agent", found.agent_version),
            ("tunnel", "connected" if found.tunnel_connected else "not connected"),
            ("push", "connected" if found.push_connected else "not connected"),
            ("events", f"{counters.event_count:,} ({human_bytes(counters.event_bytes)})"),
            (
                "runs",
                f"{counters.success_count:,} good, {counters.failure_count:,} failed, "
                f"{counters.dropped_run_count:,} dropped",
            ),
            (
                "frames",
                f"{counters.frame_count:,} ({human_bytes(counters.frame_bytes)}), "
                f"{counters.acked_frame_count:,} acknowledged, {counters.refused_frame_count:,} refused",
            ),
            *(
                (
                    f"{task.task}@{task.version}",
                    f"{task.state}, {task.success_count} good, {task.failure_count} failed",
                )
                for task in found.tasks
            ),
            *(("problem", problem) for problem in found.problems),
        ],
    )


@agent.command()
@_SOCKET
@click.argument("file", type=click.File("r", encoding="utf-8"), default="-")
@click.pass_obj
def send(settings: Settings, socket: str, file: Iterator[str]) -> None:
    """Hand events (JSON Lines) from FILE or standard input to the agent."""
    accepted = duplicates = 0
    batch: list[device_agent_pb2.Event] = []
    with _agent(settings, socket) as stub:

        def flush() -> None:
            nonlocal accepted, duplicates
            answer = stub.SendEvents(
                device_agent_pb2.SendEventsRequest(events=batch), timeout=settings.timeout_s
            )
            accepted += answer.accepted_count
            duplicates += answer.duplicate_count
            batch.clear()

        for number, line in enumerate(file, start=1):
            if line.strip():
                batch.append(_event(line, number))
            if len(batch) == _BATCH:
                flush()
        if batch:
            flush()
    settings.output.values(
        {"accepted_count": accepted, "duplicate_count": duplicates},
        f"{accepted:,} events taken, {duplicates:,} were there already",
    )


def _event(line: str, number: int) -> device_agent_pb2.Event:
    try:
        event = event_from_json(line)
    except Invalid as error:
        raise Invalid(f"line {number}: {error.message}", reason=error.reason) from error
    made = device_agent_pb2.Event(
        event_id=event.event_id,
        type=event.type,
        page=event.page,
        user=event.user,
        fields_json=json.dumps(dict(event.fields), ensure_ascii=False),
    )
    made.event_time.FromMicroseconds(round(event.time_s * 1e6))
    return made


@agent.command()
@_SOCKET
@click.option("--task", default="", help="Only this task.")
@click.option("--after", type=click.IntRange(0), default=0, help="Start after this result.")
@click.option("--follow", is_flag=True, help="Go on waiting for more.")
@click.pass_obj
def results(settings: Settings, socket: str, task: str, after: int, follow: bool) -> None:
    """Show results of task runs; with --json one line of JSON each."""
    request = device_agent_pb2.WatchResultsRequest(task=task, after_sequence=after, no_follow=not follow)
    output: Output = settings.output
    with _agent(settings, socket) as stub:
        for each in stub.WatchResults(request, timeout=None if follow else settings.timeout_s):
            if output.as_json:
                output.line(
                    {
                        "sequence": each.sequence,
                        "task": each.task,
                        "version": each.version,
                        "user": each.user,
                        "result": json.loads(each.result_json) if each.result_json else None,
                        "failure": {"reason": each.failure_reason, "message": each.failure_message}
                        if each.failure_reason
                        else None,
                        "latency_ms": each.latency_ms,
                    }
                )
            else:
                what = each.result_json or f"{each.failure_reason}: {each.failure_message}"
                latency = human_seconds(each.latency_ms / 1e3)
                output.say(
                    f"{each.sequence}  {each.task}@{each.version}  user {each.user}  {latency}  {what}"
                )

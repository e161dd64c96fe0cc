"""`isthmus agent`: start a device agent here, and speak to one over its socket."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, TypeVar

import click

from isthmus.device_agent.v1 import device_agent_pb2 as pb
from libs.cli.agents import Sent, connect, failure_text
from libs.cli.main import Group
from libs.cli.output import Output, counted, human_bytes, human_seconds
from libs.cli.session import Settings
from libs.cli.values import DURATION
from libs.common.errors import Error, Invalid
from libs.common.names import VersionName

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(cls=Group)
def agent() -> None:
    """Run a device agent on this machine, or look at one."""


@agent.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(arguments: tuple[str, ...]) -> None:
    """Start an agent in this terminal; `isthmus agent run --help` lists its flags."""
    os.execv(sys.executable, [sys.executable, "-m", "services.device_agent", *arguments])


_SOCKET = click.option(
    "--socket", required=True, envvar="ISTHMUS_AGENT_SOCKET", help="The agent's Unix socket."
)


def _wait(more: str = "") -> Callable[[Command], Command]:
    text = f"How long to wait for the agent's socket{more}; default 10s."
    return click.option("--wait", "wait_s", type=DURATION, default=10.0, help=text)


def _task_and_version(text: str) -> tuple[str, str]:
    """Return the parts of `task@version`, or of a version's full name."""
    if "/" in text:
        name = VersionName.parse(text)
        return name.task, name.version
    task, at, version = text.partition("@")
    if not (task and at and version):
        raise Invalid(f"--wait-for {text!r}: write TASK@VERSION", reason="BAD_VERSION")
    return task, version


@agent.command()
@_SOCKET
@_wait(", and for --wait-for")
@click.option("--wait-for", metavar="TASK@VERSION", help="Wait until the agent runs this version.")
@click.pass_obj
def status(settings: Settings, socket: str, wait_s: float, wait_for: str | None) -> None:
    """Show what the agent runs and how it does."""
    task, version = _task_and_version(wait_for) if wait_for else ("", "")
    with connect(socket, wait_s, settings.timeout_s, settings.output.note) as found:
        if wait_for:
            _show(settings.output, found.wait_for_version(task, version, wait_s))
        else:
            _show(settings.output, found.status())


def _show(output: Output, found: pb.GetStatusResponse) -> None:
    counters = found.counters
    unanswered = max(0, counters.request_count - counters.answer_count)
    waiting = f", {found.pending_run_count:,} waiting" if found.pending_run_count else ""
    output.message(
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
                f"{counters.dropped_run_count:,} dropped{waiting}",
            ),
            (
                "frames",
                f"{counters.frame_count:,} ({human_bytes(counters.frame_bytes)}), "
                f"{counters.acked_frame_count:,} acknowledged, {counters.refused_frame_count:,} refused",
            ),
            (
                "requests",
                f"{counters.request_count:,} ({human_bytes(counters.request_bytes)}), "
                f"{counters.refused_request_count:,} more refused",
            ),
            (
                "answers",
                f"{counters.answer_count:,} in time ({human_bytes(counters.answer_bytes)}), "
                f"{unanswered:,} unanswered, {counters.late_answer_count:,} of them too late",
            ),
            *(
                (
                    f"{task.task}@{task.version}",
                    f"{task.state}, {task.success_count} good, {task.failure_count} failed"
                    + (f"; {failure_text(task)}" if task.failure_reason else ""),
                )
                for task in found.tasks
            ),
            *(("problem", problem) for problem in found.problems),
        ],
    )


@agent.command()
@_SOCKET
@_wait(", and at the end for the runs")
@click.argument("file", type=click.File("rb"), default="-")
@click.pass_obj
def send(settings: Settings, socket: str, wait_s: float, file: BinaryIO) -> None:
    """Hand events (JSON Lines) from FILE or standard input to the agent.

    It goes no faster than the runs that they trigger are made, so that none is dropped, and then waits until
    these are done.
    """
    sent = Sent()
    with connect(socket, wait_s, settings.timeout_s, settings.output.note) as found:
        before = found.status().counters
        try:
            found.send(file, sent)
            after = found.wait_until_idle(wait_s)
        except (Error, OSError, KeyboardInterrupt) as error:
            _say_how_far(settings.output, error, sent)
            raise
    dropped = max(0, after.counters.dropped_run_count - before.dropped_run_count)
    withdrawn = min(dropped, max(0, after.counters.withdrawn_run_count - before.withdrawn_run_count))
    pending = after.pending_run_count
    if withdrawn:
        settings.output.note(
            f"{withdrawn:,} waiting runs were dropped meanwhile with their version: the device gave it up"
        )
    if dropped > withdrawn:
        settings.output.note(
            f"warning: {dropped - withdrawn:,} runs were dropped meanwhile: more waited than the task's "
            "pending_count, or the store couldn't hold them"
        )
    if pending or after.pending_event_count:
        settings.output.note(f"{pending:,} runs still wait after {wait_s:g} s; the agent goes on with them")
    settings.output.values(
        {
            "accepted_count": sent.accepted,
            "duplicate_count": sent.duplicates,
            "dropped_run_count": dropped,
            "withdrawn_run_count": withdrawn,
            "pending_run_count": pending,
        },
        f"{counted(sent.accepted, 'event')} taken, {sent.duplicates:,} were there already",
    )


def _say_how_far(output: Output, error: BaseException, sent: Sent) -> None:
    """Say what had been handed over before an error: in its message, or on the standard error."""
    text = f"before that {sent.accepted:,} events were taken" + (
        f", up to line {sent.line}" if sent.line else ""
    )
    if isinstance(error, Error):
        error.message = f"{error.message}; {text}"
        counts = {"accepted_count": str(sent.accepted), "last_line": str(sent.line)}
        error.metadata = {**error.metadata, **counts}
    else:
        output.note(text)


@agent.command()
@_SOCKET
@_wait()
@click.option("--task", default="", help="Only this task.")
@click.option("--after", type=click.IntRange(0, 2**63 - 1), default=0, help="Start after this result.")
@click.option("--follow", is_flag=True, help="Go on waiting for more.")
@click.pass_obj
def results(settings: Settings, socket: str, wait_s: float, task: str, after: int, follow: bool) -> None:
    """Show results of task runs; with --json one line of JSON each."""
    request = pb.WatchResultsRequest(task=task, after_sequence=after, no_follow=not follow)
    output = settings.output
    with connect(socket, wait_s, settings.timeout_s, settings.output.note) as found:
        for each in found.results(request):
            if output.as_json:
                output.line(_line(each))
                continue
            what = each.result_json or f"{each.failure_reason}: {each.failure_message}"
            latency = human_seconds(each.latency_ms / 1e3)
            output.say(f"{each.sequence}  {each.task}@{each.version}  user {each.user}  {latency}  {what}")


def _line(result: pb.WatchResultsResponse) -> Mapping[str, object]:
    return {
        "sequence": result.sequence,
        "task": result.task,
        "version": result.version,
        "user": result.user,
        "result": json.loads(result.result_json) if result.result_json else None,
        "failure": {"reason": result.failure_reason, "message": result.failure_message}
        if result.failure_reason
        else None,
        "latency_ms": result.latency_ms,
    }

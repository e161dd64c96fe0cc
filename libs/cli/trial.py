"""A task tried on this machine: starts the agent's own trial and shows what it says, line by line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from libs.cli.output import Output, human_bytes, human_seconds
from libs.common.errors import Error, Internal, Invalid, NotFound, Precondition

_COLUMNS = "{:>6}  {:<16}  {:>9}  {}"
_KINDS: Mapping[str, type[Error]] = {kind.__name__: kind for kind in (Invalid, NotFound, Precondition)}


def try_task(output: Output, folder: Path, events: str, limit: int) -> None:
    """Run a task's folder over recorded events and print each run and a summary.

    Raises:
        Precondition: RUNS_FAILED when a run failed, BAD_LINES when a line is no event.
        Error: why the task couldn't be tried.
    """
    summary: Mapping[str, Any] | None = None
    for line in _lines(folder, events, limit):
        if line["kind"] == "error":
            raise _KINDS.get(line["class"], Internal)(line["message"], reason=line["reason"])
        if output.as_json:
            output.line(line)
        elif line["kind"] == "run":
            if line["number"] == 1:
                output.say(_COLUMNS.format("RUN", "USER", "TOOK", "RESULT"))
            _show_run(output, line)
        else:
            _show_summary(output, line)
        if line["kind"] == "summary":
            summary = line
    if summary is None:
        raise Internal("the trial ended before its summary", reason="TRIAL_BROKEN")
    bad_lines, failed = summary["bad_line_count"], summary["failure_count"]
    faults = [f"{failed} of {summary['run_count']} runs failed"] if failed else []
    if bad_lines:
        faults.append(f"{bad_lines} of the lines are no events and were skipped; publishing refuses them")
    if faults:
        raise Precondition("; ".join(faults), reason="RUNS_FAILED" if failed else "BAD_LINES")


def _lines(folder: Path, events: str, limit: int) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "services.device_agent", "try"]
    command += ["--task-dir", str(folder.resolve()), "--events-file", events, "--limit", str(limit)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                yield json.loads(line)
        finally:
            child.stdout.close()


def _show_run(output: Output, run: Mapping[str, Any]) -> None:
    failure = run["failure"]
    what = f"FAILED {failure['reason']}" if failure else json.dumps(run["result"], ensure_ascii=False)
    output.say(_COLUMNS.format(run["number"], run["user"][:16], human_seconds(run["wall_ms"] / 1e3), what))
    if failure is not None:
        _indent(output, failure["message"])
    for frame in run["frames"]:
        if "refusal" in frame:
            _indent(output, f"refused {frame['refusal']}: {frame['message']}")
        else:
            _indent(output, f"sent {frame['stream']}: {json.dumps(frame['payload'], ensure_ascii=False)}")
    for ask in run["asks"]:
        what = f"refused {ask['refusal']}" if ask["refusal"] else f"asked {ask['model']}: {_inputs(ask)}"
        _indent(output, what)
    for text in run["logs"]:
        _indent(output, f"log: {text}")
    if run["output"].strip():
        _indent(output, f"printed: {run['output'].rstrip()}")


def _inputs(ask: Mapping[str, Any]) -> str:
    """Return the inputs of a request in one line, `item INT64[] 7 · history INT64[3] 1 2 3`."""
    parts = []
    for name, tensor in ask["inputs"].items():
        count = 1
        for extent in tensor["shape"]:
            count *= extent
        more = " …" if count > len(tensor["first"]) else ""
        shape = ",".join(map(str, tensor["shape"]))
        parts.append(f"{name} {tensor['datatype']}[{shape}] {' '.join(map(str, tensor['first']))}{more}")
    return " · ".join(parts)


def _indent(output: Output, text: str) -> None:
    for line in text.splitlines():
        output.say(" " * 8 + line)


def _show_summary(output: Output, summary: Mapping[str, Any]) -> None:
    output.say("")
    p50_ms = summary["p50_ms"]
    output.table(
        ("EVENTS", "TRIGGERS", "RUNS", "FAILED", "FRAMES", "REFUSED", "SENT", "ASKED", "P50"),
        [
            (
                f"{summary['event_count']:,}",
                f"{summary['trigger_count']:,}",
                f"{summary['run_count']:,}",
                f"{summary['failure_count']:,}",
                f"{summary['frame_count']:,}",
                f"{summary['refused_frame_count']:,}",
                human_bytes(summary["frame_bytes"]),
                f"{summary['asked_count']:,}",
                "-" if p50_ms is None else human_seconds(p50_ms / 1e3),
            )
        ],
    )
    for problem in summary["problems"]:
        output.say(problem)
    if summary["given_up"]:
        output.say(
            f"{summary['task']}@{summary['version']} was given up, as a device would, for failures in a row"
        )
    elif not summary["trigger_count"]:
        output.say("no event completed the trigger")

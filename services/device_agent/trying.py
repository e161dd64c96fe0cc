"""`python -m services.device_agent try`: a task's folder over recorded events, with no cloud and no keys.

It is an agent without a gateway, in a temporary folder: the same store, trie, features and task VM as on a
device. What a device would pull comes from the task's folder instead, unsigned. Each run, and a summary at
the end, is one line of JSON on the standard output; `isthmus task try` shows them.
"""

import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import BinaryIO

from libs.common.config import ConfigError, HelpRequested, load
from libs.common.errors import Error, Invalid, NotFound, Precondition
from libs.common.rand import Randomness, SystemRandomness
from libs.task.manifest import Blob, CheckedManifest, check_manifest
from libs.task.source import FILE_NAME, read_task_json
from libs.task.tensor import DATATYPES, first_elements
from libs.trust.digests import sha256_of
from services.device_agent.asking import Asked
from services.device_agent.errors import EXIT_CONFIG, EXIT_FAULT
from services.device_agent.replay import MAX_LINE_BYTES
from services.device_agent.running import Made
from services.device_agent.trial import LocalFiles, Outcome, run_trial

_INTERRUPTED = 130
_LONGEST_TEMP = 60
# Elements of an input that are shown.
_SHOWN_ELEMENTS = 16

# What an error is said to be: a caller knows these.
_KINDS = (Invalid, NotFound, Precondition, Error)

Say = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TryConfig:
    """What to try."""

    task_dir: Path = field(metadata={"help": "folder with task.json and its files"})
    events_file: str = field(
        metadata={"help": "recorded events, one JSON object a line; - is the standard input"}
    )
    limit: int = field(default=0, metadata={"help": "take only the first events; 0 takes all", "min": 0})


async def try_task(config: TryConfig, say: Say, randomness: Randomness) -> bool:
    """Run a task over recorded events and say what comes of it; return whether all runs and lines were good.

    Raises:
        Invalid: for a task or events that can't be used.
        NotFound: when a file isn't there.
        Precondition: when the task wants another agent or Python, or doesn't load.
    """
    number = 0

    def observe(made: Made) -> None:
        nonlocal number
        number += 1
        say(_run(number, made))

    # A socket's path must be short, wherever temporary files are kept.
    where = tempfile.gettempdir() if len(tempfile.gettempdir()) < _LONGEST_TEMP else "/tmp"
    with tempfile.TemporaryDirectory(prefix="isthmus-try-", dir=where) as home:
        events = Path(home) / "events.jsonl"
        await asyncio.to_thread(_record, config, events)
        payload, manifest, files = await _read(config.task_dir)
        outcome = await run_trial(Path(home), payload, manifest, files, events, randomness, observe=observe)
    say(_summary(manifest, outcome))
    return not (outcome.tally.failures or outcome.bad_line_count)


def _record(config: TryConfig, target: Path) -> None:
    """Copy the events to try, so that the standard input and a limit are like any file."""
    try:
        with target.open("wb") as copy:
            if config.events_file == "-":
                _copy(sys.stdin.buffer, copy, config.limit)
            else:
                with Path(config.events_file).open("rb") as source:
                    _copy(source, copy, config.limit)
    except OSError as error:
        if error.filename == str(target):
            raise
        raise NotFound(f"{config.events_file}: {error.strerror}", reason="EVENTS_FILE") from error


def _copy(source: BinaryIO, target: BinaryIO, limit: int) -> None:
    left = limit
    while line := source.readline(MAX_LINE_BYTES + 1):
        target.write(line)
        if line.strip() and line.endswith(b"\n"):
            left -= 1
        if left == 0 and limit:
            return


async def _read(folder: Path) -> tuple[bytes, CheckedManifest, LocalFiles]:
    """Return a folder's manifest, as bytes and checked, and its files."""
    try:
        source = read_task_json(await asyncio.to_thread((folder / FILE_NAME).read_bytes), folder)
        blobs = {
            file: Blob(await asyncio.to_thread(sha256_of, file), file.stat().st_size) for file in source.files
        }
    except OSError as error:
        raise NotFound(f"{error.filename}: {error.strerror}") from error
    message = source.manifest(blobs)
    files = LocalFiles({blob.digest: file for file, blob in blobs.items()})
    return message.SerializeToString(), check_manifest(message), files


def _run(number: int, made: Made) -> dict[str, object]:
    """Return a run as it is shown."""
    finished = made.finished
    return {
        "kind": "run",
        "number": number,
        "user": made.run.user,
        "event_time_s": made.run.event_time_s,
        "result": json.loads(finished.result) if finished.result else None,
        "failure": {"reason": finished.failure_reason, "message": finished.failure_message}
        if finished.failure_reason
        else None,
        "wall_ms": round(made.wall_s * 1e3, 3),
        "frames": [
            {"stream": frame.stream, "refusal": frame.refusal, "message": frame.message}
            if frame.refusal
            else {"stream": frame.stream, "payload": json.loads(frame.payload)}
            for frame in finished.outgoing
        ],
        "asks": [_ask(ask) for ask in made.asks],
        "logs": list(made.logs),
        "output": made.output,
    }


def _ask(ask: Asked) -> dict[str, object]:
    """Return what was asked of a model in the cloud, as it is shown."""
    inputs = {
        tensor.name: {
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "first": first_elements(tensor, _SHOWN_ELEMENTS) if tensor.datatype in DATATYPES else [],
        }
        for tensor in ask.inputs
    }
    refusal = ask.why if ask.refused else None
    return {"model": ask.model, "inputs": inputs, "bytes": ask.size, "refusal": refusal, "why": ask.why}


def _summary(manifest: CheckedManifest, outcome: Outcome) -> dict[str, object]:
    tally = outcome.tally
    return {
        "kind": "summary",
        "task": manifest.task,
        "version": manifest.version,
        "event_count": outcome.event_count,
        "bad_line_count": outcome.bad_line_count,
        "trigger_count": tally.runs + outcome.dropped_run_count,
        "run_count": tally.runs,
        "failure_count": tally.failures,
        "frame_count": tally.frames,
        "refused_frame_count": tally.refused,
        "frame_bytes": tally.frame_bytes,
        "asked_count": tally.asked,
        "asked_bytes": tally.asked_bytes,
        "p50_ms": round(median(tally.walls_s) * 1e3, 3) if tally.walls_s else None,
        "given_up": outcome.given_up,
        "problems": list(outcome.problems),
    }


def _say(value: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Try a task as a process; return 0 if all was good, 1 if not, 2 for what can't be tried."""
    try:
        config = load(TryConfig, "device_agent_try", argv, environ)
    except HelpRequested as help_:
        print(help_)  # noqa: T201
        return 0
    except ConfigError as error:
        print(f"device agent, try: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_CONFIG
    # What the agent would warn of, a line says.
    logging.basicConfig(level=logging.ERROR)
    with suppress(BrokenPipeError):
        try:
            return 0 if asyncio.run(try_task(config, _say, SystemRandomness())) else EXIT_FAULT
        except Error as error:
            kind = next(base.__name__ for base in _KINDS if isinstance(error, base))
            _say({"kind": "error", "class": kind, "reason": error.reason, "message": error.message})
            return EXIT_CONFIG
        except KeyboardInterrupt:
            return _INTERRUPTED
    return 0

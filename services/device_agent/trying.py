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
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import BinaryIO

from isthmus.trust.v1 import trust_pb2
from libs.common.clock import SystemClock
from libs.common.config import ConfigError, HelpRequested, load
from libs.common.errors import Error, Invalid, NotFound, Precondition
from libs.common.rand import Randomness, SystemRandomness
from libs.task.manifest import Blob, CheckedManifest, check_manifest
from libs.task.source import FILE_NAME, read_task_json
from libs.trust.digests import sha256_of
from services.device_agent.app import Agent
from services.device_agent.capability import check_runs_here
from services.device_agent.config import AgentConfig
from services.device_agent.domain.rollout import Entry, State
from services.device_agent.errors import EXIT_CONFIG, EXIT_FAULT
from services.device_agent.replay import MAX_LINE_BYTES
from services.device_agent.running import Made
from services.device_agent.store import events as event_store
from services.device_agent.store import versions as version_store
from services.device_agent.tasks import Installed

_CHUNK_BYTES = 1024 * 1024
# A recording is tried whole: nothing of it is thrown away to save a device's disk.
_ALL_EVENTS, _ALL_BYTES = 1_000_000_000, 1 << 50
_POLL_S = 0.2
_INTERRUPTED = 130
_LONGEST_TEMP = 60

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


@dataclass(slots=True)
class Tally:
    """What the runs came to."""

    runs: int = 0
    failures: int = 0
    frames: int = 0
    refused: int = 0
    frame_bytes: int = 0
    walls_s: list[float] = field(default_factory=list)

    def add(self, made: Made) -> dict[str, object]:
        """Count a run; return it as it is shown."""
        finished = made.finished
        self.runs += 1
        self.failures += bool(finished.failure_reason)
        self.walls_s.append(made.wall_s)
        frames: list[dict[str, object]] = []
        for frame in finished.outgoing:
            if frame.refusal:
                self.refused += 1
                frames.append({"stream": frame.stream, "refusal": frame.refusal, "message": frame.message})
            else:
                self.frames += 1
                self.frame_bytes += len(frame.payload)
                frames.append({"stream": frame.stream, "payload": json.loads(frame.payload)})
        return {
            "kind": "run",
            "number": self.runs,
            "user": made.run.user,
            "event_time_s": made.run.event_time_s,
            "result": json.loads(finished.result) if finished.result else None,
            "failure": {"reason": finished.failure_reason, "message": finished.failure_message}
            if finished.failure_reason
            else None,
            "wall_ms": round(made.wall_s * 1e3, 3),
            "frames": frames,
            "logs": list(made.logs),
            "output": made.output,
        }


class _Folder:
    """The task's own files, where a device has the cloud."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    async def read_blob(self, digest: str, offset: int, size: int) -> AsyncGenerator[bytes]:
        with self._files[digest].open("rb") as file:
            file.seek(offset)
            while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                yield chunk


async def try_task(config: TryConfig, say: Say, randomness: Randomness) -> bool:
    """Run a task over recorded events and say what comes of it; return whether every run was good.

    Raises:
        Invalid: for a task or events that can't be used.
        NotFound: when a file isn't there.
        Precondition: when the task wants another agent or Python, or doesn't load.
    """
    tally = Tally()
    # A socket's path must be short, wherever temporary files are kept.
    where = tempfile.gettempdir() if len(tempfile.gettempdir()) < _LONGEST_TEMP else "/tmp"
    with tempfile.TemporaryDirectory(prefix="isthmus-try-", dir=where) as home:
        events = Path(home) / "events.jsonl"
        await asyncio.to_thread(_record, config, events)
        agent = Agent(
            AgentConfig(
                state_dir=Path(home) / "state",
                gateway_target="",
                events_file=str(events),
                vm_workers=1,
                max_events=_ALL_EVENTS,
                max_event_bytes=_ALL_BYTES,
                max_results=_ALL_EVENTS,
                max_frames=_ALL_EVENTS,
                max_frame_bytes=_ALL_BYTES,
                disk_reserve_bytes=0,
            ),
            randomness=randomness,
            runners=1,  # so that what is said comes in the order of the events, of all users
        )
        agent.runner.observe = lambda made: say(tally.add(made))
        try:
            await agent.start()
            manifest = await _install(agent, config.task_dir, randomness)
            await _run_all(agent, manifest.task)
            summary = await _summary(agent, manifest, tally)
        finally:
            await agent.close()
    say(summary)
    return not tally.failures


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


async def _install(agent: Agent, folder: Path, randomness: Randomness) -> CheckedManifest:
    """Put the task in place as a pull does, but for its signatures."""
    try:
        source = read_task_json(await asyncio.to_thread((folder / FILE_NAME).read_bytes), folder)
        blobs = {
            file: Blob(await asyncio.to_thread(sha256_of, file), file.stat().st_size) for file in source.files
        }
    except OSError as error:
        raise NotFound(f"{error.filename}: {error.strerror}") from error
    message = source.manifest(blobs)
    manifest = check_manifest(message)
    check_runs_here(manifest)
    files, origin = agent.tasks.files, _Folder({blob.digest: file for file, blob in blobs.items()})
    for blob in manifest.blobs:
        await files.fetch(origin, blob)
    await asyncio.to_thread(files.assemble, manifest, randomness.id())
    payload = message.SerializeToString()
    entry = Entry(manifest.task, manifest.version, sha256_of(payload), "")
    signed, moment = trust_pb2.Signed(payload=payload).SerializeToString(), agent.tasks.moment()
    await agent.database.run(lambda connection: version_store.put_staged(connection, entry, signed, moment))
    outcome = await agent.tasks.load(manifest)
    if not outcome.ok:
        raise Precondition(
            f"{manifest.key} doesn't load: {outcome.message}", reason=str(outcome.reason or "LOAD_ERROR")
        )
    await agent.tasks.activate([Installed(entry, manifest)], [])
    return manifest


async def _run_all(agent: Agent, task: str) -> None:
    """Run the agent until every event has been read and every run that it triggered has been made."""
    running = asyncio.create_task(agent.run())
    idle = asyncio.create_task(_idle(agent, task))
    try:
        await asyncio.wait({running, idle}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (running, idle):
            each.cancel()
        outcomes = await asyncio.gather(running, idle, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


async def _idle(agent: Agent, task: str) -> None:
    assert agent.reader is not None
    clock = SystemClock()
    await agent.reader.finished.wait()
    queue = agent.runner.queue
    while await agent.database.run(event_store.backlog, durable=False) or queue.waiting(task):
        await queue.bell.wait_or_sleep(queue.bell.rings, clock, _POLL_S)


async def _summary(agent: Agent, manifest: CheckedManifest, tally: Tally) -> dict[str, object]:
    assert agent.reader is not None
    status = await agent.status()
    counters = status.counters
    event_count = counters.get("event_count", 0)
    if agent.reader.bad_lines and not event_count:
        faults = [problem for problem in status.problems if problem.startswith("events file")]
        raise Invalid("; ".join(faults) or "no line is an event", reason="NO_EVENTS")
    (version,) = [each for each in status.versions if each.key == manifest.key]
    return {
        "kind": "summary",
        "task": manifest.task,
        "version": manifest.version,
        "event_count": event_count,
        "bad_line_count": agent.reader.bad_lines,
        "trigger_count": tally.runs + counters.get("dropped_run_count", 0),
        "run_count": tally.runs,
        "failure_count": tally.failures,
        "frame_count": tally.frames,
        "refused_frame_count": tally.refused,
        "frame_bytes": tally.frame_bytes,
        "p50_ms": round(median(tally.walls_s) * 1e3, 3) if tally.walls_s else None,
        "given_up": version.state is State.FAILED,
        "problems": [problem for problem in status.problems if problem.startswith("events")],
    }


def _say(value: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Try a task as a process; return 0 if every run was good, 1 if not, 2 for what can't be tried."""
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

"""A version run over recorded events with no cloud: what `task try` and the simulator share.

It is an agent without a gateway, in a folder of its own: the same store, trie, features and task VM as on a
device. What a device would pull comes from wherever the caller has the files, already verified or unsigned.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from isthmus.trust.v1 import trust_pb2
from libs.common.clock import SystemClock
from libs.common.errors import Internal, Invalid, Precondition
from libs.common.rand import Randomness
from libs.task.manifest import CheckedManifest
from libs.trust.digests import sha256_of
from services.device_agent.app import Agent
from services.device_agent.capability import check_runs_here
from services.device_agent.config import AgentConfig
from services.device_agent.domain.rollout import Entry, State
from services.device_agent.files import ReadsBlobs
from services.device_agent.running import Made
from services.device_agent.store import events as event_store
from services.device_agent.store import versions as version_store
from services.device_agent.tasks import Installed

# A recording is tried whole: nothing of it is thrown away to save a device's disk.
_ALL_EVENTS, _ALL_BYTES = 1_000_000_000, 1 << 50
_CHUNK_BYTES = 1024 * 1024
_POLL_S = 0.2


@dataclass(slots=True)
class Tally:
    """What the runs came to."""

    runs: int = 0
    failures: int = 0
    frames: int = 0
    refused: int = 0
    frame_bytes: int = 0
    asked: int = 0
    """Requests to models in the cloud that the manifest allows; nothing answers them here."""
    asked_bytes: int = 0
    walls_s: list[float] = field(default_factory=list)
    """Of each run, in seconds."""
    first_failure: Made | None = None

    def add(self, made: Made) -> None:
        """Count a run."""
        self.runs += 1
        self.walls_s.append(made.wall_s)
        if made.finished.failure_reason:
            self.failures += 1
            self.first_failure = self.first_failure or made
        for frame in made.finished.outgoing:
            if frame.refusal:
                self.refused += 1
            else:
                self.frames += 1
                self.frame_bytes += len(frame.payload)
        for ask in made.asks:
            if not ask.refused:
                self.asked += 1
                self.asked_bytes += ask.size


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended."""

    tally: Tally
    event_count: int
    bad_line_count: int
    dropped_run_count: int
    given_up: bool
    """Whether the version was given up for failures in a row, as a device would."""
    problems: tuple[str, ...]


class LocalFiles:
    """Files that are on this machine already, where a device has the cloud."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        """Give each file for its digest."""
        self._files = files

    async def read_blob(self, digest: str, offset: int, size: int) -> AsyncGenerator[bytes]:
        """See `ReadsBlobs`."""
        with self._files[digest].open("rb") as file:
            file.seek(offset)
            while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                yield chunk


async def run_trial(
    home: Path,
    payload: bytes,
    manifest: CheckedManifest,
    origin: ReadsBlobs,
    events: Path | None,
    randomness: Randomness,
    *,
    observe: Callable[[Made], None] = lambda made: None,
    tally: Tally | None = None,
    socket: Path | None = None,
    demanded: Collection[str] = (),
) -> Outcome:
    """Run a version over recorded events and return what came of it.

    Args:
        home: an empty folder.
        payload: the manifest's bytes.
        manifest: what they say, checked.
        origin: where its files are.
        events: JSON Lines; None only loads the version.
        randomness: ids.
        observe: told of each run.
        tally: is added to, for whoever looks at it before the end.
        socket: where the agent's socket goes, at most 100 bytes; None for a place in `home`.
        demanded: what must hold in the task VM (see `VmStats.confinement`) before any script is loaded.

    Raises:
        Internal: NOT_CONFINED, when this kernel lacks what is demanded.
        Precondition: when the version wants another agent or Python, or doesn't load.
        Invalid: when no line is an event.
    """
    tally = tally if tally is not None else Tally()
    agent = Agent(
        AgentConfig(
            state_dir=home / "state",
            gateway_target="",
            socket_path=socket,
            events_file=str(events) if events is not None else "",
            vm_workers=1,
            max_events=_ALL_EVENTS,
            max_event_bytes=_ALL_BYTES,
            disk_reserve_bytes=0,
        ),
        randomness=randomness,
        runners=1,  # so that what is said comes in the order of the events, of all users
    )

    def made(run: Made) -> None:
        tally.add(run)
        observe(run)

    agent.runner.observe = made
    try:
        await agent.start()
        missing = sorted(set(demanded) - set(agent.vm.stats().confinement))
        if missing:
            raise Internal(
                f"scripts can't be confined here ({' and '.join(missing)} missing), so none is run; run this "
                "on Linux 5.13 or newer with Landlock and seccomp, or, for people you trust, with "
                "--allow-unconfined",
                reason="NOT_CONFINED",
            )
        await _install(agent, payload, manifest, origin, randomness)
        await _run_all(agent, manifest.task)
        return await _outcome(agent, manifest, tally)
    finally:
        await agent.close()


async def _install(
    agent: Agent, payload: bytes, manifest: CheckedManifest, origin: ReadsBlobs, randomness: Randomness
) -> None:
    """Put the version in place as a pull does, but for its signatures."""
    check_runs_here(manifest)
    files = agent.tasks.files
    for blob in manifest.blobs:
        await files.fetch(origin, blob)
    await asyncio.to_thread(files.assemble, manifest, randomness.id())
    entry = Entry(manifest.task, manifest.version, sha256_of(payload), "")
    signed, moment = trust_pb2.Signed(payload=payload).SerializeToString(), agent.tasks.moment()
    await agent.database.run(lambda connection: version_store.put_staged(connection, entry, signed, moment))
    outcome = await agent.tasks.load(manifest)
    if not outcome.ok:
        raise Precondition(
            f"{manifest.key} doesn't load: {outcome.message}", reason=str(outcome.reason or "LOAD_ERROR")
        )
    await agent.tasks.activate([Installed(entry, manifest)], [])


async def _run_all(agent: Agent, task: str) -> None:
    """Run the agent until every event has been read and every run that it triggered has been made."""
    if agent.reader is None:
        return
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


async def _outcome(agent: Agent, manifest: CheckedManifest, tally: Tally) -> Outcome:
    status = await agent.status()
    counters = status.counters
    event_count = counters.get("event_count", 0)
    bad_lines = agent.reader.bad_lines if agent.reader is not None else 0
    if bad_lines and not event_count:
        faults = [problem for problem in status.problems if problem.startswith("events file")]
        raise Invalid("; ".join(faults) or "no line is an event", reason="NO_EVENTS")
    (version,) = [each for each in status.versions if each.key == manifest.key]
    return Outcome(
        tally,
        event_count,
        bad_lines,
        counters.get("dropped_run_count", 0),
        version.state is State.FAILED,
        tuple(problem for problem in status.problems if problem.startswith("events")),
    )

"""Simulations: so many at once, each in a folder that goes when it ends, as far as the disk has room."""

import asyncio
import contextlib
import logging
import os
import shutil
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from libs.common.blobs import BlobRef
from libs.common.clock import Clock
from libs.common.errors import Error, Exhausted, Internal, Invalid, Unavailable
from libs.common.fsio import disk_errors, remove_tree
from libs.common.names import TaskName, shown
from libs.common.rand import Randomness
from libs.common.sizes import size_text
from libs.task.event import MAX_RECORDING_BYTES
from libs.task.manifest import CheckedManifest
from services.device_agent.simulator import child
from services.device_agent.simulator.leash import to_its_end
from services.device_agent.simulator.verdict import TOO_MUCH_WRITTEN, Verdict, failed, verdict_from_json

_log = logging.getLogger("isthmus.simulator")

# A blob lies where it was downloaded to, in the agent's store of blobs, and in the version's folder.
_COPIES = 3
# An event takes more room in the agent's store than in its line: its row, indexes, its part of the journal.
_EVENT_FACTOR = 8
_BUSY_RETRY_S = 5.0
_FULL_RETRY_S = 30.0
# Beyond its own deadline a simulation's process is given this to say so, in seconds.
_GRACE_S = 15.0
_WATCH_S = 1.0
_ENTRY_BYTES = 4096
_REMOVALS = 20
_REMOVAL_PAUSE_S = 0.05
_ERRORS: Mapping[str, type[Error]] = {
    kind.__name__: kind for kind in (Invalid, Exhausted, Unavailable, Internal)
}

RunChild = Callable[[Path, float], Awaitable[Mapping[str, Any]]]


class Blobs(Protocol):
    """Where the files of versions are; each call is for one tenant."""

    async def download(self, tenant: str, ref: BlobRef, path: Path) -> None:
        """Put a blob at `path`, whole and checked.

        Raises:
            NotFound: when the tenant has no such blob.
            Unavailable: when it can't be had now.
            Exhausted: when the disk is full.
        """
        ...


class Meter(Protocol):
    """What is counted for the operator."""

    def running(self, count: int) -> None:
        """Show how many simulations run."""
        ...

    def ended(self, outcome: str, seconds: float) -> None:
        """Count one that "passed", "failed", was "refused", or ended by an "error" or a "cancelled" call."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """See `SimulatorConfig`."""

    at_once: int
    deadline_s: float
    scratch_bytes: int
    reserve_bytes: int


class Simulations:
    """Runs simulations. One process uses a folder; `sweep` removes what an earlier one left there."""

    def __init__(
        self,
        folder: Path,
        blobs: Blobs,
        run_child: RunChild,
        limits: Limits,
        clock: Clock,
        randomness: Randomness,
        meter: Meter,
        *,
        free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    ) -> None:
        """Work in `folder`, which is there; `run_child` runs the process of one simulation."""
        self._folder = folder
        self._blobs = blobs
        self._run_child = run_child
        self._limits = limits
        self._clock = clock
        self._randomness = randomness
        self._meter = meter
        self._free_bytes = free_bytes
        self._running = 0
        self._reserved = 0

    async def sweep(self) -> None:
        """Remove the folders of simulations that ended with their simulator."""
        for left in await asyncio.to_thread(lambda: list(self._folder.iterdir())):
            await _remove(left)

    async def simulate(
        self, task: TaskName, payload: bytes, manifest: CheckedManifest, events: BlobRef | None
    ) -> Verdict:
        """Run a version over recorded events.

        Args:
            task: whose version it is.
            payload: the manifest's bytes.
            manifest: what they say, checked.
            events: JSON Lines; None only loads the version.

        Raises:
            Invalid: when it is another task's manifest, or the events can't be used, naming the line.
            Exhausted: when as many run as may, or the disk hasn't the room.
            NotFound: when the tenant lacks a file.
            Unavailable: when the deployer can't be reached.
            Internal: when the simulation's process broke.
        """
        if manifest.task != task.task:
            raise Invalid(
                f"manifest.task: {shown(manifest.task)} is not the parent's, {task.task!r}",
                reason="WRONG_TASK",
            )
        if events is not None and events.size_bytes > MAX_RECORDING_BYTES:
            raise Invalid(
                f"events: has {size_text(events.size_bytes)}, more than {size_text(MAX_RECORDING_BYTES)}; "
                "give a shorter recording",
                reason="TOO_LARGE",
                metadata={"field": "events"},
            )
        started, outcome = self._clock.monotonic(), "error"
        try:
            async with self._room(manifest, events) as (folder, room):
                await self._fetch(task.tenant, payload, manifest, events, folder)
                verdict = await self._run(folder, room)
            outcome = "passed" if verdict.passed else "failed"
            return verdict
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except (Invalid, Exhausted):
            outcome = "refused"
            raise
        finally:
            self._meter.ended(outcome, self._clock.monotonic() - started)

    @contextlib.asynccontextmanager
    async def _room(
        self, manifest: CheckedManifest, events: BlobRef | None
    ) -> AsyncIterator[tuple[Path, int]]:
        """Give a folder, and how much may be written there; gone when the block ends."""
        if self._running >= self._limits.at_once:
            raise Exhausted(
                f"the simulator tries {self._running} versions already, as many as it may; try again",
                reason="SIMULATOR_BUSY",
                retry_after_s=_BUSY_RETRY_S,
            )
        room = (
            _COPIES * sum(blob.size_bytes for blob in manifest.blobs)
            + (_EVENT_FACTOR * events.size_bytes if events is not None else 0)
            + self._limits.scratch_bytes
        )
        free, kept = self._free_bytes(self._folder), self._limits.reserve_bytes
        if room > free - kept - self._reserved:
            others = (
                f" and {size_text(self._reserved)} are promised to other versions" if self._reserved else ""
            )
            raise Exhausted(
                f"the simulator needs {size_text(room)} of disk for this version; {size_text(free)} are free "
                f"on its machine, of which {size_text(kept)} must stay free{others}: let "
                "its operator free some space, or lower --scratch-bytes or --disk-reserve-bytes",
                reason="DISK_FULL",
                retry_after_s=_FULL_RETRY_S,
            )
        folder = self._folder / self._randomness.id()
        self._running += 1
        self._reserved += room
        self._meter.running(self._running)
        try:
            yield folder, room
        finally:
            self._running -= 1
            self._reserved -= room
            self._meter.running(self._running)
            await to_its_end(_remove(folder))

    async def _fetch(
        self, tenant: str, payload: bytes, manifest: CheckedManifest, events: BlobRef | None, folder: Path
    ) -> None:
        blobs = folder / child.BLOBS
        with disk_errors(folder):
            for each in (folder, blobs, folder / child.HOME):
                each.mkdir(mode=0o700)
            await asyncio.to_thread((folder / child.MANIFEST).write_bytes, payload)
        for blob in manifest.blobs:
            ref = BlobRef(blob.digest, blob.size_bytes)
            await self._blobs.download(tenant, ref, blobs / blob.digest.removeprefix("sha256:"))
        if events is not None:
            await self._blobs.download(tenant, events, folder / child.EVENTS)

    async def _run(self, folder: Path, room: int) -> Verdict:
        deadline_s = self._limits.deadline_s
        running = asyncio.ensure_future(self._run_child(folder, deadline_s))
        watching = asyncio.ensure_future(self._watch(folder, room))
        try:
            await asyncio.wait(
                {running, watching}, timeout=deadline_s + _GRACE_S, return_when=asyncio.FIRST_COMPLETED
            )
            if running.done():
                return _read(running.result())
            if watching.done():
                watching.result()
                return failed(
                    TOO_MUCH_WRITTEN,
                    f"its scripts wrote more than {size_text(self._limits.scratch_bytes)} of files, or "
                    "folders that can't be looked into",
                )
            raise Internal(
                f"the simulation's process was silent for {deadline_s + _GRACE_S:g} s",
                reason="SIMULATION_BROKEN",
            )
        finally:
            for each in (running, watching):
                each.cancel()
            await to_its_end(asyncio.gather(running, watching, return_exceptions=True))

    async def _watch(self, folder: Path, room: int) -> None:
        """Return when there is more in `folder` than `room`."""
        while await asyncio.to_thread(_fits, folder, room):
            await self._clock.sleep(_WATCH_S)


def _read(said: Mapping[str, Any]) -> Verdict:
    """Return the verdict that a simulation's process gave; raise the error."""
    try:
        if "error" in said:
            error = said["error"]
            kind = _ERRORS[error["class"]]
            metadata = {"field": "events"} if kind is Invalid else {}
            fault = kind(str(error["message"]), reason=str(error["reason"]), metadata=metadata)
        else:
            return verdict_from_json(said["verdict"])
    except (KeyError, TypeError, ValueError, AttributeError) as wrong:
        raise Internal(
            f"the simulation's process said something else than a verdict: {wrong}",
            reason="SIMULATION_BROKEN",
        ) from wrong
    raise fault


def _fits(folder: Path, room: int) -> bool:
    """Tell whether less than `room` bytes of disk are used under `folder`; symlinks aren't followed.

    Where nobody can look, because paths are too long or a folder forbids it, there may be any amount.
    """
    left, folders = room, [folder]
    while folders and left >= 0:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    left -= max(_ENTRY_BYTES, status.st_blocks * 512)
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(Path(entry.path))
                    if left < 0:
                        break
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed while we looked
        except OSError:
            return False
    return left >= 0


async def _remove(folder: Path) -> None:
    """Remove a folder, though a worker that is being killed may still write there."""
    for _ in range(_REMOVALS):
        if await asyncio.to_thread(remove_tree, folder):
            return
        await asyncio.sleep(_REMOVAL_PAUSE_S)
    _log.error("a simulation's folder can't be removed", extra={"folder": str(folder)})

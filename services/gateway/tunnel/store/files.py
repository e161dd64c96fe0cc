"""The log on files: a folder with a description, a lock and a folder for each partition.

<folder>/log.json     format, log_id, partitions
<folder>/lock         held by the one process that has the log open
<folder>/p-000/       marks, 00000000000000000000-<salt>.seg, ...
"""

import asyncio
import fcntl
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from libs.common.clock import Clock
from libs.common.errors import Internal, Precondition
from libs.common.fsio import fsync_dir, write_atomic
from libs.common.rand import Randomness
from services.gateway.tunnel.domain.frame import Device, Frame, Receipt, Stream
from services.gateway.tunnel.store.disk import Disk, SystemDisk
from services.gateway.tunnel.store.log import Bounds, LogStats, Slice, partition_of
from services.gateway.tunnel.store.partition import Partition, PartitionSettings
from services.gateway.tunnel.store.writer import Writer

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How the log is divided and how long it keeps."""

    partitions: int = 8
    """Fixed at creation; opening with another number is refused, since a device's frames would be looked for
    in the wrong place."""
    segment_bytes: int = 16 * 1024 * 1024
    retention_bytes: int = 8 * 1024**3
    """For all partitions together."""
    retention_age_s: float = 7 * 86400.0
    queue_bytes: int = 32 * 1024 * 1024
    """Frames waiting for the writer, for each partition."""


def _ignore(seconds: float, frames: int) -> None:
    pass


class FileLog:
    """Keeps the promises of `Log` on a local disk. Made by `open_log`."""

    def __init__(
        self,
        log_id: str,
        lock_fd: int,
        partitions: Sequence[Partition],
        settings: LogSettings,
        clock: Clock,
        on_commit: Callable[[float, int], None],
    ) -> None:
        self._log_id = log_id
        self._lock_fd = lock_fd
        self._partitions = partitions
        self._grown: set[asyncio.Future[None]] = set()
        self._writers = [
            Writer(
                partition,
                queue_bytes=settings.queue_bytes,
                monotonic=clock.monotonic,
                on_commit=on_commit,
                on_grown=self._wake,
            )
            for partition in partitions
        ]

    @property
    def log_id(self) -> str:
        """See `Log`."""
        return self._log_id

    @property
    def partitions(self) -> int:
        """See `Log`."""
        return len(self._partitions)

    async def append(self, frames: Sequence[Frame]) -> Receipt:
        """See `Log`."""
        if not frames:
            return Receipt((), {})
        return await self._writers[partition_of(frames[0].device, self.partitions)].append(frames)

    def marks(self, device: Device) -> Mapping[Stream, int]:
        """See `Log`."""
        return self._partitions[partition_of(device, self.partitions)].marks(device)

    def bounds(self) -> Sequence[Bounds]:
        """See `Log`."""
        return [partition.bounds() for partition in self._partitions]

    async def read(self, partition: int, offset: int, max_bytes: int) -> Slice:
        """See `Log`."""
        return await asyncio.to_thread(self._partitions[partition].read, offset, max_bytes)

    async def wait(self, ends: Sequence[int]) -> None:
        """See `Log`."""
        while list(ends) == [bounds.end for bounds in self.bounds()]:
            waiter = asyncio.get_running_loop().create_future()
            self._grown.add(waiter)
            try:
                await waiter
            finally:
                self._grown.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._grown:
            if not waiter.done():
                waiter.set_result(None)

    async def trim(self) -> int:
        """See `Log`."""
        removed = 0
        for writer, partition in zip(self._writers, self._partitions, strict=True):
            removed += await writer.call(partition.trim)
        return removed

    async def probe(self) -> None:
        """See `Log`."""
        for writer, partition in zip(self._writers, self._partitions, strict=True):
            await writer.call(partition.probe)

    def stats(self) -> LogStats:
        """See `Log`."""
        parts = [partition.stats() for partition in self._partitions]
        return LogStats(
            bytes=sum(part.bytes for part in parts),
            segments=sum(part.segments for part in parts),
            quarantined=sum(part.quarantined for part in parts),
            torn_bytes=sum(part.torn_bytes for part in parts),
            fault=next((part.fault for part in parts if part.fault), ""),
        )

    async def close(self) -> None:
        """See `Log`."""
        for writer in self._writers:
            await writer.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


async def open_log(
    folder: Path,
    settings: LogSettings,
    *,
    clock: Clock,
    randomness: Randomness,
    disk: Disk | None = None,
    on_commit: Callable[[float, int], None] = _ignore,
) -> FileLog:
    """Open the log in `folder`, creating or recovering it; close it with `close`.

    Args:
        folder: where to; created if its parent is there.
        settings: sizes and ages.
        clock: wall-clock time goes into records.
        randomness: for the log's id and the segments' salts.
        disk: the machine's, unless a test puts another in its place.
        on_commit: told the seconds and the number of frames of each commit.

    Raises:
        Precondition: LOG_IN_USE when another process has it open; LOG_MISMATCH when it was created with
            another number of partitions.
            DATA_DIR_UNUSABLE when the folder can't be used.
        Exhausted: DISK_FULL when a new log can't be created.
        Internal: LOG_DAMAGED, MARKS_DAMAGED or MARKS_MISSING; the message names the file.
    """

    def now_ms() -> int:
        return int(clock.now().timestamp() * 1000)

    def recover() -> tuple[str, int, list[Partition]]:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock_fd = _lock(folder)
        try:
            log_id = _describe(folder, settings, randomness)
            each = PartitionSettings(
                segment_bytes=settings.segment_bytes,
                retention_bytes=settings.retention_bytes // settings.partitions,
                retention_age_s=settings.retention_age_s,
            )
            partitions = [
                Partition(
                    folder / f"p-{number:03d}",
                    each,
                    disk=disk or SystemDisk(),
                    randomness=randomness,
                    now_ms=now_ms,
                )
                for number in range(settings.partitions)
            ]
            fsync_dir(folder)
            fsync_dir(folder.parent)
        except BaseException:
            os.close(lock_fd)
            raise
        return log_id, lock_fd, partitions

    try:
        log_id, lock_fd, partitions = await asyncio.to_thread(recover)
    except OSError as error:
        raise Precondition(
            f"data_dir: {folder} can't be used as the log's folder ({error}); its parent must be there, and "
            "this "
            "process must be allowed to read and write in it",
            reason="DATA_DIR_UNUSABLE",
        ) from error
    return FileLog(log_id, lock_fd, partitions, settings, clock, on_commit)


def _lock(folder: Path) -> int:
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise Precondition(
            f"the log in {folder} is open in another process; stop that one, or give this one its own "
            "data_dir",
            reason="LOG_IN_USE",
        ) from None
    return fd


def _describe(folder: Path, settings: LogSettings, randomness: Randomness) -> str:
    """Read the log's description, or write it for a new one; return the log's id."""
    path = folder / "log.json"
    try:
        found = json.loads(path.read_bytes())
        version, partitions, log_id = int(found["format"]), int(found["partitions"]), str(found["log_id"])
    except FileNotFoundError:
        if any(folder.glob("p-*")):
            raise Internal(
                f"{path} is missing, though there are partitions beside it: restore it from a backup",
                reason="LOG_DAMAGED",
            ) from None
        log_id = randomness.id(16)
        content = {"format": _FORMAT, "log_id": log_id, "partitions": settings.partitions}
        write_atomic(path, json.dumps(content).encode(), 0o600)
        return log_id
    except (ValueError, KeyError, TypeError) as error:
        raise Internal(f"{path} can't be read: {error}", reason="LOG_DAMAGED") from None
    if version != _FORMAT:
        raise Precondition(
            f"{path}: format {version} is newer than this program, which knows {_FORMAT}; run a newer one",
            reason="LOG_MISMATCH",
        )
    if partitions != settings.partitions:
        raise Precondition(
            f"the log in {folder} was created with {partitions} partitions, not {settings.partitions}; "
            f"set partitions to {partitions}",
            reason="LOG_MISMATCH",
        )
    return log_id

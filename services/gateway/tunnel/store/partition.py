"""One partition of the file log: its segments and marks, recovery, retention. Synchronous.

    active     the last segment, open for writing
    sealed     every other one; never written again
    end        offset that the next record gets; everything below is durable

`append`, `trim`, `probe` and `close` belong to one writer thread; everything else may be called from any.
"""

import contextlib
import errno
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from libs.common.errors import Error, Exhausted, Internal, OutOfRange, Unavailable
from libs.common.fsio import fsync_dir, write_atomic
from libs.common.rand import Randomness
from services.gateway.tunnel.domain.frame import Device, Frame, Outcome, Receipt, Stream
from services.gateway.tunnel.domain.marks import Marks, admit
from services.gateway.tunnel.store import checkpoint, codec
from services.gateway.tunnel.store.disk import Disk
from services.gateway.tunnel.store.log import Bounds, LogStats, Slice
from services.gateway.tunnel.store.scan import Scan
from services.gateway.tunnel.store.segment import Segment

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PROBE_BYTES = 64 * 1024
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Sizes and ages of one partition."""

    segment_bytes: int
    """A segment that would grow past this is sealed and a new one begun."""
    retention_bytes: int
    """Sealed segments go, oldest first, while all together are larger than this."""
    retention_age_s: float
    """Segments whose newest record is older than this go."""


def write_error(error: OSError) -> Error:
    """Say what a failed write means to whoever appends."""
    if error.errno in _NO_ROOM:
        return Exhausted(
            "the tunnel's log has no room left: frames are refused until there is; free disk space or "
            "shorten its "
            "retention",
            reason="DISK_FULL",
            retry_after_s=5.0,
        )
    return Unavailable(
        "the tunnel's log can't be written; see the service's log",
        reason="LOG_WRITE_FAILED",
        retry_after_s=5.0,
    )


class Partition:
    """A folder with segments and a file of marks."""

    def __init__(
        self,
        folder: Path,
        settings: PartitionSettings,
        *,
        disk: Disk,
        randomness: Randomness,
        now_ms: Callable[[], int],
    ) -> None:
        """Open the folder, creating or recovering it.

        Raises:
            Internal: MARKS_DAMAGED or MARKS_MISSING, when the marks are lost and the segments don't reach
                back to the beginning.
            OSError: when the folder can't be read or written.
        """
        self._folder = folder
        self._settings = settings
        self._disk = disk
        self._randomness = randomness
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._segments: list[Segment] = []
        self._marks = Marks()
        self._end = 0
        self._must_roll = True
        self.torn_bytes = 0
        self.fault = ""
        folder.mkdir(mode=0o700, exist_ok=True)
        self._recover()

    # Recovery

    def _recover(self) -> None:
        for leftover in self._folder.glob(".*.tmp"):
            leftover.unlink()
        segments = Segment.find(self._folder)
        replay_from = self._load_marks(segments)
        for segment, after in itertools.pairwise(segments):
            if after.base > replay_from:
                self._replay(segment, replay_from, after.base)
        self._end = replay_from
        if segments:
            self._recover_last(segments, replay_from)
        self._segments = segments

    def _load_marks(self, segments: list[Segment]) -> int:
        """Load the marks' file; return the offset from which segments must be replayed."""
        whole = not segments or segments[0].base == 0
        try:
            loaded = checkpoint.load(self._folder)
        except Internal as damage:
            if not whole:
                raise Internal(
                    f"{damage.message}; the segments beside it start at {segments[0].base}, so the marks "
                    "can't be built "
                    "again from them: restore this file from a backup",
                    reason="MARKS_DAMAGED",
                ) from None
            _log.error("%s; building the marks again from the segments", damage.message)
            return 0
        if loaded is None:
            if not whole:
                raise Internal(
                    f"{self._folder / checkpoint.NAME} is missing, and the segments beside it start at "
                    f"{segments[0].base}: restore it from a backup",
                    reason="MARKS_MISSING",
                )
            return 0
        self._marks, offset = loaded
        return offset

    def _replay(self, segment: Segment, start: int, limit: int | None) -> Scan:
        """Check a segment and advance the marks by its records from `start` on."""
        found = segment.examine(limit)
        data = segment.path.read_bytes()
        for block in found.blocks:
            if block.end > start:
                for record in codec.records(data, block.position, block):
                    if start <= record.offset:
                        frame = record.frame
                        self._marks.advance(frame.device, frame.stream, frame.sequence)
        if found.blocks:
            segment.newest_ms = found.blocks[-1].written_ms
        return found

    def _recover_last(self, segments: list[Segment], replay_from: int) -> None:
        last = segments[-1]
        found = self._replay(last, replay_from, None)
        if not found.header_whole and not found.blocks and found.end >= replay_from:
            # The crash came while the segment was being created.
            self.torn_bytes += last.size
            last.remove()
            segments.pop()
            self._end = max(self._end, last.base)
            return
        tail = last.size - found.good_bytes
        self._end = max(self._end, found.end)
        if found.end < replay_from:
            # A clean close had noted that these records were durable: this is no torn write.
            last.examine(replay_from)
        if last.quarantined:
            return
        file = self._disk.open(last.path)
        if tail > 0:
            _log.warning(
                "cut a torn tail of %d bytes off %s: its frames were never acknowledged", tail, last.path.name
            )
            self.torn_bytes += tail
            file.truncate(found.good_bytes)
        # What was found whole may still be only in the page cache, and is about to be called durable.
        file.sync()
        last.size, last.file = found.good_bytes, file
        self._must_roll = False

    # Writing

    def append(self, jobs: Sequence[Sequence[Frame]]) -> list[Receipt]:
        """Keep the frames of several appends by one write and one sync.

        Raises:
            Exhausted: DISK_FULL; nothing of any job was kept.
            Unavailable: LOG_WRITE_FAILED; nothing of any job was kept.
        """
        fresh: dict[tuple[Device, Stream], int] = {}
        stored: list[Frame] = []
        outcomes: list[tuple[Outcome, ...]] = []
        for frames in jobs:
            row = []
            for frame in frames:
                key = (frame.device, frame.stream)
                mark = fresh.get(key)
                if mark is None:
                    mark = self._marks.get(*key)
                outcome = admit(mark, frame.sequence)
                if outcome is Outcome.STORED:
                    fresh[key] = frame.sequence
                    stored.append(frame)
                row.append(outcome)
            outcomes.append(tuple(row))
        if stored:
            self._write(stored)
            with self._lock:
                for frame in stored:
                    self._marks.advance(frame.device, frame.stream, frame.sequence)
                self._end += len(stored)
        return [
            Receipt(row, {frame.stream: self._marks.get(frame.device, frame.stream) for frame in frames})
            for row, frames in zip(outcomes, jobs, strict=True)
        ]

    def _write(self, frames: Sequence[Frame]) -> None:
        now_ms = self._now_ms()
        try:
            active = self._active()
            block = codec.encode_block(active.salt, self._end, now_ms, frames)
            if active.size + len(block) > self._settings.segment_bytes and active.base < self._end:
                self._must_roll = True
                active = self._active()
                block = codec.encode_block(active.salt, self._end, now_ms, frames)
            try:
                active.write(block, self._end, now_ms)
            except OSError as error:
                active.rollback()
                # After a failed sync nobody knows what the page cache holds: never sync that file again.
                self._must_roll = error.errno not in _NO_ROOM
                raise
        except OSError as error:
            self._failed(error)
            raise write_error(error) from error
        except Exhausted as full:
            self._failed(full)
            raise write_error(OSError(errno.ENOSPC, full.message)) from full
        if self.fault:
            _log.warning("%s: writing works again", self._folder.name)
            self.fault = ""

    def _failed(self, error: Exception) -> None:
        if not self.fault:
            _log.error("%s: can't write: %s", self._folder.name, error)
        self.fault = str(error)

    def _active(self) -> Segment:
        """Return the segment to write to, sealing the last and creating a new one if it must be."""
        if not self._must_roll:
            return self._segments[-1]
        last = self._segments[-1] if self._segments else None
        if last is not None and last.base == self._end and not last.quarantined:
            # It holds nothing and its name is needed.
            last.remove()
            with self._lock:
                self._segments.pop()
        segment = Segment.create(
            self._disk, self._folder, self._end, self._randomness.bytes(8), self._now_ms()
        )
        if last is not None:
            last.seal()
        with self._lock:
            self._segments.append(segment)
        self._must_roll = False
        if last is not None:
            self._checkpoint()
        return segment

    def _checkpoint(self) -> bool:
        try:
            checkpoint.save(self._folder, self._marks, self._end)
        except (OSError, Exhausted) as error:
            _log.warning("%s: the marks weren't saved: %s", self._folder.name, error)
            return False
        return True

    def trim(self) -> int:
        """Remove old segments as the settings say; return how many records went."""
        now_ms = self._now_ms()
        oldest_ms = now_ms - int(self._settings.retention_age_s * 1000)
        with contextlib.suppress(OSError, Exhausted):
            last = self._segments[-1] if self._segments else None
            if last is not None and last.base < self._end and last.newest_ms < oldest_ms:
                self._must_roll = True
                self._active()
        excess = sum(segment.size for segment in self._segments) - self._settings.retention_bytes
        doomed: list[Segment] = []
        for segment in self._segments[:-1]:
            if segment.newest_ms >= oldest_ms and excess <= 0:
                break
            excess -= segment.size
            doomed.append(segment)
        # The marks of what goes must be safe first.
        if not doomed or not self._checkpoint():
            return 0
        before = self._segments[0].base
        with self._lock:
            del self._segments[: len(doomed)]
        for segment in doomed:
            segment.remove()
        fsync_dir(self._folder)
        return self._segments[0].base - before

    def probe(self) -> None:
        """Find out whether there is room again after a fault."""
        if not self.fault:
            return
        path = self._folder / "probe"
        try:
            write_atomic(path, bytes(_PROBE_BYTES), 0o600)
            path.unlink()
        except (OSError, Exhausted):
            return
        self.fault = ""

    def close(self) -> None:
        """Save the marks and release the files."""
        if self._segments:
            self._checkpoint()
            self._segments[-1].seal()

    # Reading

    def marks(self, device: Device) -> dict[Stream, int]:
        """Return the durable marks of a device."""
        with self._lock:
            return dict(self._marks.of(device))

    def bounds(self) -> Bounds:
        """Return the offsets that are kept."""
        with self._lock:
            return Bounds(self._segments[0].base if self._segments else self._end, self._end)

    def read(self, offset: int, max_bytes: int) -> Slice:
        """Return records from `offset` on; see `Log.read`."""
        with self._lock:
            earliest = self._segments[0].base if self._segments else self._end
            end, segment, limit = self._end, None, self._end
            for candidate in reversed(self._segments):
                if candidate.base <= offset:
                    segment = candidate
                    break
                limit = candidate.base
        if not earliest <= offset <= end:
            raise OutOfRange(
                f"offset {offset} isn't kept: there are {earliest} to {end}; start without a position",
                reason="POSITION_EXPIRED",
                metadata={"earliest": str(earliest), "end": str(end)},
            )
        if offset == end or segment is None:
            return Slice((), offset)
        found = segment.read(offset, limit, max_bytes)
        return Slice(tuple(found), found[-1].offset + 1)

    def stats(self) -> LogStats:
        """Return this partition's part of the log's state."""
        with self._lock:
            segments = list(self._segments)
        return LogStats(
            bytes=sum(segment.size for segment in segments),
            segments=len(segments),
            quarantined=sum(segment.quarantined for segment in segments),
            torn_bytes=self.torn_bytes,
            fault=self.fault,
        )

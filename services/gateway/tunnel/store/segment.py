"""One segment: a file of blocks, its sparse index, its damages."""

import contextlib
import itertools
import json
import logging
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from libs.common.errors import Internal, OutOfRange, Unavailable
from libs.common.fsio import fsync_dir, write_atomic
from services.gateway.tunnel.domain.frame import Record
from services.gateway.tunnel.store import codec
from services.gateway.tunnel.store.disk import Disk, DiskFile
from services.gateway.tunnel.store.scan import Damage, Scan, scan

_NAME = re.compile(r"(\d{20})-([0-9a-f]{16})\.seg")
_INDEX_EVERY_BYTES = 64 * 1024
_log = logging.getLogger(__name__)


class Segment:
    """A segment. Any thread may read it; its partition's writer writes it while `file` is open."""

    def __init__(self, path: Path, base: int, salt: bytes, created_ms: int) -> None:
        self.path = path
        self.base = base
        self.salt = salt
        self.created_ms = created_ms
        self.size = codec.HEADER_BYTES
        """Durable bytes; what lies beyond in the file doesn't count."""
        self.newest_ms = created_ms
        """When the last record was written, at the latest."""
        self.damages: list[Damage] = []
        self.file: DiskFile | None = None
        self._index: list[tuple[int, int]] | None = None
        self._lock = threading.Lock()

    @classmethod
    def create(cls, disk: Disk, folder: Path, base: int, salt: bytes, now_ms: int) -> "Segment":
        """Create an empty segment, durably, open for writing.

        Raises:
            OSError, Exhausted: nothing was left behind.
        """
        path = folder / f"{base:020d}-{salt.hex()}.seg"
        segment = cls(path, base, salt, now_ms)
        segment._index = []
        file = disk.create(path)
        try:
            file.write_at(0, codec.segment_header(now_ms))
            file.sync()
            fsync_dir(folder)
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        segment.file = file
        return segment

    @classmethod
    def find(cls, folder: Path) -> list["Segment"]:
        """Return the segments in a folder, oldest first, with what was known of their damage."""
        segments = []
        for path in sorted(folder.iterdir()):
            match = _NAME.fullmatch(path.name)
            if not match:
                continue
            status = path.stat()
            with path.open("rb") as file:
                created_ms = codec.parse_segment_header(file.read(codec.HEADER_BYTES))
            segment = cls(
                path,
                int(match[1]),
                bytes.fromhex(match[2]),
                created_ms if created_ms is not None else int(status.st_mtime * 1000),
            )
            segment.size = status.st_size
            segment._load_damages()
            segments.append(segment)
        for sealed, after in itertools.pairwise(segments):
            sealed.newest_ms = after.created_ms
        return segments

    @property
    def _sidecar(self) -> Path:
        return self.path.with_suffix(".damaged")

    @property
    def quarantined(self) -> bool:
        """Whether acknowledged records in it are damaged."""
        return bool(self.damages)

    def write(self, block: bytes, first_offset: int, now_ms: int) -> None:
        """Append a block durably.

        Raises:
            OSError: nothing was added. The segment may be written again if `rollback` succeeds.
        """
        assert self.file is not None
        self.file.write_at(self.size, block)
        self.file.sync()
        with self._lock:
            index = self._index if self._index is not None else []
            if not index or self.size - index[-1][1] >= _INDEX_EVERY_BYTES:
                index.append((first_offset, self.size))
            self._index = index
            self.size += len(block)
            self.newest_ms = now_ms

    def rollback(self) -> None:
        """Cut what a failed write left. Where even that fails, the next write or recovery gets rid of it."""
        assert self.file is not None
        with contextlib.suppress(OSError):
            self.file.truncate(self.size)

    def seal(self) -> None:
        """Close the file for writing."""
        if self.file is not None:
            self.file.close()
            self.file = None

    def remove(self) -> None:
        """Delete the segment. A reader that has it open goes on reading."""
        self.seal()
        self.path.unlink(missing_ok=True)
        self._sidecar.unlink(missing_ok=True)

    def examine(self, limit: int | None) -> Scan:
        """Read the whole file, check every block, build the index and note damages.

        Args:
            limit: the next segment's base, or the partition's end. Everything below it had been
                acknowledged, so what is missing is damage. Whole blocks from there on don't count: they were
                never acknowledged, or came just now. None where nobody knows yet: recovery of the last
                segment.
        """
        with self._lock:
            found = scan(self.path.read_bytes()[: self.size], self.salt, self.base)
            if limit is not None:
                found.blocks = [block for block in found.blocks if block.first_offset < limit]
                found.damages = [damage for damage in found.damages if damage.start < limit]
                found.end = found.blocks[-1].end if found.blocks else self.base
                if found.end < limit and not (found.damages and found.damages[-1].stop >= limit):
                    found.damages.append(Damage(found.end, limit, found.good_bytes))
            self._index = []
            after_damage = {damage.stop for damage in found.damages}
            for block in found.blocks:
                near = self._index and block.position - self._index[-1][1] < _INDEX_EVERY_BYTES
                if not near or block.first_offset in after_damage:
                    self._index.append((block.first_offset, block.position))
            self.quarantine(found.damages)
        return found

    def quarantine(self, damages: list[Damage]) -> None:
        """Note damages, in a file beside the segment too, so that every later process knows at once."""
        new = [damage for damage in damages if damage not in self.damages]
        if not new:
            return
        self.damages = sorted([*self.damages, *new], key=lambda damage: (damage.start, damage.stop))
        for damage in new:
            _log.error(
                "segment %s is damaged at byte %d: acknowledged records %d to %d can't be read; it is "
                "quarantined",
                self.path.name,
                damage.position,
                damage.start,
                damage.stop - 1,
            )
        rows = [[damage.start, damage.stop, damage.position] for damage in self.damages]
        # A read-only or full disk must not hide the damage: it is known in memory and will be found again.
        with contextlib.suppress(OSError):
            write_atomic(self._sidecar, json.dumps({"damages": rows}).encode(), 0o600)

    def _load_damages(self) -> None:
        try:
            rows = json.loads(self._sidecar.read_bytes())["damages"]
            self.damages = [Damage(int(start), int(stop), int(position)) for start, stop, position in rows]
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            # The note itself is damaged: the segment will tell when it is read.
            _log.error("%s can't be read (%s); its segment will be examined", self._sidecar.name, error)
            self.examine(None)

    def read(self, offset: int, limit: int, max_bytes: int) -> list[Record]:
        """Return whole records from `offset` on, in order: at least one, about `max_bytes` at most.

        Args:
            offset: in this segment.
            limit: the next segment's base, or the partition's end; records from there on aren't visible.
            max_bytes: when to stop.

        Raises:
            Internal: SEGMENT_DAMAGED, when `offset` lies in a damage.
            Unavailable: when the file reads differently each time.
            OutOfRange: when retention removed the segment meanwhile.
        """
        try:
            if self._index is None:
                self.examine(limit)
            self._refuse_damaged(offset)
            found = list(self._read(offset, limit, max_bytes))
            if not found:
                # The bytes went bad since they were examined.
                self.examine(limit)
                self._refuse_damaged(offset)
                found = list(self._read(offset, limit, max_bytes))
            if not found:
                raise Unavailable(f"log segment {self.path.name} can't be read at offset {offset}; try again")
        except FileNotFoundError:
            raise OutOfRange(
                f"offset {offset}: retention has removed it; start without a position",
                reason="POSITION_EXPIRED",
            ) from None
        return found

    def _refuse_damaged(self, offset: int) -> None:
        for damage in self.damages:
            if damage.start <= offset < damage.stop:
                raise Internal(
                    f"log segment {self.path.name} is damaged at byte {damage.position}: records "
                    f"{damage.start} to "
                    f"{damage.stop - 1} can't be read",
                    reason="SEGMENT_DAMAGED",
                    metadata={"segment": self.path.name, "next_offset": str(damage.stop)},
                )

    def _read(self, offset: int, limit: int, max_bytes: int) -> Iterator[Record]:
        with self._lock:
            index, size = self._index or [], self.size
        at = bisect_right(index, (offset, 1 << 62)) - 1
        if at < 0:
            return
        position, taken, expected = index[at][1], 0, index[at][0]
        with self.path.open("rb") as file:
            while position < size and taken < max_bytes and expected < limit:
                head = os.pread(file.fileno(), codec.BLOCK_BYTES, position)
                length = codec.block_size(head, self.salt)
                if length is None or position + length > size:
                    return
                data = os.pread(file.fileno(), length, position)
                block = codec.parse_block(data, 0, self.salt, position)
                if block is None or block.first_offset != expected:
                    return
                if block.end > offset:
                    for record in codec.records(data, 0, block):
                        if offset <= record.offset < limit and taken < max_bytes:
                            taken += record.frame.cost
                            yield record
                position += length
                expected = block.end

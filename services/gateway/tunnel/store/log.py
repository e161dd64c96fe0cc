"""The `Log` protocol: what the tunnel asks of whatever keeps its frames."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from services.gateway.tunnel.domain.frame import Device, Frame, Receipt, Record, Stream


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a partition holds: offsets from `earliest` up to, without, `end`."""

    earliest: int
    end: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Records of one read, in order, and the offset to go on from."""

    records: tuple[Record, ...]
    next_offset: int


@dataclass(frozen=True, slots=True)
class LogStats:
    """A log's state, for metrics and health."""

    bytes: int
    """Bytes in all segments."""
    segments: int
    quarantined: int
    """Segments found damaged where frames had been acknowledged."""
    torn_bytes: int
    """Bytes of torn tails cut since this process opened the log."""
    fault: str
    """Why the last write failed; "" when writing works."""


def partition_of(device: Device, partitions: int) -> int:
    """Return the partition that a device's frames live in; the same in every process and release."""
    digest = blake2b(f"{device.tenant}/{device.device}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions


class Log(Protocol):
    """An append-only log of frames in partitions, with a high-water mark for each stream.

    Guarantees, whatever the implementation:

    * Durable before said. When `append` returns, every STORED and DUPLICATE frame survives the crash of this
      process and of the machine (the memory log: as long as the object lives).
    * Exactly once. A frame is stored once for its key, however often and through however many overlapping
      appends it comes; a stream's stored sequences are 1, 2, 3, … without a gap.
    * All or nothing seen. A failed append leaves nothing for readers, and its sequences are free to be
      appended again. (When the log is opened anew, a frame whose append failed or hadn't returned may be
      there, whole: appending it again says DUPLICATE.)
    * Order. One device lives in one partition; there, its frames have the order of their appends.
    * Marks outlive frames. `trim` removes old records, never marks (but see `domain.marks.STREAMS_KEPT`).
    * Damage is told. A record that can't be read back whole is never skipped silently: `read` raises.

    All methods are called from one event loop. A cancelled `append` may or may not be kept, whole either way.
    Whoever opened a log closes it; afterwards only `stats` may be called.
    """

    @property
    def log_id(self) -> str:
        """A random name given when the log was created; positions of one log mean nothing in another."""
        ...

    @property
    def partitions(self) -> int:
        """Number of partitions; fixed when the log was created."""
        ...

    async def append(self, frames: Sequence[Frame]) -> Receipt:
        """Keep frames of one device, in order.

        Raises:
            Exhausted: LOG_BUSY when too much waits to be written, DISK_FULL when there is no room. Nothing
                was kept.
            Unavailable: the log can't write, or is closed. Nothing was kept.
        """
        ...

    def marks(self, device: Device) -> Mapping[Stream, int]:
        """Return the durable mark of each known stream of a device."""
        ...

    def bounds(self) -> Sequence[Bounds]:
        """Return what each partition holds now."""
        ...

    async def read(self, partition: int, offset: int, max_bytes: int) -> Slice:
        """Read durable records from `offset` on: at least one if there is one, then about `max_bytes`.

        At the end, the slice is empty and `next_offset` equals `offset`.

        Raises:
            OutOfRange: `offset` is older than what is kept or beyond the end.
            Internal: SEGMENT_DAMAGED; metadata `next_offset` says where whole records start again.
        """
        ...

    async def wait(self, ends: Sequence[int]) -> None:
        """Return once the partitions' ends differ from `ends`, at once if they do now."""
        ...

    async def trim(self) -> int:
        """Remove records past their age or beyond the allowed bytes; return how many.

        May keep more than asked, never less.
        """
        ...

    async def probe(self) -> None:
        """Try whether writing works and let `stats().fault` tell; appends nothing."""
        ...

    def stats(self) -> LogStats:
        """Return sizes and faults."""
        ...

    async def close(self) -> None:
        """Finish what was appended, then release everything."""
        ...

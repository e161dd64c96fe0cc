"""A log in memory, for tests and trials: everything is gone with the process."""

import asyncio
from collections.abc import Mapping, Sequence
from uuid import uuid4

from libs.common.clock import Clock
from libs.common.errors import OutOfRange, Unavailable
from services.gateway.tunnel.domain.frame import Device, Frame, Outcome, Receipt, Record, Stream
from services.gateway.tunnel.domain.marks import Marks, admit
from services.gateway.tunnel.store.log import Bounds, LogStats, Slice, partition_of


class MemoryLog:
    """Keeps the promises of `Log` for as long as the object lives."""

    def __init__(self, clock: Clock, *, partitions: int = 8, retention_age_s: float = float("inf")) -> None:
        self._clock = clock
        self._retention_age_s = retention_age_s
        self._records: list[list[Record]] = [[] for _ in range(partitions)]
        self._ends = [0] * partitions
        self._marks = Marks()
        self._log_id = uuid4().hex
        self._grown: set[asyncio.Future[None]] = set()
        self._closed = False

    @property
    def log_id(self) -> str:
        """See `Log`."""
        return self._log_id

    @property
    def partitions(self) -> int:
        """See `Log`."""
        return len(self._ends)

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    async def append(self, frames: Sequence[Frame]) -> Receipt:
        """See `Log`."""
        if self._closed:
            raise Unavailable("the tunnel's log is closed", reason="LOG_CLOSED")
        outcomes = []
        for frame in frames:
            outcome = admit(self._marks.get(frame.device, frame.stream), frame.sequence)
            outcomes.append(outcome)
            if outcome is Outcome.STORED:
                partition = partition_of(frame.device, self.partitions)
                self._records[partition].append(Record(self._ends[partition], self._now_ms(), frame))
                self._ends[partition] += 1
                self._marks.advance(frame.device, frame.stream, frame.sequence)
        if Outcome.STORED in outcomes:
            for waiter in self._grown:
                if not waiter.done():
                    waiter.set_result(None)
        return Receipt(
            tuple(outcomes), {frame.stream: self._marks.get(frame.device, frame.stream) for frame in frames}
        )

    def marks(self, device: Device) -> Mapping[Stream, int]:
        """See `Log`."""
        return self._marks.of(device)

    def bounds(self) -> Sequence[Bounds]:
        """See `Log`."""
        return [
            Bounds(end - len(records), end) for records, end in zip(self._records, self._ends, strict=True)
        ]

    async def read(self, partition: int, offset: int, max_bytes: int) -> Slice:
        """See `Log`."""
        bounds = self.bounds()[partition]
        if not bounds.earliest <= offset <= bounds.end:
            raise OutOfRange(
                f"offset {offset} isn't kept: there are {bounds.earliest} to {bounds.end}; start without a "
                "position",
                reason="POSITION_EXPIRED",
                metadata={"earliest": str(bounds.earliest), "end": str(bounds.end)},
            )
        taken, found = 0, []
        for record in self._records[partition][offset - bounds.earliest :]:
            if taken >= max_bytes:
                break
            taken += record.frame.cost
            found.append(record)
        return Slice(tuple(found), offset + len(found))

    async def wait(self, ends: Sequence[int]) -> None:
        """See `Log`."""
        while list(ends) == self._ends:
            waiter = asyncio.get_running_loop().create_future()
            self._grown.add(waiter)
            try:
                await waiter
            finally:
                self._grown.discard(waiter)

    async def trim(self) -> int:
        """See `Log`."""
        removed = 0
        for records in self._records:
            keep = [
                record
                for record in records
                if record.received_ms >= self._now_ms() - self._retention_age_s * 1000
            ]
            removed += len(records) - len(keep)
            records[:] = keep
        return removed

    async def probe(self) -> None:
        """See `Log`."""

    def stats(self) -> LogStats:
        """See `Log`."""
        size = sum(record.frame.cost for records in self._records for record in records)
        return LogStats(bytes=size, segments=0, quarantined=0, torn_bytes=0, fault="")

    async def close(self) -> None:
        """See `Log`."""
        self._closed = True

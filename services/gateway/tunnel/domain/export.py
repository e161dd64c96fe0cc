"""Reading a tenant's records out of the log, so that whoever stops can go on where they stopped."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass

from libs.common.errors import Internal, Invalid, OutOfRange
from libs.common.paging import decode_token, encode_token
from services.gateway.tunnel.domain.frame import Device, Record
from services.gateway.tunnel.store.log import Log, partition_of

PAGE_RECORDS = 256
READ_BYTES = 1024 * 1024
"""About so many bytes a page has at most; one frame more can be in it."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records of a tenant are wanted; an empty text asks for all."""

    tenant: str
    stream: str = ""
    """`<task>/<stream>`, or `<task>` alone for all streams of a task."""
    device: str = ""
    tombstones: bool = False

    def takes(self, record: Record) -> bool:
        """Tell whether the record is wanted."""
        frame = record.frame
        if frame.device.tenant != self.tenant or (self.device and frame.device.device != self.device):
            return False
        name = frame.stream.name
        if self.stream and name != self.stream and name.partition("/")[0] != self.stream:
            return False
        return self.tombstones or not frame.tombstone


@dataclass(frozen=True, slots=True)
class Page:
    """Some records and where they end: a later export with this position starts after them."""

    records: tuple[Record, ...]
    position: str


async def export(
    log: Log, selection: Selection, *, position: str = "", follow: bool = False
) -> AsyncGenerator[Page, None]:
    """Yield pages of what is in the log now; with `follow`, wait for more for ever.

    The last page of each pass over the log may have no records: its position spares reading again what
    wasn't wanted.

    Raises:
        Invalid: BAD_POSITION, at once.
        OutOfRange: POSITION_EXPIRED, when retention has overtaken the reader.
        Internal: SEGMENT_DAMAGED; message and metadata `next_position` say how to go on past it.
    """
    offsets = _offsets(log, position)
    wanted = range(log.partitions)
    if selection.device:
        only = partition_of(Device(selection.tenant, selection.device), log.partitions)
        wanted = range(only, only + 1)
    told: str | None = None
    while True:
        ends = [bounds.end for bounds in log.bounds()]
        for partition in wanted:
            while offsets[partition] < ends[partition]:
                for page in await _read(log, selection, offsets, partition):
                    told = page.position
                    yield page
        here = _token(log, offsets)
        if here != told:
            told = here
            yield Page((), here)
        if not follow:
            return
        await log.wait(ends)


async def _read(log: Log, selection: Selection, offsets: list[int], partition: int) -> list[Page]:
    """Read once and move the partition's offset on."""
    try:
        part = await log.read(partition, offsets[partition], READ_BYTES)
    except OutOfRange:
        raise _expired() from None
    except Internal as damage:
        after = damage.metadata.get("next_offset")
        if after is None:
            raise
        past = _token(log, [*offsets[:partition], int(after), *offsets[partition + 1 :]])
        raise Internal(
            f"{damage.message}; export from the position {past} to go on past them",
            reason=damage.reason,
            metadata={"next_position": past},
        ) from None
    records = [record for record in part.records if selection.takes(record)]
    pages = []
    for group in _groups(records):
        offsets[partition] = group[-1].offset + 1
        pages.append(Page(tuple(group), _token(log, offsets)))
    offsets[partition] = part.next_offset
    return pages


def _groups(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    for start in range(0, len(records), PAGE_RECORDS):
        yield records[start : start + PAGE_RECORDS]


def _token(log: Log, offsets: Sequence[int]) -> str:
    return encode_token({"log": log.log_id, "at": " ".join(f"{offset:x}" for offset in offsets)})


def _expired() -> OutOfRange:
    return OutOfRange(
        "position: what stood there is past the log's retention; start without a position at the oldest "
        "that is kept",
        reason="POSITION_EXPIRED",
    )


def _offsets(log: Log, position: str) -> list[int]:
    """Return each partition's offset in a position that `_token` made; the oldest kept for an empty one."""
    if not position:
        return [bounds.earliest for bounds in log.bounds()]
    wrong = Invalid(
        "position: not one that an export of this log gave out; leave it empty to start at the oldest that "
        "is kept",
        reason="BAD_POSITION",
        metadata={"field": "position"},
    )
    try:
        token = decode_token(position)
        offsets = [int(word, 16) for word in str(token["at"]).split(" ")]
    except (Invalid, KeyError, ValueError):
        raise wrong from None
    bounds = log.bounds()
    if token.get("log") != log.log_id or len(offsets) != len(bounds):
        raise wrong
    if not all(0 <= offset <= bound.end for offset, bound in zip(offsets, bounds, strict=True)):
        raise wrong
    return offsets

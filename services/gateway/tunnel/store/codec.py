"""The bytes of a segment: a header, then blocks; a block holds the records of one group commit.

A block is written and synced before the next one is begun, so after a crash at most the last block is torn.
Integers are little-endian.

    segment  magic 8 "ISTHSEG1" | created_ms u64 | zero 12 | CRC-32 of those u32              = 32 bytes
    block    salt 8 | body_bytes u32 | count u32 | first_offset u64 | written_ms u64
             | CRC-32 of all above and the body u32 | body                                   = 36 bytes + body
    record   sequence u64 | event time: seconds i64, nanoseconds u32 (greatest: none) | codec u8
             | bytes of tenant, device, stream u8 each, of schema_id, tombstone_reason u16 each,
             of payload u32 | epoch 16                                                       = 48 bytes
             | tenant | device | stream | schema_id | tombstone_reason | payload

The salt is random for each segment and stands in its file name. Recovery looks for it to tell a torn tail
from damage in the middle, and a device that doesn't know it can't forge a block inside a payload.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.gateway.tunnel.domain.frame import Codec, Device, Frame, Record, Stream

_NO_TIME = (0, 2**32 - 1)
_MAGIC = b"ISTHSEG1"
_HEADER = struct.Struct("<8sQ12xI")
_BLOCK = struct.Struct("<8sIIQQI")
_RECORD = struct.Struct("<QqIBBBBHHI16s")
HEADER_BYTES = _HEADER.size
BLOCK_BYTES = _BLOCK.size


@dataclass(frozen=True, slots=True)
class Block:
    """A block found whole at `position` in a segment's file."""

    position: int
    size: int
    first_offset: int
    count: int
    written_ms: int

    @property
    def end(self) -> int:
        """Offset after the last record."""
        return self.first_offset + self.count


def segment_header(created_ms: int) -> bytes:
    """Return a segment's first 32 bytes."""
    head = _HEADER.pack(_MAGIC, created_ms, 0)
    return head[:-4] + struct.pack("<I", zlib.crc32(head[:-4]))


def parse_segment_header(data: bytes) -> int | None:
    """Return the time of creation in Unix milliseconds, None when these aren't a whole header."""
    if len(data) < HEADER_BYTES:
        return None
    magic, created_ms, crc = _HEADER.unpack_from(data)
    if magic != _MAGIC or crc != zlib.crc32(data[: HEADER_BYTES - 4]):
        return None
    return int(created_ms)


def encode_block(salt: bytes, first_offset: int, written_ms: int, frames: Sequence[Frame]) -> bytes:
    """Return one block with `frames`."""
    parts: list[bytes] = []
    for frame in frames:
        tenant, device = frame.device.tenant.encode(), frame.device.device.encode()
        stream, schema = frame.stream.name.encode(), frame.schema_id.encode()
        reason = frame.tombstone_reason.encode()
        time = _NO_TIME if frame.event_time_ns is None else divmod(frame.event_time_ns, 10**9)
        lengths = (len(tenant), len(device), len(stream), len(schema), len(reason), len(frame.payload))
        parts.append(_RECORD.pack(frame.sequence, *time, frame.codec, *lengths, frame.stream.epoch))
        parts += (tenant, device, stream, schema, reason, frame.payload)
    body = b"".join(parts)
    head = _BLOCK.pack(salt, len(body), len(frames), first_offset, written_ms, 0)[:-4]
    return b"".join((head, struct.pack("<I", zlib.crc32(body, zlib.crc32(head))), body))


def parse_block(data: bytes, at: int, salt: bytes, position: int | None = None) -> Block | None:
    """Return the block that starts at `data[at]`, None when there is no whole one.

    Args:
        data: bytes of a segment.
        at: where in `data` to look.
        salt: the segment's.
        position: where `at` is in the file; the same number when None.
    """
    if len(data) - at < BLOCK_BYTES or not data.startswith(salt, at):
        return None
    _, body_bytes, count, first_offset, written_ms, crc = _BLOCK.unpack_from(data, at)
    end = at + BLOCK_BYTES + body_bytes
    if end > len(data) or count == 0:
        return None
    view = memoryview(data)
    if zlib.crc32(view[at + BLOCK_BYTES : end], zlib.crc32(view[at : at + BLOCK_BYTES - 4])) != crc:
        return None
    return Block(at if position is None else position, end - at, first_offset, count, written_ms)


def block_size(head: bytes, salt: bytes) -> int | None:
    """Return how many bytes the block with this head says it has, None when it isn't the head of a block."""
    if len(head) < BLOCK_BYTES or not head.startswith(salt):
        return None
    return BLOCK_BYTES + int(_BLOCK.unpack_from(head)[1])


def records(data: bytes, at: int, block: Block) -> Iterator[Record]:
    """Decode the records of a block that `parse_block` found at `data[at]`."""
    at += BLOCK_BYTES
    for offset in range(block.first_offset, block.end):
        sequence, seconds, nanos, codec, *lengths, epoch = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        fields = []
        for length in lengths:
            fields.append(data[at : at + length])
            at += length
        tenant, device, stream, schema, reason = (field.decode() for field in fields[:-1])
        frame = Frame(
            device=Device(tenant, device),
            stream=Stream(stream, epoch),
            sequence=sequence,
            schema_id=schema,
            event_time_ns=None if nanos == _NO_TIME[1] else seconds * 10**9 + nanos,
            codec=Codec(codec),
            payload=fields[-1],
            tombstone_reason=reason,
        )
        yield Record(offset, block.written_ms, frame)

"""The marks' file: all marks of a partition as they were at some offset; what came after is in the segments.

magic 8 "ISTHMRK1" | next_offset u64 | devices u32, then for each device
    tenant, device bytes u8 each | streams u16 | tenant | device, then for each stream
        mark u64 | epoch 16 | name bytes u8 | name
CRC-32 of all above u32
"""

import struct
import zlib
from pathlib import Path

from libs.common.errors import Internal
from libs.common.fsio import write_atomic
from services.gateway.tunnel.domain.frame import Device, Stream
from services.gateway.tunnel.domain.marks import Marks

NAME = "marks"
_MAGIC = b"ISTHMRK1"
_HEAD = struct.Struct("<8sQI")
_DEVICE = struct.Struct("<BBH")
_STREAM = struct.Struct("<Q16sB")


def encode(marks: Marks, next_offset: int) -> bytes:
    """Return the file's content."""
    parts: list[bytes] = []
    count = 0
    for device, streams in marks.items():
        count += 1
        rows = list(streams)
        tenant, name = device.tenant.encode(), device.device.encode()
        parts += (_DEVICE.pack(len(tenant), len(name), len(rows)), tenant, name)
        for stream, mark in rows:
            text = stream.name.encode()
            parts += (_STREAM.pack(mark, stream.epoch, len(text)), text)
    body = b"".join((_HEAD.pack(_MAGIC, next_offset, count), *parts))
    return body + struct.pack("<I", zlib.crc32(body))


def decode(data: bytes) -> tuple[Marks, int]:
    """Return the marks and the offset they stand at; raises ValueError when the bytes aren't whole."""
    body, tail = data[:-4], data[-4:]
    if len(data) < _HEAD.size + 4 or struct.pack("<I", zlib.crc32(body)) != tail:
        raise ValueError("checksum differs")
    magic, next_offset, count = _HEAD.unpack_from(body)
    if magic != _MAGIC:
        raise ValueError("not a file of marks")
    marks, at = Marks(), _HEAD.size
    for _ in range(count):
        tenant_bytes, name_bytes, streams = _DEVICE.unpack_from(body, at)
        at += _DEVICE.size
        tenant = body[at : at + tenant_bytes].decode()
        at += tenant_bytes
        device = Device(tenant, body[at : at + name_bytes].decode())
        at += name_bytes
        for _ in range(streams):
            mark, epoch, text_bytes = _STREAM.unpack_from(body, at)
            at += _STREAM.size
            marks.advance(device, Stream(body[at : at + text_bytes].decode(), epoch), mark)
            at += text_bytes
    return marks, int(next_offset)


def save(folder: Path, marks: Marks, next_offset: int) -> None:
    """Replace the partition's file of marks, whole or not at all; raises Exhausted or OSError."""
    write_atomic(folder / NAME, encode(marks, next_offset), 0o600)


def load(folder: Path) -> tuple[Marks, int] | None:
    """Return the marks and their offset, None when there is no file yet.

    Raises:
        Internal: MARKS_DAMAGED.
    """
    path = folder / NAME
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Internal(f"{path}: {error}", reason="MARKS_DAMAGED") from None

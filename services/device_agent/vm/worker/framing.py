"""The protocol between agent and worker: frames of a 4-byte big-endian length and that many bytes of JSON."""

import os
import struct

HEADER = struct.Struct(">I")
PROTOCOL = 1


def read_frame(fd: int, limit: int) -> bytes | None:
    """Read a frame from a blocking `fd`; None at its end. Raises ValueError beyond `limit` bytes."""
    header = _read(fd, HEADER.size)
    if header is None:
        return None
    (size,) = HEADER.unpack(header)
    if size > limit:
        raise ValueError(f"frame of {size} bytes exceeds {limit}")
    return _read(fd, size)


def write_frame(fd: int, body: bytes) -> None:
    """Write a frame to a blocking `fd`, whole."""
    view = memoryview(HEADER.pack(len(body)) + body)
    while view:
        view = view[os.write(fd, view) :]


def _read(fd: int, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(fd, min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)

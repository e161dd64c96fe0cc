"""HTTP byte ranges (RFC 9110, section 14): one range; anything else is served whole, as the RFC allows."""

import re
from dataclasses import dataclass

_RANGE = re.compile(r"bytes\s*=\s*(\d{0,20})\s*-\s*(\d{0,20})", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """`length` bytes from `start`; a length of 0 means that the range can't be satisfied."""

    start: int
    length: int


def parse_range(header: str, size: int) -> Part | None:
    """Return the part of `size` bytes that a Range header asks for; None when the header is to be ignored."""
    found = _RANGE.fullmatch(header.strip())
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:  # the last bytes
        length = min(int(found[2]), size)
        return Part(size - length, length)
    first = int(found[1])
    last = int(found[2]) if found[2] else size - 1
    if found[2] and last < first:
        return None
    if first >= size:
        return Part(size, 0)
    return Part(first, min(last, size - 1) - first + 1)

"""Tell what of a segment's bytes is whole: blocks, damage between them, a tail that may be torn. Pure."""

from dataclasses import dataclass, field

from services.gateway.tunnel.store.codec import HEADER_BYTES, Block, parse_block, parse_segment_header


@dataclass(frozen=True, slots=True)
class Damage:
    """Records from offset `start` up to, without, `stop` can't be read.

    The fault is at byte `position` of the file.
    """

    start: int
    stop: int
    position: int


@dataclass(slots=True)
class Scan:
    """What was found in a segment."""

    header_whole: bool
    blocks: list[Block] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    end: int = 0
    """Offset after the last whole block."""
    good_bytes: int = HEADER_BYTES
    """Where the last whole block ends in the file. What follows is a tail without a whole block."""


def scan(data: bytes, salt: bytes, base: int) -> Scan:
    """Go through a segment's bytes whose first record has offset `base`.

    Blocks are synced one by one: a bad stretch with a whole block after it was whole once, hence is damage.
    A bad stretch at the end may be a torn write; whether anything there had been acknowledged, the caller
    must know.
    """
    found = Scan(header_whole=parse_segment_header(data) is not None, end=base)
    position = HEADER_BYTES
    while position < len(data):
        block = parse_block(data, position, salt)
        if block is None or block.first_offset < found.end:
            block = _resync(data, position + 1, salt, found.end)
            if block is None:
                break
        if block.first_offset > found.end:
            found.damages.append(Damage(found.end, block.first_offset, position))
        found.blocks.append(block)
        found.end = block.end
        position = found.good_bytes = block.position + block.size
    return found


def _resync(data: bytes, start: int, salt: bytes, least: int) -> Block | None:
    """Return the next whole block at or after byte `start` whose records come after offset `least`."""
    while (start := data.find(salt, start)) >= 0:
        block = parse_block(data, start, salt)
        if block is not None and block.first_offset >= least:
            return block
        start += 1
    return None

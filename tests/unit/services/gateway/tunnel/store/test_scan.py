"""A segment's bytes: damage in the middle and a torn tail are told apart."""

import pytest

from services.gateway.tunnel.domain.frame import Frame
from services.gateway.tunnel.store import codec
from services.gateway.tunnel.store.codec import HEADER_BYTES
from services.gateway.tunnel.store.scan import Damage, scan
from services.gateway.tunnel.testing import frame, frames

SALT = b"saltsalt"
HEADER = codec.segment_header(1)


def blocks(*groups: list[Frame], first_offset: int = 0) -> list[bytes]:
    found = []
    for group in groups:
        found.append(codec.encode_block(SALT, first_offset, 7, group))
        first_offset += len(group)
    return found


def test_a_whole_segment() -> None:
    found = scan(HEADER + b"".join(blocks(frames([1]), frames([2, 3]), first_offset=40)), SALT, 40)
    assert found.header_whole
    assert [(block.first_offset, block.end) for block in found.blocks] == [(40, 41), (41, 43)]
    assert (found.end, found.damages) == (43, [])


def test_a_tail_cut_at_every_byte() -> None:
    one, two = blocks(frames([1]), frames([2, 3]))
    for kept in range(len(two)):
        found = scan(HEADER + one + two[:kept], SALT, 0)
        assert (found.end, found.good_bytes, found.damages) == (1, HEADER_BYTES + len(one), [])
    assert scan(HEADER + one + two, SALT, 0).end == 3


@pytest.mark.parametrize("tail", [bytes(4096), b"\xff" * 100, SALT, SALT * 50])
def test_a_tail_of_anything(tail: bytes) -> None:
    (one,) = blocks(frames([1]))
    found = scan(HEADER + one + tail, SALT, 0)
    assert (found.end, found.good_bytes, found.damages) == (1, HEADER_BYTES + len(one), [])


def test_a_flipped_bit_in_the_middle_is_damage_and_what_follows_is_found() -> None:
    one, two, three = blocks(frames([1]), frames([2, 3]), frames([4]))
    for at in range(len(two)):
        bad = bytearray(two)
        bad[at] ^= 0x01
        found = scan(HEADER + one + bytes(bad) + three, SALT, 0)
        assert found.damages == [Damage(1, 3, HEADER_BYTES + len(one))]
        assert [block.first_offset for block in found.blocks] == [0, 3]
        assert found.end == 4


def test_a_block_inside_a_payload_is_not_taken_for_one() -> None:
    forged = codec.encode_block(b"guessed!", 9, 7, frames([9]))
    (one,) = blocks([frame(1, payload=forged)])
    torn = one[:-1]
    assert scan(HEADER + torn, SALT, 0).damages == []
    assert scan(HEADER + torn, SALT, 0).end == 0

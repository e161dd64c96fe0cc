"""Bytes of a segment: what was written is read back; what isn't whole is told apart."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.tunnel.domain.frame import Codec, Device, Frame, Stream
from services.gateway.tunnel.domain.marks import Marks
from services.gateway.tunnel.store import checkpoint, codec
from services.gateway.tunnel.store.codec import HEADER_BYTES
from services.gateway.tunnel.store.scan import Damage, scan
from services.gateway.tunnel.testing import frame, frames

SALT = b"saltsalt"
HEADER = codec.segment_header(1)


def name(size: int) -> st.SearchStrategy[str]:
    return st.text(max_size=size).filter(lambda text: len(text.encode()) <= size)


FRAMES = st.builds(
    Frame,
    device=st.builds(Device, name(63), name(63)),
    stream=st.builds(Stream, name(127), st.binary(min_size=16, max_size=16)),
    sequence=st.integers(0, 2**64 - 1),
    schema_id=name(400),
    event_time_ns=st.none() | st.integers(-(10**20), 10**21),
    codec=st.sampled_from([Codec.NONE, Codec.JSON]),
    payload=st.binary(max_size=300),
    tombstone_reason=name(64),
)


def blocks(*groups: list[Frame], first_offset: int = 0) -> list[bytes]:
    found = []
    for group in groups:
        found.append(codec.encode_block(SALT, first_offset, 7, group))
        first_offset += len(group)
    return found


@given(st.lists(FRAMES, min_size=1, max_size=6), st.integers(0, 2**63))
@settings(deadline=None)
def test_frames_survive_a_block(given_frames: list[Frame], first_offset: int) -> None:
    data = b"before" + codec.encode_block(SALT, first_offset, 99, given_frames)
    block = codec.parse_block(data, 6, SALT)
    assert block is not None
    assert (block.position, block.size, block.count) == (6, len(data) - 6, len(given_frames))
    records = list(codec.records(data, 6, block))
    assert [record.frame for record in records] == given_frames
    assert [record.offset for record in records] == list(range(first_offset, block.end))
    assert {record.received_ms for record in records} == {99}


def test_every_flipped_bit_of_a_block_is_noticed() -> None:
    whole = codec.encode_block(SALT, 3, 7, frames([1, 2]))
    for bit in range(len(whole) * 8):
        bad = bytearray(whole)
        bad[bit // 8] ^= 1 << (bit % 8)
        assert codec.parse_block(bytes(bad), 0, SALT) is None


def test_a_header_is_checked() -> None:
    assert codec.parse_segment_header(HEADER) == 1
    for at in range(HEADER_BYTES):
        bad = bytearray(HEADER)
        bad[at] ^= 0x10
        assert codec.parse_segment_header(bytes(bad)) is None
        assert codec.parse_segment_header(HEADER[:at]) is None


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


def test_marks_survive_their_file_in_order() -> None:
    marks = Marks()
    for number in (5, 3, 5, 9):
        marks.advance(Device("acme", f"d{number % 2}"), Stream("größe/s", bytes([number] * 16)), number)
    data = checkpoint.encode(marks, 1234)
    again, offset = checkpoint.decode(data)
    assert offset == 1234
    assert [(device, list(rows)) for device, rows in again.items()] == [
        (device, list(rows)) for device, rows in marks.items()
    ]


def test_damaged_marks_are_refused() -> None:
    marks = Marks()
    marks.advance(Device("acme", "d"), Stream("t/s", bytes(16)), 1)
    data = checkpoint.encode(marks, 1)
    for at in range(len(data)):
        bad = bytearray(data)
        bad[at] ^= 0x80
        for broken in (bytes(bad), data[:at]):
            with pytest.raises(ValueError, match="checksum"):
                checkpoint.decode(broken)

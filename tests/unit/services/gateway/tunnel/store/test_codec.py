"""Bytes of a block and of a header: what was written is read back; what isn't whole is no block."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.tunnel.domain.frame import Codec, Device, Frame, Stream
from services.gateway.tunnel.store import codec
from services.gateway.tunnel.store.codec import HEADER_BYTES
from services.gateway.tunnel.testing import frames

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

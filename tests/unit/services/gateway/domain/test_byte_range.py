from hypothesis import given
from hypothesis import strategies as st

from services.gateway.domain.byte_range import parse_range


@given(st.integers(0, 10_000), st.none() | st.integers(0, 20_000), st.none() | st.integers(0, 20_000))
def test_a_range_lies_within_the_blob(size, first, last):
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    part = parse_range(header, size)
    if part is None:
        assert (first is None and last is None) or (None not in (first, last) and last < first)
        return
    assert part.start >= 0
    assert part.start + part.length <= size
    if part.length and first is not None:
        assert part.start == first


@given(st.text(max_size=40))
def test_any_header_is_survived(header):
    parse_range(header, 100)

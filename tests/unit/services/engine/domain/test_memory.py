"""What lives at the same time never shares memory, at any size; what doesn't may."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.engine.domain.extents import Extent
from services.engine.domain.memory import ALIGNMENT, Memory, Span, place

N, M = Extent.dimension("n"), Extent.dimension("m")
SIZES = [{"n": n, "m": m} for n in (0, 1, 2, 7, 64) for m in (1, 5)]

sizes = st.tuples(st.integers(0, 300), st.sampled_from([Extent.of(1), N, N * M, 2 * N + 3, M])).map(
    lambda pair: pair[1] * pair[0]
)


@st.composite
def lifetimes(draw) -> list[Span]:
    spans = []
    for value in range(draw(st.integers(1, 25))):
        birth = draw(st.integers(-1, 20))
        spans.append(Span(value, birth, birth + draw(st.integers(0, 6)), draw(sizes)))
    return spans


@st.composite
def chained(draw) -> list[Span]:
    """Lives of which some may take the place of others, as `lower.spans_of` gives them."""
    spans: list[Span] = []
    for value in range(draw(st.integers(1, 25))):
        taken = [each.over for each in spans]
        free = [each for each in spans if each.value not in taken and 0 <= each.birth < each.death]
        if free and draw(st.booleans()):
            over = draw(st.sampled_from(free))
            spans.append(Span(value, over.death, over.death + draw(st.integers(0, 6)), over.size, over.value))
        else:
            birth = draw(st.integers(-1, 20))
            spans.append(Span(value, birth, birth + draw(st.integers(1, 6)), draw(sizes)))
    return spans


def check(spans: list[Span], memory: Memory) -> None:
    for at in SIZES:
        places = []
        for span in spans:
            buffer, offset = memory.places[span.value]
            start, size = offset.evaluate(at), span.size.evaluate(at)
            assert start % ALIGNMENT == 0
            assert start >= 0
            assert start + size <= memory.buffers[buffer].evaluate(at)
            places.append((buffer, start, start + size, span))
        for index, (buffer, start, end, span) in enumerate(places):
            for other_buffer, other_start, other_end, other in places[:index]:
                together = span.birth <= other.death and other.birth <= span.death
                if other.value == span.over and (buffer, start) == (other_buffer, other_start):
                    continue
                if buffer == other_buffer and together:
                    assert end <= other_start or other_end <= start


@given(lifetimes())
def test_what_lives_at_the_same_time_never_overlaps(spans: list[Span]) -> None:
    check(spans, place(spans))


@given(chained())
def test_what_is_written_over_another_overlaps_nothing_else_and_takes_no_more_memory(
    spans: list[Span],
) -> None:
    memory = place(spans)
    check(spans, memory)
    apart = place([replace(span, over=None) for span in spans])
    for at in SIZES:
        for size, without in zip(memory.buffers, apart.buffers, strict=True):
            # Each slot is rounded up on its own.
            assert size.evaluate(at) <= without.evaluate(at) + ALIGNMENT * len(spans)


def test_a_chain_that_is_written_in_place_takes_the_memory_of_one() -> None:
    spans = [Span(value, value, value + 1, N * 256, value - 1 if value else None) for value in range(10)]
    memory = place(spans)
    check(spans, memory)
    assert memory.buffers == (N * 256,)
    assert len(set(memory.places.values())) == 1


def test_small_values_take_turns_in_slots() -> None:
    spans = [Span(value, value, value + 1, N * 4) for value in range(10)]
    spans += [Span(10 + value, value, value + 1, N * 12) for value in range(10)]
    memory = place(spans)
    check(spans, memory)
    (size,) = memory.buffers
    # Two of each live at a time: 32 bytes for each of n, and what rounds four slots.
    assert [size.evaluate({"n": n}) for n in (1, 16, 1000)] == [4 * 64, 512, 2 * 4032 + 2 * 12032]


def test_a_chain_takes_the_memory_of_two() -> None:
    spans = [Span(value, value, value + 1, N * 256) for value in range(10)]
    memory = place(spans)
    check(spans, memory)
    assert memory.buffers == (N * 512,)


def test_small_ones_fit_into_the_smallest_gap() -> None:
    large, after = Span(0, 0, 9, Extent.of(640)), Span(2, 2, 3, Extent.of(128))
    gone = Span(1, 0, 1, Extent.of(256))
    memory = place([large, gone, after])
    check([large, gone, after], memory)
    assert memory.buffers == (Extent.of(896),)
    assert memory.places[2] == memory.places[1]


def test_nothing_takes_nothing() -> None:
    assert place([]).buffers == ()


def test_thousands_that_all_live_at_once_are_packed_without_a_gap() -> None:
    count = 3000
    spans = [Span(value, value, count, N * 64) for value in range(count)]
    memory = place(spans)
    assert memory.buffers == (N * 64 * count,)
    assert {offset.evaluate({"n": 1}) for _, offset in memory.places.values()} == set(
        range(0, 64 * count, 64)
    )

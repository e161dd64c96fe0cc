import pytest

from services.gateway.tunnel.domain.frame import Device, Outcome, Stream
from services.gateway.tunnel.domain.marks import Marks, admit

DEVICE = Device("acme", "phone-1")


def stream(number: int) -> Stream:
    return Stream("task/stream", number.to_bytes(16, "big"))


@pytest.mark.parametrize(
    ("mark", "sequence", "outcome"),
    [
        (0, 1, Outcome.STORED),
        (0, 2, Outcome.GAP),
        (0, 0, Outcome.DUPLICATE),
        (7, 7, Outcome.DUPLICATE),
        (7, 8, Outcome.STORED),
        (7, 9, Outcome.GAP),
        (2**64 - 2, 2**64 - 1, Outcome.STORED),
    ],
)
def test_admission(mark: int, sequence: int, outcome: Outcome) -> None:
    assert admit(mark, sequence) is outcome


def test_an_unknown_stream_has_mark_zero() -> None:
    assert Marks().get(DEVICE, stream(1)) == 0
    assert Marks().of(DEVICE) == {}


def test_a_mark_never_goes_back() -> None:
    marks = Marks()
    marks.advance(DEVICE, stream(1), 5)
    marks.advance(DEVICE, stream(1), 3)
    assert marks.get(DEVICE, stream(1)) == 5


def test_the_stream_that_advanced_longest_ago_is_forgotten_first() -> None:
    marks = Marks(kept=2)
    marks.advance(DEVICE, stream(1), 1)
    marks.advance(DEVICE, stream(2), 1)
    marks.advance(DEVICE, stream(1), 2)
    marks.advance(DEVICE, stream(3), 1)
    assert marks.of(DEVICE) == {stream(1): 2, stream(3): 1}
    assert len(marks) == 2


def test_what_is_handed_out_is_a_copy() -> None:
    marks = Marks()
    marks.advance(DEVICE, stream(1), 1)
    before = marks.of(DEVICE)
    marks.advance(DEVICE, stream(1), 2)
    assert before == {stream(1): 1}

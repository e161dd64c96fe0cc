"""A bad network costs little: requests that nobody answers soon aren't made."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from services.device_agent.domain.breaker import Breaker

numbers = count(1)


def lets(breaker, now_s):
    """Let one go; return its number, or None."""
    number = next(numbers)
    return number if breaker.lets(now_s, number) else None


def miss(breaker, times, now_s=0.0, draw=1.0):
    for _ in range(times):
        number = lets(breaker, now_s)
        assert number is not None
        breaker.missed(now_s, number, draw)


def test_two_misses_stop_nothing_and_an_answer_ends_the_row():
    breaker = Breaker()
    for _ in range(5):
        miss(breaker, 2)
        assert lets(breaker, 0.0)
        breaker.answered()


def test_after_three_misses_there_is_a_pause_and_then_one_on_trial():
    breaker = Breaker()
    miss(breaker, 3)
    assert not lets(breaker, 0.49)
    assert lets(breaker, 0.5)
    assert not lets(breaker, 0.5)  # while that one is out
    breaker.answered()
    assert lets(breaker, 0.5)
    assert lets(breaker, 0.5)


def test_pauses_grow_up_to_thirty_seconds():
    breaker = Breaker()
    miss(breaker, 3)
    now_s, pauses = 0.0, []
    for _ in range(10):
        pause_s, number = next(
            (step / 4, number) for step in range(1, 200) if (number := lets(breaker, now_s + step / 4))
        )
        pauses.append(pause_s)
        now_s += pause_s
        breaker.missed(now_s, number, 1.0)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]


def test_a_request_that_was_given_up_lets_another_be_on_trial():
    breaker = Breaker()
    miss(breaker, 3)
    number = lets(breaker, 10.0)
    breaker.given_up(number)
    assert lets(breaker, 10.0)


def test_requests_that_are_missed_together_begin_with_the_first_pause():
    breaker = Breaker()
    together = [lets(breaker, 0.0) for _ in range(16)]
    for number in together:
        breaker.missed(1.0, number, 1.0)
    assert not lets(breaker, 1.49)
    assert lets(breaker, 1.5)


def test_what_was_under_way_before_a_pause_makes_no_room_for_a_second_trial():
    breaker = Breaker()
    slow, gone = lets(breaker, 0.0), lets(breaker, 0.0)
    miss(breaker, 3)
    trial = lets(breaker, 0.5)
    breaker.missed(0.6, slow, 1.0)
    breaker.given_up(gone)
    assert not lets(breaker, 0.7)
    breaker.missed(0.8, trial, 1.0)
    assert not lets(breaker, 1.79)
    assert lets(breaker, 1.8)


def test_an_answer_to_what_was_under_way_before_a_pause_ends_it():
    breaker = Breaker()
    assert lets(breaker, 0.0)
    miss(breaker, 3)
    breaker.answered()
    assert lets(breaker, 0.0)


@given(st.floats(0, 1), st.integers(0, 40))
def test_the_draw_spreads_a_pause_over_its_second_half(draw, more):
    breaker = Breaker()
    miss(breaker, 3, draw=draw)
    for turn in range(more):
        miss(breaker, 1, 100.0 * (turn + 1), draw)
    longest_s = min(30.0, 0.5 * 2.0**more)
    start_s = 100.0 * more
    assert not lets(breaker, start_s + longest_s * 0.49)
    assert lets(breaker, start_s + longest_s + 0.001)

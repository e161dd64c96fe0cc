"""A bad network costs little: requests that nobody answers soon aren't made."""

from hypothesis import given
from hypothesis import strategies as st

from services.device_agent.domain.breaker import Breaker


def miss(breaker, times, now_s=0.0, draw=1.0):
    for _ in range(times):
        assert breaker.lets(now_s)
        breaker.missed(now_s, draw)


def test_two_misses_stop_nothing_and_an_answer_ends_the_row():
    breaker = Breaker()
    for _ in range(5):
        miss(breaker, 2)
        assert breaker.lets(0.0)
        breaker.answered()


def test_after_three_misses_there_is_a_pause_and_then_one_on_trial():
    breaker = Breaker()
    miss(breaker, 3)
    assert not breaker.lets(0.49)
    assert breaker.lets(0.5)
    assert not breaker.lets(0.5)  # while that one is out
    breaker.answered()
    assert breaker.lets(0.5)
    assert breaker.lets(0.5)


def test_pauses_grow_up_to_thirty_seconds():
    breaker = Breaker()
    miss(breaker, 3)
    now_s, pauses = 0.0, []
    for _ in range(10):
        pause_s = next(step / 4 for step in range(1, 200) if breaker.lets(now_s + step / 4))
        pauses.append(pause_s)
        now_s += pause_s
        breaker.missed(now_s, 1.0)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]


def test_a_request_that_was_given_up_lets_another_be_on_trial():
    breaker = Breaker()
    miss(breaker, 3)
    assert breaker.lets(10.0)
    breaker.given_up()
    assert breaker.lets(10.0)


@given(st.floats(0, 1), st.integers(0, 40))
def test_the_draw_spreads_a_pause_over_its_second_half(draw, more):
    breaker = Breaker()
    miss(breaker, 3, draw=draw)
    for turn in range(more):
        assert breaker.lets(100.0 * (turn + 1))
        breaker.missed(100.0 * (turn + 1), draw)
    longest_s = min(30.0, 0.5 * 2.0**more)
    start_s = 100.0 * more
    assert not breaker.lets(start_s + longest_s * 0.49)
    assert breaker.lets(start_s + longest_s + 0.001)

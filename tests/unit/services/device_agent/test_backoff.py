from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Unavailable
from libs.common.testing import FakeRandomness
from services.device_agent.backoff import Backoff


@given(st.integers(0, 10_000), st.integers(0, 100))
def test_the_wait_is_drawn_below_a_doubling_bound(attempt, seed):
    delay = Backoff(FakeRandomness(seed), 1.0, 30.0).delay_s(attempt)
    assert 0.0 <= delay <= min(30.0, 2.0 ** min(attempt, 10))


def test_what_the_cloud_asks_for_is_waited_up_to_the_longest_wait():
    backoff = Backoff(FakeRandomness(), 1.0, 30.0)
    assert 10.0 <= backoff.delay_s(0, Unavailable("later", retry_after_s=10.0)) <= 11.0
    assert 30.0 <= backoff.delay_s(0, Unavailable("later", retry_after_s=9999.0)) <= 31.0

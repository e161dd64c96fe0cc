from hypothesis import given
from hypothesis import strategies as st

from libs.common.backoff import backoff
from libs.common.testing import FakeRandomness


class Highest(FakeRandomness):
    """Draws the longest wait, so that a test can tell the bound."""

    def uniform(self, a: float, b: float) -> float:
        return b


@given(st.integers(0, 10_000), st.integers(0, 2**32), st.floats(0, 100))
def test_a_wait_is_jittered_from_the_first_and_bounded(attempt: int, seed: int, asked: float) -> None:
    wait = backoff(attempt, randomness=FakeRandomness(seed), base_s=0.2, cap_s=10.0, at_least_s=asked)
    assert asked <= wait <= asked + min(10.0, 0.2 * 2.0 ** min(attempt, 60))


def test_bounds_double_up_to_the_cap() -> None:
    waits = [backoff(n, randomness=Highest(), base_s=0.5, cap_s=3.0) for n in range(5)]
    assert waits == [0.5, 1.0, 2.0, 3.0, 3.0]

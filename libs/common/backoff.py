"""How long to wait before trying again; knows nothing of calls, so that it loads no gRPC.

The wait is drawn between zero and a doubling bound ("full jitter"; Brooker, *Exponential Backoff and Jitter*,
2015), the first one included, so that those who failed together don't come back together.
"""

from libs.common.rand import Randomness


def backoff(
    attempt: int, *, randomness: Randomness, base_s: float = 0.2, cap_s: float = 10.0, at_least_s: float = 0.0
) -> float:
    """Return how many seconds to wait before retry `attempt` (0 is the first).

    Args:
        attempt: how many retries there were before.
        randomness: draws the jitter.
        base_s: bound of the first wait; doubles with each attempt.
        cap_s: bound of any wait.
        at_least_s: what the peer asked for; the jitter comes on top.
    """
    bound = min(cap_s, base_s * 2.0 ** min(attempt, 60))
    return at_least_s + randomness.uniform(0.0, bound)

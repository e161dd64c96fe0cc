"""Trying again: which failures, how often, how long after, and not when everybody fails.

Only idempotent calls are tried again, after a wait (`libs.common.backoff`). A budget, fed by successes
(gRFC A6), stops retries while most calls fail.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc

from libs.common.backoff import backoff as backoff
from libs.common.clock import Clock
from libs.common.errors import Error
from libs.common.rand import Randomness
from libs.common.status import error_from_rpc

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long.

    Attributes:
        attempts: calls at most, the first included.
        base_s: bound of the first wait, in seconds; doubles each time.
        cap_s: bound of any wait.
        total_s: no further try is started once this much time would have passed.
    """

    attempts: int = 5
    base_s: float = 0.2
    cap_s: float = 10.0
    total_s: float = 60.0


DEFAULT_POLICY = RetryPolicy()


class RetryBudget:
    """Allows retries while enough calls succeed: share one among all calls to the same peer.

    A failure costs one token, a success earns `ratio` of one; above half of `tokens` retries are allowed.
    """

    def __init__(self, tokens: float = 10.0, ratio: float = 0.1) -> None:
        self._full = tokens
        self._ratio = ratio
        self._tokens = tokens

    def succeeded(self) -> None:
        """Count a call that succeeded, or failed for a reason of its own."""
        self._tokens = min(self._full, self._tokens + self._ratio)

    def failed(self) -> bool:
        """Count a call that failed for lack of service; return whether it may be tried again."""
        self._tokens = max(0.0, self._tokens - 1.0)
        return self._tokens > self._full / 2


async def retry(
    call: Callable[[], Awaitable[T]],
    *,
    idempotent: bool,
    clock: Clock,
    randomness: Randomness,
    policy: RetryPolicy = DEFAULT_POLICY,
    budget: RetryBudget | None = None,
) -> T:
    """Return what `call` returns, trying again where that is safe and may help.

    Args:
        call: makes the call anew each time; raises `Error` or `grpc.aio.AioRpcError`.
        idempotent: whether doing it twice is as good as once; False means one try.
        clock: waits and measures.
        randomness: draws the jitter.
        policy: how often and how long.
        budget: shared by all calls to the same peer.

    Raises:
        Error: the last failure.
    """
    started = clock.monotonic()
    attempt = 0
    while True:
        try:
            result = await call()
        except (Error, grpc.aio.AioRpcError) as raised:
            error = raised if isinstance(raised, Error) else error_from_rpc(raised)
            if not error.retriable:
                if budget is not None:
                    budget.succeeded()
                raise error from _cause(raised, error)
            allowed = budget.failed() if budget is not None else True
            wait_s = backoff(
                attempt,
                randomness=randomness,
                base_s=policy.base_s,
                cap_s=policy.cap_s,
                at_least_s=error.retry_after_s or 0.0,
            )
            attempt += 1
            late = clock.monotonic() - started + wait_s > policy.total_s
            if not idempotent or not allowed or late or attempt >= policy.attempts:
                raise error from _cause(raised, error)
        else:
            if budget is not None:
                budget.succeeded()
            return result
        await clock.sleep(wait_s)


def _cause(raised: Exception, error: Error) -> BaseException | None:
    return raised.__cause__ if raised is error else raised

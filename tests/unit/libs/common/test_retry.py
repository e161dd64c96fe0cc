import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest

from libs.common.errors import Error, Exhausted, Invalid, Unavailable
from libs.common.retry import RetryBudget, RetryPolicy, retry
from libs.common.testing import FakeClock, FakeRandomness


class Highest(FakeRandomness):
    """Draws the longest wait, so that a test can tell the bound."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Flaky:
    """Fails with the given errors, one after another, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


async def run(
    call: Callable[[], Awaitable[str]],
    clock: FakeClock,
    *,
    idempotent: bool = True,
    policy: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
    budget: RetryBudget | None = None,
) -> str:
    task = asyncio.ensure_future(
        retry(
            call,
            idempotent=idempotent,
            clock=clock,
            randomness=Highest(),
            policy=policy,
            budget=budget,
        )
    )
    while not task.done():
        await asyncio.sleep(0)
        if clock.sleepers:
            clock.advance(0.1)
    return task.result()


async def test_an_idempotent_call_is_tried_again_until_it_answers() -> None:
    clock, call = FakeClock(), Flaky(Unavailable("a"), Exhausted("b"))
    assert await run(call, clock) == "answer"
    assert call.calls == 3
    assert clock.monotonic() == pytest.approx(0.2 + 0.4, abs=0.11)


@pytest.mark.parametrize(("error", "idempotent"), [(Unavailable("away"), False), (Invalid("bad"), True)])
async def test_what_is_not_safe_or_wont_help_is_tried_once(error: Error, idempotent: bool) -> None:
    call = Flaky(error)
    with pytest.raises(type(error)):
        await run(call, FakeClock(), idempotent=idempotent)
    assert call.calls == 1


async def test_a_failed_call_arrives_as_our_error_with_its_cause() -> None:
    rpc_error = grpc.aio.AioRpcError(
        grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), grpc.aio.Metadata(), details="no x"
    )
    with pytest.raises(Error, match="no x") as caught:
        await run(Flaky(rpc_error), FakeClock())
    assert caught.value.__cause__ is rpc_error


async def test_attempts_and_total_time_are_bounded() -> None:
    call = Flaky(*(Unavailable("away") for _ in range(100)))
    with pytest.raises(Unavailable):
        await run(call, FakeClock(), policy=RetryPolicy(attempts=3))
    assert call.calls == 3
    clock, call = FakeClock(), Flaky(*(Unavailable("away", retry_after_s=4.0) for _ in range(100)))
    with pytest.raises(Unavailable):
        await run(call, clock, policy=RetryPolicy(attempts=100, total_s=10.0))
    assert clock.monotonic() <= 10.0


async def test_what_the_peer_asks_for_is_waited() -> None:
    clock = FakeClock()
    assert await run(Flaky(Exhausted("full", retry_after_s=7.0)), clock) == "answer"
    assert clock.monotonic() >= 7.0


async def test_when_everybody_fails_the_budget_stops_retries_until_calls_succeed_again() -> None:
    budget = RetryBudget(tokens=4, ratio=1.0)
    calls = 0

    async def down() -> str:
        nonlocal calls
        calls += 1
        raise Unavailable("down")

    for _ in range(10):
        with pytest.raises(Unavailable):
            await run(down, FakeClock(), budget=budget)
    assert calls == 11
    for _ in range(4):
        await run(Flaky(), FakeClock(), budget=budget)
    assert await run(Flaky(Unavailable("once")), FakeClock(), budget=budget) == "answer"


async def test_cancelling_the_caller_ends_the_waiting() -> None:
    clock, call = FakeClock(), Flaky(Unavailable("a"))
    task = asyncio.ensure_future(retry(call, idempotent=True, clock=clock, randomness=Highest()))
    await clock.wait_for_sleepers()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert call.calls == 1

"""Load: who is called when, and from when latency counts. Time is the test's own."""

import asyncio

import pytest

from libs.common.errors import Exhausted
from libs.common.testing import FakeClock
from services.tuner.domain.load import CALL_S, drive
from services.tuner.domain.model import Load
from services.tuner.domain.statistics import BATCHES

CLOSED = Load(concurrency=4, duration_s=10.0)
OPEN = Load(rate_rps=50.0, duration_s=10.0)


async def driven(call, load, clock, **looks):
    """Turn the clock's hands until the load is done."""
    task = asyncio.create_task(drive(call, load, 3, clock, **looks))
    while not task.done():
        for _ in range(20):
            await asyncio.sleep(0)
        clock.advance(0.005)
    return task.result()


async def test_callers_wait_for_their_answers():
    clock, calls, most = FakeClock(), [0], [0]

    async def call():
        calls[0] += 1
        most[0] = max(most[0], calls[0])
        await clock.sleep(0.1)
        calls[0] -= 1

    run = await driven(call, CLOSED, clock)
    assert most[0] == 4
    due = (run.arrival_s >= 0) & (run.arrival_s < 10)
    assert due.sum() == pytest.approx(4 * 10 / 0.1, rel=0.1)
    assert run.latency_s[due] == pytest.approx(0.1, abs=0.006)
    assert run.arrival_s.min() == pytest.approx(-2.0), "it warms up for a fifth of the time"


async def test_arrivals_do_not_wait_and_count_from_when_they_were_due():
    clock, stalled = FakeClock(), asyncio.Event()

    async def call():
        # The server stalls for the whole of the load, and answers all at its end.
        await stalled.wait()

    task = asyncio.create_task(drive(call, OPEN, 3, clock))
    while clock.monotonic() < 12.5:
        for _ in range(20):
            await asyncio.sleep(0)
        clock.advance(0.01)
    stalled.set()
    run = await task
    due = run.arrival_s >= 0
    assert due.sum() == pytest.approx(500, rel=0.15)
    assert run.latency_s.max() == pytest.approx(12.5, abs=0.2)
    assert run.latency_s.mean() == pytest.approx(6.5, rel=0.15)


async def test_failures_are_counted_as_the_longest_and_told():
    clock = FakeClock()

    async def call():
        await clock.sleep(0.01)
        raise Exhausted("the queue is full")

    run = await driven(call, CLOSED, clock)
    assert not run.answered.any()
    assert set(run.latency_s) == {CALL_S}
    assert run.message == "the queue is full"


async def test_the_process_is_looked_at_at_the_borders_of_the_batches():
    clock = FakeClock()

    async def call():
        await clock.sleep(0.05)

    run = await driven(call, CLOSED, clock, cpu_s=clock.monotonic, peak_bytes=lambda: 123)
    assert len(run.cpu_s) == BATCHES + 1
    assert run.cpu_s[0] == pytest.approx(2.0, abs=0.01)
    assert run.cpu_s[-1] == pytest.approx(12.0, abs=0.01)
    assert run.peak_memory_bytes == 123


async def test_a_fault_ends_the_load_as_itself():
    clock = FakeClock()

    async def call():
        await clock.sleep(0.01)

    def gone():
        raise FileNotFoundError("/proc/7/stat")

    with pytest.raises(FileNotFoundError):
        await driven(call, CLOSED, clock, cpu_s=gone)


async def test_a_cancelled_load_leaves_no_caller():
    clock, inside = FakeClock(), [0]

    async def call():
        inside[0] += 1
        try:
            await clock.sleep(1000)
        finally:
            inside[0] -= 1

    task = asyncio.create_task(drive(call, CLOSED, 3, clock))
    await clock.wait_for_sleepers(4)
    assert inside[0] == 4
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert inside[0] == 0

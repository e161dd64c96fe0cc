"""Load: callers that wait for their answers, or arrivals that don't.

With arrivals by a Poisson process a request's latency counts from when it was due, not from when it was sent,
so that a server that stalls doesn't hide the requests that it kept from being made (coordinated omission; G.
Tene, "How NOT to Measure Latency", 2013).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

import numpy as np

from libs.common.clock import Clock
from libs.common.errors import Error
from services.tuner.domain.model import Load
from services.tuner.domain.statistics import BATCHES, Run

CALL_S = 30.0
"""The longest that a request may take."""
_MOST_IN_FLIGHT = 4096
_PAUSE_S = 0.01
"""A waiting caller's pause after a failure: refusing must not make the load grow."""


class _Book:
    """What is noted while load runs."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.latencies: list[float] = []
        self.answered: list[bool] = []
        self.message = ""

    def note(self, arrival_s: float, latency_s: float, answered: bool) -> None:
        self.arrivals.append(arrival_s)
        self.latencies.append(latency_s if answered else CALL_S)
        self.answered.append(answered)


async def drive(
    call: Callable[[], Awaitable[object]],
    load: Load,
    seed: int,
    clock: Clock,
    cpu_s: Callable[[], float] | None = None,
    peak_bytes: Callable[[], int] | None = None,
) -> Run:
    """Warm up, then load for `load.duration_s`; return what was seen. Every request has ended by then.

    Args:
        call: makes one request; raises Error when it fails. It ends within `CALL_S` by itself.
        load: what to do.
        seed: of the arrivals.
        clock: by which it is measured.
        cpu_s: returns the processor seconds that the server has used.
        peak_bytes: returns the server's largest resident memory.
    """
    book = _Book()
    start = clock.monotonic() + load.warm_s

    async def once(due: float) -> bool:
        try:
            async with asyncio.timeout(CALL_S):
                await call()
        except (Error, TimeoutError) as error:
            book.message = book.message or str(error) or f"no answer within {CALL_S:g} s"
            book.note(due - start, CALL_S, False)
            return False
        book.note(due - start, clock.monotonic() - due, True)
        return True

    borders: list[float] = []
    try:
        async with asyncio.TaskGroup() as group:
            if cpu_s is not None:
                group.create_task(_watch(cpu_s, borders, start, load.duration_s, clock))
            if load.rate_rps:
                group.create_task(_arrive(once, book, load, seed, start, clock))
            else:
                for _ in range(load.concurrency):
                    group.create_task(_repeat(once, start + load.duration_s, clock))
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return Run(
        load.duration_s,
        np.array(book.arrivals, np.float64),
        np.array(book.latencies, np.float64),
        np.array(book.answered, np.bool_),
        load.target_s,
        np.array(borders, np.float64),
        peak_bytes() if peak_bytes is not None else 0,
        book.message,
    )


async def _repeat(once: Callable[[float], Awaitable[bool]], end: float, clock: Clock) -> None:
    while (now := clock.monotonic()) < end:
        if not await once(now):
            await clock.sleep(_PAUSE_S)


async def _arrive(
    once: Callable[[float], Awaitable[bool]], book: _Book, load: Load, seed: int, start: float, clock: Clock
) -> None:
    chance = random.Random(seed)
    due, end = clock.monotonic(), start + load.duration_s
    async with asyncio.TaskGroup() as group:
        running: set[asyncio.Task[bool]] = set()
        while (due := due + chance.expovariate(load.rate_rps)) < end:
            if (wait := due - clock.monotonic()) > 0:
                await clock.sleep(wait)
            if len(running) >= _MOST_IN_FLIGHT:
                book.message = book.message or f"{_MOST_IN_FLIGHT} requests were unanswered"
                book.note(due - start, CALL_S, False)
                await clock.sleep(0)
                continue
            task = group.create_task(_awaited(once, due))
            running.add(task)
            task.add_done_callback(running.discard)


async def _awaited(once: Callable[[float], Awaitable[bool]], due: float) -> bool:
    return await once(due)


async def _watch(
    cpu_s: Callable[[], float], borders: list[float], start: float, duration_s: float, clock: Clock
) -> None:
    for border in range(BATCHES + 1):
        await clock.sleep(start + duration_s * border / BATCHES - clock.monotonic())
        borders.append(cpu_s())

"""Fakes and helpers for tests, ours and those of whoever builds on this library."""

import asyncio
import heapq
import itertools
import random
from datetime import UTC, datetime, timedelta

from libs.common.rand import ID_ALPHABET

START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """A clock whose hands only move by `advance`; sleepers wake in the order of their deadlines."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._arrivals: list[tuple[int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        """Return the start plus what was advanced."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Return the seconds advanced so far."""
        return self._elapsed

    @property
    def sleepers(self) -> int:
        """How many tasks are asleep on this clock."""
        return sum(1 for _, _, future in self._sleepers if not future.done())

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by `seconds`; zero or less only yields."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), future))
        for count, arrival in self._arrivals:
            if self.sleepers >= count and not arrival.done():
                arrival.set_result(None)
        await future

    def advance(self, seconds: float) -> None:
        """Move the hands forward and wake whoever slept until then; they run when the loop next does."""
        if seconds < 0:
            raise ValueError("time does not go back")
        target = self._elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= target:
            deadline, _, future = heapq.heappop(self._sleepers)
            self._elapsed = max(self._elapsed, deadline)
            if not future.done():
                future.set_result(None)
        self._elapsed = target

    def step(self, seconds: float) -> None:
        """Shift the wall clock alone, as an administrator or NTP would; monotonic time doesn't notice."""
        self._start += timedelta(seconds=seconds)

    async def wait_for_sleepers(self, count: int = 1) -> None:
        """Wait until at least `count` tasks are asleep, so that a test advances neither early nor blindly."""
        if self.sleepers >= count:
            return
        arrival = asyncio.get_running_loop().create_future()
        self._arrivals.append((count, arrival))
        try:
            await arrival
        finally:
            self._arrivals.remove((count, arrival))


class FakeRandomness:
    """Repeatable randomness: the same seed gives the same bytes, numbers and ids."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def bytes(self, n: int) -> bytes:
        """Return `n` repeatable bytes."""
        return self._random.randbytes(n)

    def uniform(self, a: float, b: float) -> float:
        """Return a repeatable number between `a` and `b`."""
        return self._random.uniform(a, b)

    def id(self, n: int = 16) -> str:
        """Return a repeatable id of `n` characters out of [a-z0-9]."""
        return "".join(self._random.choice(ID_ALPHABET) for _ in range(n))

"""Held streams of idle devices: who waits for a hint, and waking exactly them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from libs.common.errors import Conflict, Error, Exhausted

_STREAMS_PER_DEVICE = 2


class Waiter:
    """One held stream. Hints coalesce: however often its device changed, the stream says "pull" once."""

    __slots__ = ("_event", "ended", "fingerprint", "profile_digest")

    def __init__(self, fingerprint: bytes, profile_digest: bytes) -> None:
        self.fingerprint = fingerprint
        self.profile_digest = profile_digest
        self.ended: Error | None = None
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Have `wait` return once more."""
        self._event.set()

    def end(self, error: Error) -> None:
        """Have `wait` raise."""
        self.ended = error
        self._event.set()

    async def wait(self) -> None:
        """Wait until there is something new to say to the device.

        Raises:
            Error: when the stream has to end; Conflict when a newer one of the same device took its place.
        """
        await self._event.wait()
        self._event.clear()
        if self.ended is not None:
            raise self.ended


class HintHub:
    """All held streams by device.

    A device may hold two, the old and the new one of a reconnect; a third ends the oldest.
    """

    __slots__ = ("_count", "_limit", "_waiters")

    def __init__(self, limit: int) -> None:
        """`limit`: streams held at once, over all devices."""
        self._limit = limit
        self._count = 0
        self._waiters: dict[bytes, list[Waiter]] = {}

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def waiting(self, fingerprint: bytes, profile_digest: bytes) -> Iterator[Waiter]:
        """Hold a place for a device's stream.

        Raises:
            Exhausted: when as many streams as allowed are held already.
        """
        held = self._waiters.get(fingerprint, [])
        if len(held) >= _STREAMS_PER_DEVICE:
            oldest = held[0]
            self._remove(oldest)
            oldest.end(Conflict("a newer watch of this device took this one's place", reason="REPLACED"))
        if self._count >= self._limit:
            raise Exhausted(
                f"this gateway holds {self._limit} watches already; ordinary requests carry hints too",
                reason="TOO_MANY_WATCHES",
                retry_after_s=60.0,
            )
        waiter = Waiter(fingerprint, profile_digest)
        self._waiters.setdefault(fingerprint, []).append(waiter)
        self._count += 1
        try:
            yield waiter
        finally:
            self._remove(waiter)

    def wake(self, fingerprint: bytes) -> None:
        """Wake the streams of one device, if it holds any."""
        for waiter in self._waiters.get(fingerprint, ()):
            waiter.wake()

    def waiters(self) -> list[Waiter]:
        """Return all waiters as they are now."""
        return [waiter for held in self._waiters.values() for waiter in held]

    def _remove(self, waiter: Waiter) -> None:
        held = self._waiters.get(waiter.fingerprint)
        if held is None or waiter not in held:
            return
        held.remove(waiter)
        self._count -= 1
        if not held:
            del self._waiters[waiter.fingerprint]

"""How the loops wake one another and tell people what is wrong."""

import asyncio
import logging
from collections.abc import Sequence

from libs.common.clock import Clock

_log = logging.getLogger("isthmus.agent")


class Bell:
    """Rings for everybody who waits, and for nobody twice: a waiter names the last ring it knows.

    seen = bell.rings
    while True:
        ...look at the store...
        seen = await bell.wait(seen)   # at once when it has rung since
    """

    def __init__(self) -> None:
        self.rings = 0
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake whoever waits."""
        self.rings += 1
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self, seen: int) -> int:
        """Wait until it has rung after the ring number `seen`; return the number of the last ring."""
        while self.rings == seen:
            await self._event.wait()
        return self.rings

    async def wait_or_sleep(self, seen: int, clock: Clock, seconds: float) -> int:
        """Wait as `wait`, but no longer than `seconds`; return the number of the last ring."""
        if self.rings != seen:
            return self.rings
        ring = asyncio.ensure_future(self.wait(seen))
        sleep = asyncio.ensure_future(clock.sleep(seconds))
        try:
            await asyncio.wait({ring, sleep}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ring.cancel()
            sleep.cancel()
            await asyncio.gather(ring, sleep, return_exceptions=True)
        return self.rings


class Problems:
    """What is wrong right now, by subject; each change is logged once."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def set(self, subject: str, text: str, reason: str = "") -> None:
        """Say what is wrong with `subject`."""
        if self._texts.get(subject) != text:
            self._texts[subject] = text
            _log.warning("%s: %s", subject, text, extra={"subject": subject, "reason": reason})

    def clear(self, subject: str) -> None:
        """Say that `subject` is well again."""
        if self._texts.pop(subject, None) is not None:
            _log.info("%s: well again", subject, extra={"subject": subject})

    def clear_all(self, prefix: str, keep: Sequence[str] = ()) -> None:
        """Clear the subjects that begin with `prefix`, except `keep`."""
        for subject in [s for s in self._texts if s.startswith(prefix) and s not in keep]:
            self.clear(subject)

    def texts(self) -> list[str]:
        """Return one line for each subject."""
        return [f"{subject}: {text}" for subject, text in sorted(self._texts.items())]

"""A device without room goes on: what the disk stops is told, waited for and tried again."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from libs.common.clock import Clock
from libs.common.errors import Error
from services.device_agent.signals import Problems
from services.device_agent.store.trouble import passes

T = TypeVar("T")

SUBJECT = "disk"
_RETRY_S = 5.0


class Patience:
    """Runs what the disk may stop, until it doesn't.

    Most of the agent handles a full disk where it meets it. This is for the start, which has nothing to serve
    yet, and the net under the loops: no such trouble ends the agent.
    """

    def __init__(self, clock: Clock, problems: Problems) -> None:
        self._clock = clock
        self._problems = problems

    async def until_done(self, step: Callable[[], Awaitable[T]]) -> T:
        """Return what `step` returns once it isn't stopped; it must be such that it can be begun again."""
        while True:
            try:
                result = await step()
            except (Error, OSError) as error:
                if not passes(error):
                    raise
                self._tell(error, "the start waits for it")
                await self._clock.sleep(_RETRY_S)
            else:
                self._problems.clear(SUBJECT)
                return result

    async def forever(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a loop that ends only by a fault, again whenever it was stopped by trouble that passes."""
        while True:
            try:
                return await loop()
            except (Error, OSError) as error:
                if not passes(error):
                    raise
                self._tell(error, "what it stopped is tried again")
                await self._clock.sleep(_RETRY_S)
                self._problems.clear(SUBJECT)

    def _tell(self, error: Error | OSError, then: str) -> None:
        text = error.message if isinstance(error, Error) else str(error)
        self._problems.set(SUBJECT, f"{text}; {then}", "DISK_FULL")

"""The decision that belongs to the mirror's state, made once for each revision and seen by all."""

import asyncio
from collections.abc import Callable

from libs.common.clock import Clock
from services.scheduler.domain.crowding import Fits
from services.scheduler.domain.decide import Decision, decide
from services.scheduler.domain.mirror import Mirror


class Decisions:
    """Decides when asked, and remembers: every replica tells why a job waits, only the leader acts.

    Deciding over many nodes and jobs takes a while, so that a thread does it, one at a time; those who ask
    meanwhile share the next one, so that nobody waits for more than two.
    """

    def __init__(
        self,
        mirror: Mirror,
        clock: Clock,
        on_decided: Callable[[float], None],
        fits: Fits = lambda change: True,
    ) -> None:
        """`on_decided` is told the seconds that a decision took; `fits` as in `decide`, on any thread."""
        self._mirror = mirror
        self._clock = clock
        self._on_decided = on_decided
        self._fits = fits
        self._deciding = asyncio.Lock()
        self._last: Decision | None = None
        self._begun_count = 0
        self._last_number = 0

    async def now(self) -> Decision:
        """Return the decision on the mirror's state, as it is at the call or a little later."""
        known = self._known()
        if known is not None:
            return known
        asked = self._begun_count
        async with self._deciding:
            # One that was begun since is on a state that is new enough, though the mirror may have moved on.
            known = self._last if self._last_number > asked else self._known()
            if known is not None:
                return known
            self._begun_count += 1
            number, begun = self._begun_count, self._clock.monotonic()
            decision = await asyncio.to_thread(decide, self._mirror.snapshot, self._clock.now(), self._fits)
            self._on_decided(self._clock.monotonic() - begun)
            self._last, self._last_number = decision, number
            return decision

    def _known(self) -> Decision | None:
        last = self._last
        if last is None or last.snapshot is not self._mirror.snapshot:
            return None
        return last if last.recheck_time is None or self._clock.now() < last.recheck_time else None

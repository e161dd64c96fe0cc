"""The decision that belongs to the mirror's state, made once for each revision and seen by all."""

import asyncio
from collections.abc import Callable

from libs.common.clock import Clock
from services.scheduler.domain.decide import Decision, decide
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.objects import Job, JobState
from services.scheduler.domain.reasons import NOT_CONSIDERED, Reason


class Decisions:
    """Decides when asked, and remembers: every replica tells why a job waits, only the leader acts.

    Deciding over many nodes and jobs takes a while, so that a thread does it.
    """

    def __init__(self, mirror: Mirror, clock: Clock, on_decided: Callable[[float], None]) -> None:
        """`on_decided` is told the seconds that a decision took."""
        self._mirror = mirror
        self._clock = clock
        self._on_decided = on_decided
        self._deciding = asyncio.Lock()
        self._last: Decision | None = None

    async def now(self) -> Decision:
        """Return the decision on the mirror's state, as it is at the call or a little later."""
        known = self._known()
        if known is not None:
            return known
        async with self._deciding:
            known = self._known()
            if known is not None:
                return known
            begun = self._clock.monotonic()
            decision = await asyncio.to_thread(decide, self._mirror.snapshot, self._clock.now())
            self._on_decided(self._clock.monotonic() - begun)
            self._last = decision
            return decision

    async def why(self, job: Job) -> tuple[Reason, ...]:
        """Return why a job waits; nothing when it doesn't."""
        if job.status.state is not JobState.PENDING:
            return ()
        return (await self.now()).pending.get(job.name, (NOT_CONSIDERED,))

    def _known(self) -> Decision | None:
        last = self._last
        if last is None or last.snapshot is not self._mirror.snapshot:
            return None
        return last if last.recheck_time is None or self._clock.now() < last.recheck_time else None

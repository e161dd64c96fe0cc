"""What is done now and then: collecting blobs that nobody needs, forgetting old ids, counting states."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from libs.common.clock import Clock
from services.deployer.domain.blobs import Blobs
from services.deployer.domain.model import ReleaseState
from services.deployer.store import Store

_log = logging.getLogger("isthmus.deployer.housekeeping")

REMEMBERED = timedelta(days=7)
"""How long report ids and request ids are known: much longer than anybody repeats a call."""
_STATES_S = 10.0


class Housekeeping:
    """A loop beside the calls; a round that fails is logged and tried again in the next."""

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        show_states: Callable[[Mapping[ReleaseState, int]], None],
        clock: Clock,
        *,
        interval_s: float,
        grace: timedelta,
    ) -> None:
        """Collect every `interval_s` what hasn't been needed for `grace`."""
        self._store = store
        self._blobs = blobs
        self._show_states = show_states
        self._clock = clock
        self._interval_s = interval_s
        self._grace = grace

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(_STATES_S, self._states))
            group.create_task(self._every(self._interval_s, self.sweep))

    async def sweep(self) -> None:
        """Collect and forget, once."""
        collected = await self._blobs.collect(self._grace)
        before = self._clock.now() - REMEMBERED
        forgotten = await self._store.run(lambda tx: tx.prune(before))
        if collected or forgotten:
            _log.info("collected %d blobs and uploads, forgot %d ids", collected, forgotten)

    async def _states(self) -> None:
        self._show_states(await self._store.read(lambda tx: tx.release_state_counts()))

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception:
                _log.exception("housekeeping failed; trying again in %g s", seconds)
            await self._clock.sleep(seconds)

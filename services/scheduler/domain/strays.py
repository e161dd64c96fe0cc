"""Artefacts that were pinned for a job after it was deleted: by a runner that was cut off meanwhile."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from libs.common.backoff import backoff
from libs.common.clock import Clock
from libs.common.errors import Error
from libs.common.names import JobName
from libs.common.rand import Randomness

_MOST = 10_000
_log = logging.getLogger("isthmus.scheduler.strays")


class Strays:
    """Releases such pins, again and again while the deployer is away. One event loop's."""

    def __init__(
        self,
        release: Callable[[JobName], Awaitable[None]],
        exists: Callable[[JobName], bool],
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        """`exists` tells whether there is a job of a name: then its pins are its own."""
        self._release = release
        self._exists = exists
        self._clock = clock
        self._randomness = randomness
        self._jobs: dict[JobName, None] = {}
        self._noted = asyncio.Event()

    def note(self, job: JobName) -> None:
        """Release what a job that is gone has pinned; beyond 10,000 that wait the oldest is forgotten."""
        self._jobs[job] = None
        if len(self._jobs) > _MOST:
            forgotten = next(iter(self._jobs))
            del self._jobs[forgotten]
            _log.error("%s: its artefacts stay pinned, since too many jobs' wait to be released", forgotten)
        self._noted.set()

    async def run(self) -> None:
        """Release what is noted, until cancelled."""
        attempt = 0
        while True:
            await self._noted.wait()
            job = next(iter(self._jobs), None)
            if job is None:
                self._noted.clear()
                continue
            try:
                if not self._exists(job):
                    await self._release(job)
            except Error as error:
                _log.warning("%s: its artefacts can't be released yet: %s", job, error.message)
                wait = backoff(attempt, randomness=self._randomness, base_s=0.5, cap_s=30.0)
                await self._clock.sleep(wait)
                attempt += 1
                continue
            attempt = 0
            self._jobs.pop(job, None)

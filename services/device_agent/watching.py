"""The held push stream: an idle device hears at once that there is something to pull."""

import asyncio
from contextlib import aclosing

from libs.common.clock import Clock
from libs.common.errors import Error
from services.device_agent.backoff import Backoff
from services.device_agent.cloud import Cloud
from services.device_agent.pulling import Puller
from services.device_agent.signals import Problems
from services.device_agent.tasks import Tasks

_SUBJECT = "push"
_SETTLED_S = 2.0


class Watcher:
    """Holds the stream, for the profile that the device has now.

    Attributes:
        connected: the stream is open, as far as we know.
    """

    def __init__(
        self, tasks: Tasks, cloud: Cloud, puller: Puller, clock: Clock, problems: Problems, backoff: Backoff
    ) -> None:
        self.connected = False
        self._tasks = tasks
        self._cloud = cloud
        self._puller = puller
        self._clock = clock
        self._problems = problems
        self._backoff = backoff
        self._attempt = 0

    async def run(self) -> None:
        """Hold it, anew for each profile and after each end."""
        while True:
            digest = self._tasks.profile_digest
            answered = asyncio.Event()
            holding = asyncio.create_task(self._hold(digest, answered))
            changing = asyncio.create_task(self._profile_other_than(digest))
            settling = asyncio.create_task(self._settle(answered))
            try:
                await asyncio.wait({holding, changing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (holding, changing, settling):
                    task.cancel()
                results = await asyncio.gather(holding, changing, settling, return_exceptions=True)
                self.connected = False
            failure = results[0]
            if isinstance(failure, Error):
                # An hour's deadline is a normal end; so is a gateway that restarts. Neither is told at once.
                if failure.reason not in ("DEADLINE_EXCEEDED", "SHUTTING_DOWN") and self._attempt > 0:
                    self._problems.set(_SUBJECT, failure.message, failure.reason)
                await self._clock.sleep(self._backoff.delay_s(self._attempt, failure))
                self._attempt += 1
            elif isinstance(failure, Exception):
                raise failure
            elif failure is None:
                await self._clock.sleep(self._backoff.delay_s(self._attempt))

    async def _hold(self, digest: bytes, answered: asyncio.Event) -> None:
        async with aclosing(self._cloud.watch(digest, answered.set)) as hints:
            async for _ in hints:
                self._well()
                self._puller.hinted(digest)

    async def _settle(self, answered: asyncio.Event) -> None:
        # An open stream says nothing until there is a hint; one that was answered, and not refused for a
        # while, is well. A path that swallows everything gives no answer.
        await answered.wait()
        await self._clock.sleep(_SETTLED_S)
        self._well()

    def _well(self) -> None:
        self.connected = True
        self._attempt = 0
        self._problems.clear(_SUBJECT)

    async def _profile_other_than(self, digest: bytes) -> None:
        seen = self._tasks.changed.rings
        while self._tasks.profile_digest == digest:
            seen = await self._tasks.changed.wait(seen)

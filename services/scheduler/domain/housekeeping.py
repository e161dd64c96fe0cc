"""What is done now and then: removing ended jobs after their retention, old request ids, orphaned logs."""

import logging
from collections.abc import Callable
from datetime import timedelta

from libs.common.clock import Clock
from libs.common.errors import Error, Unavailable
from services.scheduler.domain.change import Change
from services.scheduler.domain.jobs import Jobs
from services.scheduler.domain.logs import Logs
from services.scheduler.domain.mirror import Mirror
from services.scheduler.store import Store

REMEMBERED = timedelta(days=7)
"""How long request ids are known: much longer than anybody repeats a call."""

_log = logging.getLogger("isthmus.scheduler.housekeeping")


class Housekeeping:
    """A loop beside the calls; what fails is logged and tried again in the next round."""

    def __init__(
        self,
        store: Store,
        mirror: Mirror,
        jobs: Jobs,
        logs: Logs,
        clock: Clock,
        leads: Callable[[], bool],
        *,
        interval_s: float,
    ) -> None:
        """Work every `interval_s`; jobs and ids are the leader's to remove."""
        self._store = store
        self._mirror = mirror
        self._jobs = jobs
        self._logs = logs
        self._clock = clock
        self._leads = leads
        self._interval_s = interval_s

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            try:
                await self.sweep()
            except Error as error:
                _log.warning("housekeeping broke off: %s; again in %g s", error.message, self._interval_s)
            except Exception:
                _log.exception("housekeeping failed; trying again in %g s", self._interval_s)
            await self._clock.sleep(self._interval_s)

    async def sweep(self) -> None:
        """Remove what is over, once."""
        await self._mirror.reached(1)
        if self._leads():
            await self._remove_jobs()
            await self._forget_requests()
        gone = await self._logs.sweep()
        if gone:
            _log.info("jobs whose logs were removed: %d", gone)

    async def _remove_jobs(self) -> None:
        now = self._clock.now()
        for job in list(self._mirror.snapshot.jobs.values()):
            end = job.status.end_time
            if not job.status.state.ended or end is None or end + job.spec.retention > now:
                continue
            try:
                await self._jobs.delete(job.name, str(job.meta.revision))
            except Unavailable as error:
                # It is so for the next ones too, and each would be waited for.
                _log.warning("ended jobs can't be removed yet: %s", error.message)
                return
            except Error as error:
                _log.warning("%s: can't be removed yet: %s", job.name, error.message)

    async def _forget_requests(self) -> None:
        before = self._clock.now() - REMEMBERED
        for request in self._mirror.requests:
            if request.create_time >= before:
                continue
            try:
                await self._store.commit(Change(deletes=(request,)))
            except Error as error:
                _log.warning("old request ids can't be removed yet: %s", error.message)
                return

"""From stored events to waiting runs: the trie, in the order of the store."""

import sqlite3
from functools import partial

from libs.common.clock import Clock
from libs.common.errors import Error
from services.device_agent.identity import CloudClock
from services.device_agent.queueing import RunQueue
from services.device_agent.signals import Bell, Problems
from services.device_agent.store import events as event_store
from services.device_agent.store import runs as run_store
from services.device_agent.store.bad_rows import BAD_ROW
from services.device_agent.store.database import Database
from services.device_agent.store.runs import NewRun
from services.device_agent.store.trouble import passes
from services.device_agent.tasks import Tasks

_BATCH = 256
_RETRY_S = 1.0


class Triggerer:
    """Feeds events to the trie; a batch's runs and the position behind it are stored in one.

    Attributes:
        bell: rings when events have been stored.
        done: rings when a batch has been processed.
    """

    def __init__(
        self,
        database: Database,
        tasks: Tasks,
        queue: RunQueue,
        clock: Clock,
        cloud_clock: CloudClock,
        problems: Problems,
    ) -> None:
        self.bell = Bell()
        self.done = Bell()
        self._database = database
        self._tasks = tasks
        self._queue = queue
        self._clock = clock
        self._cloud_clock = cloud_clock
        self._problems = problems

    async def run(self) -> None:
        """Process what is stored, for ever."""
        while True:
            seen = self.bell.rings
            while await self.step():
                pass
            await self.bell.wait(seen)

    async def step(self) -> bool:
        """Process one batch; return whether there was one."""
        # Under the lock: what is activated or rolled back happens between two batches.
        async with self._tasks.lock:
            batch = await self._database.run(_next_batch, durable=False)
            if not batch:
                return False
            runs = self._advance(batch)
            await self._store(batch[-1].seq, runs)
        self.done.ring()
        return True

    def _advance(self, batch: list[event_store.StoredEvent]) -> list[NewRun]:
        runs: list[NewRun] = []
        for stored in batch:
            for match in self._tasks.advance(stored):
                manifest = self._tasks.installed[match.key].manifest
                runs.append(
                    NewRun(
                        task=manifest.task,
                        version=manifest.version,
                        last_seq=stored.seq,
                        trigger_time_s=self._cloud_clock.now_s(),
                        events=match.events,
                        traceparent=stored.traceparent,
                    )
                )
        return runs

    async def _store(self, processed: int, runs: list[NewRun]) -> None:
        limits = {
            run.task: self._tasks.installed[f"{run.task}@{run.version}"].manifest.limits.pending_count
            for run in runs
        }
        while True:
            try:
                # Needs no disk of its own: whatever is lost with it is derived from the events again.
                added, dropped = await self._database.run(
                    partial(
                        run_store.add_runs,
                        processed=processed,
                        runs=runs,
                        limits=limits,
                        in_flight=self._queue.in_flight(),
                    ),
                    durable=False,
                )
            except BAD_ROW as error:
                # A run can't be stored: the others and the position still have to be.
                bad = [run for run in runs if not run_store.is_storable(run)]
                if not bad:
                    raise
                runs = [run for run in runs if run not in bad]
                await self._database.insist(partial(run_store.refuse_runs, runs=bad, error=error))
                continue
            except Error as error:
                if not passes(error):
                    raise
                # The trie has taken the batch already, so it must be stored before the next.
                await self._clock.sleep(_RETRY_S)
                continue
            self._queue.add(added, dropped)
            return


def _next_batch(connection: sqlite3.Connection) -> list[event_store.StoredEvent]:
    return event_store.read_events(connection, event_store.processed_seq(connection), _BATCH)

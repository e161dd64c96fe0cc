"""Writes by the tuner's own work: they wait for a store that is away, and go on from what they find."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from libs.common.clock import Clock
from libs.common.errors import Conflict, Error, NotFound
from libs.common.names import ExperimentName
from services.tuner.domain.board import Board
from services.tuner.domain.model import Experiment, Trial
from services.tuner.store import Store

T = TypeVar("T")
_AGAIN_S = 1.0
_PAGE = 1000
_log = logging.getLogger("isthmus.tuner")


class Keeper:
    """Reads and writes for work in the background; tells the board."""

    def __init__(self, store: Store, board: Board, clock: Clock) -> None:
        self._store = store
        self._board = board
        self._clock = clock

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except Error as error:
                if not error.retriable:
                    raise
                _log.warning("the store is away: %s", error.message)
                await self._clock.sleep(_AGAIN_S)

    async def get(self, name: ExperimentName) -> Experiment:
        """Return an experiment; raise NotFound when it is gone."""
        found = await self._patiently(lambda: self._store.get(name))
        if found is None:
            raise NotFound(f"{name}: not found", reason="EXPERIMENT_NOT_FOUND")
        return found

    async def trials(self, name: ExperimentName) -> list[Trial]:
        """Return every trial; there are at most a thousand."""
        return list(await self._patiently(lambda: self._store.trials(name, 0, _PAGE)))

    async def put(self, trial: Trial) -> None:
        """Store a trial."""
        await self._patiently(lambda: self._store.put_trial(trial))
        self._board.changed(trial.experiment)

    async def change(
        self, name: ExperimentName, work: Callable[[Experiment], Experiment | None]
    ) -> Experiment:
        """Store what `work` makes of an experiment, again where another write came between.

        `work` builds the new value by `dataclasses.replace` and leaves the revision alone; None changes
        nothing.
        """
        while True:
            found = await self.get(name)
            changed = work(found)
            if changed is None or changed == found:
                return found
            changed = replace(changed, revision=found.revision + 1)
            try:
                await self._patiently(lambda: self._store.update(changed))  # noqa: B023 - awaited here
            except Conflict:
                await asyncio.sleep(0)
                continue
            self._board.changed(name)
            return changed

"""Which runners are there: a leased key for each node that was heard of lately.

The lease is held by the leader on behalf of the runner's connection, not by the runner, so that runners
need no etcd. It ends `liveness_s` after the last word of the runner, or after the death of the leader.
"""

import asyncio
import logging

from libs.common.backoff import backoff
from libs.common.clock import Clock
from libs.common.errors import Error
from libs.common.names import NodeName
from libs.common.rand import Randomness
from services.scheduler.store import Store

_log = logging.getLogger("isthmus.scheduler.liveness")


class Liveness:
    """Keeps the keys while `run` runs."""

    def __init__(self, store: Store, clock: Clock, randomness: Randomness, liveness_s: float) -> None:
        self._store = store
        self._clock = clock
        self._randomness = randomness
        self._liveness_s = liveness_s
        self._heard: dict[NodeName, float] = {}
        self._kept: set[NodeName] = set()
        self._new = asyncio.Event()

    def heard(self, node: NodeName) -> None:
        """Note that a node's runner has just said something."""
        self._heard[node] = self._clock.monotonic()
        if node not in self._kept:
            self._new.set()

    async def run(self) -> None:
        """Keep the keys until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._new.clear()
                    for node in [node for node in self._heard if node not in self._kept]:
                        self._kept.add(node)
                        group.create_task(self._keep(node), name=f"liveness {node}")
                    await self._new.wait()
        finally:
            self._heard.clear()
            self._kept.clear()

    async def _keep(self, node: NodeName) -> None:
        attempt = 0
        while self._left(node) > 0:
            try:
                async with self._store.keep_alive(node) as lost:
                    attempt = 0
                    while not lost.is_set() and (left := self._left(node)) > 0:
                        await self._either(lost, left)
            except Error as error:
                _log.warning("%s: can't be kept alive: %s", node, error.message)
                await self._clock.sleep(backoff(attempt, randomness=self._randomness, base_s=0.1, cap_s=1.0))
                attempt += 1
        _log.warning("%s: its runner wasn't heard of for %g s", node, self._liveness_s)
        self._kept.discard(node)
        self._heard.pop(node, None)

    def _left(self, node: NodeName) -> float:
        heard = self._heard.get(node)
        return 0.0 if heard is None else heard + self._liveness_s - self._clock.monotonic()

    async def _either(self, lost: asyncio.Event, seconds: float) -> None:
        waits = {asyncio.create_task(lost.wait()), asyncio.create_task(self._clock.sleep(seconds))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

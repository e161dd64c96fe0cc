"""The whole state in memory, as the store's watch tells it: what reads and decisions are made from.

Every replica has one. It lags behind the store by a watch event, some milliseconds; whoever has written
waits until the mirror has come to that revision (`reached`), so that a replica's callers read what they
wrote.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Any, TypeVar

from libs.common.backoff import backoff
from libs.common.clock import Clock
from libs.common.errors import Error, Unavailable
from libs.common.names import JobName, NodeName, QueueName, ReservationName
from libs.common.rand import Randomness
from services.scheduler.domain.objects import Job, Node, Object, PastRequest, Queue, Reservation
from services.scheduler.domain.snapshot import Snapshot
from services.scheduler.store import (
    AliveKey,
    Batch,
    Event,
    HistoryLost,
    Key,
    Leader,
    LeaderKey,
    RequestKey,
    Store,
    Unreadable,
)

_AFTER_A_FAULT_S = 1.0
K = TypeVar("K")
V = TypeVar("V")

_log = logging.getLogger("isthmus.scheduler.mirror")


class Mirror:
    """See the module. `run` feeds it; the rest is safe on the same event loop."""

    def __init__(self, store: Store, clock: Clock, randomness: Randomness) -> None:
        self._store = store
        self._clock = clock
        self._randomness = randomness
        self._nodes: dict[NodeName, Node] = {}
        self._queues: dict[QueueName, Queue] = {}
        self._jobs: dict[JobName, Job] = {}
        self._reservations: dict[ReservationName, Reservation] = {}
        self._requests: dict[RequestKey, PastRequest] = {}
        self._request_counts: Counter[str] = Counter()
        self._alive: set[NodeName] = set()
        self._unreadable: set[Key] = set()
        self._revision = 0
        self._snapshot: Snapshot | None = None
        self._changed = asyncio.Condition()
        self._listeners: list[Callable[[], None]] = []
        self.leader: Leader | None = None

    @property
    def revision(self) -> int:
        """The store's revision that this is; 0 before the first load."""
        return self._revision

    @property
    def snapshot(self) -> Snapshot:
        """The state now; the same object until something changes."""
        if self._snapshot is None:
            self._snapshot = Snapshot(
                self._revision,
                dict(self._nodes),
                dict(self._queues),
                dict(self._jobs),
                dict(self._reservations),
                # What can't be read can't be written either: such a node takes nothing new.
                frozenset(self._alive - self._unreadable),
                frozenset(self._unreadable),
            )
        return self._snapshot

    def request(self, key: RequestKey) -> PastRequest | None:
        """Return what an earlier request made."""
        return self._requests.get(key)

    def request_count(self, tenant: str) -> int:
        """Return how many earlier requests of a tenant are remembered."""
        return self._request_counts[tenant]

    @property
    def requests(self) -> list[PastRequest]:
        """Every earlier request that is remembered."""
        return list(self._requests.values())

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener`, which must not block, after each change inside the block."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    async def reached(self, revision: int, *, within_s: float = 10.0) -> None:
        """Wait until the mirror has come to a revision; at least to its first load.

        Raises:
            Unavailable: when it doesn't in time.
        """
        wanted = max(1, revision)
        if self._revision >= wanted:
            return
        try:
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: self._revision >= wanted)
        except TimeoutError:
            raise Unavailable(
                "the store's changes can't be followed right now; try again", retry_after_s=1.0
            ) from None

    async def moved(self, revision: int, *, within_s: float = 0.5) -> None:
        """Wait until the mirror is past a revision, but not for long: it may be there without us knowing."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: self._revision > revision)

    async def run(self) -> None:
        """Follow the store until cancelled."""
        attempt = 0
        while True:
            try:
                await self._take(await self._store.load(), fresh=True)
                attempt = 0
                async with aclosing(self._store.watch(self._revision)) as batches:
                    async for batch in batches:
                        await self._take(batch)
            except HistoryLost:
                _log.warning(
                    "the store has forgotten what came after revision %d; loading anew", self._revision
                )
            except Error as error:
                wait = backoff(attempt, randomness=self._randomness, base_s=0.1, cap_s=2.0)
                _log.warning("can't follow the store: %s; trying again in %.1f s", error.message, wait)
                attempt += 1
                await self._clock.sleep(wait)
            except Exception:
                _log.exception("following the store failed; loading anew")
                await self._clock.sleep(_AFTER_A_FAULT_S)

    async def _take(self, batch: Batch, *, fresh: bool = False) -> None:
        events: Iterable[Event] = batch.events
        if fresh:
            # What can't be read now stays as it was read last.
            events = [
                *(Event(event.key, known) for event in events if (known := self._known(event)) is not None),
                *events,
            ]
            for held in (self._nodes, self._queues, self._jobs, self._reservations, self._requests):
                held.clear()
            self._request_counts.clear()
            self._alive.clear()
            self._unreadable.clear()
            self.leader = None
        for event in events:
            self._apply(event)
        self._revision = batch.revision
        self._snapshot = None
        async with self._changed:
            self._changed.notify_all()
        for listener in tuple(self._listeners):
            listener()

    def _known(self, event: Event) -> Object | PastRequest | None:
        """Return what an unreadable value's key held when it was last read."""
        if not isinstance(event.value, Unreadable):
            return None
        every: tuple[Mapping[Any, Object | PastRequest], ...] = (
            *(self._nodes, self._queues, self._jobs, self._reservations),
            self._requests,
        )
        return next((held[event.key] for held in every if event.key in held), None)

    def _apply(self, event: Event) -> None:
        key, value = event.key, event.value
        if isinstance(value, Unreadable):
            self._unreadable.add(key)
            return
        self._unreadable.discard(key)
        if isinstance(key, LeaderKey):
            self.leader = value if isinstance(value, Leader) else None
        elif isinstance(key, AliveKey):
            (self._alive.add if value is not None else self._alive.discard)(key.node)
        elif isinstance(key, RequestKey):
            self._request_counts[key.tenant] -= key in self._requests
            _put(self._requests, key, value, PastRequest)
            self._request_counts[key.tenant] += key in self._requests
        elif isinstance(key, NodeName):
            _put(self._nodes, key, value, Node)
        elif isinstance(key, QueueName):
            _put(self._queues, key, value, Queue)
        elif isinstance(key, JobName):
            _put(self._jobs, key, value, Job)
        else:
            _put(self._reservations, key, value, Reservation)


def _put(held: dict[K, V], key: K, value: object, kind: type[V]) -> None:
    if isinstance(value, kind):
        held[key] = value
    else:
        held.pop(key, None)

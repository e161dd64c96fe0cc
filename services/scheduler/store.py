"""What the scheduler needs of a store; `stores/` has two, under one contract suite.

Guarantees, for both:

- **Atomic.** A change is written whole or not at all, and only if each object that it names is at the
  revision it was read at. `Conflict` means that nothing was written, `Unavailable` with reason
  OUTCOME_UNKNOWN that nobody knows: the watch will tell.
- **Durable.** When `commit` returns, the change survives the death of any process.
- **Fenced.** A change committed under a term is written only while that term's leader still leads.
- **Ordered.** `watch` yields every change after a revision, once, in order, over restarts of the store.
- Leases are for leadership and the liveness of nodes only. What runs is never under one.

Safe for use by many tasks of one event loop; the objects are values and belong to nobody.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from libs.common.names import JobName, NodeName, QueueName, ReservationName
from services.scheduler.domain.change import Change
from services.scheduler.domain.objects import Object, PastRequest


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads: its address, for those who ask the wrong replica."""

    address: str


@dataclass(frozen=True, slots=True)
class Alive:
    """A node whose runner is there."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Names a `PastRequest`."""

    tenant: str
    digest: str


@dataclass(frozen=True, slots=True)
class LeaderKey:
    """Names the leader."""


@dataclass(frozen=True, slots=True)
class AliveKey:
    """Names a node's liveness."""

    node: NodeName


Kept: TypeAlias = Object | PastRequest | Leader | Alive
Key: TypeAlias = NodeName | QueueName | JobName | ReservationName | RequestKey | LeaderKey | AliveKey


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A value that isn't ours to read: somebody wrote it by hand, or spoilt it."""


@dataclass(frozen=True, slots=True)
class Event:
    """What a key holds from a revision on; None when it was removed."""

    key: Key
    value: Kept | Unreadable | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Events of one or several revisions, in order, up to `revision`."""

    events: Sequence[Event]
    revision: int


@dataclass(frozen=True, slots=True)
class Term:
    """A leader's time: `number` grows with each leader, `lost` is set when it is over."""

    number: int
    lost: asyncio.Event


class HistoryLost(Exception):
    """What was changed since the wanted revision can't be told any more: load again."""


class Store(Protocol):
    """See the module."""

    async def load(self) -> Batch:
        """Return everything, as events, at one revision.

        Raises:
            Unavailable: when the store can't be reached.
        """
        ...

    def watch(self, after: int) -> AsyncGenerator[Batch, None]:
        """Yield what changes after a revision, until it is closed (`contextlib.aclosing`).

        Raises:
            HistoryLost: when the store has forgotten what came right after it.
            Unavailable: when the store can't be reached.
        """
        ...

    async def commit(self, change: Change, term: Term | None = None) -> int:
        """Write a change and return its revision.

        Raises:
            Conflict: when an object has changed since it was read, or `term` is over.
            Invalid: when the change is too large for one transaction.
            Unavailable: when the store can't be reached, or the outcome is unknown.
        """
        ...

    def fits(self, change: Change) -> bool:
        """Tell whether a change is small enough for one transaction; safe on any thread."""
        ...

    def lead(self, address: str) -> AbstractAsyncContextManager[Term]:
        """Wait until nobody else leads, then lead inside the block; say `address` to those who ask."""
        ...

    def keep_alive(self, node: NodeName) -> AbstractAsyncContextManager[asyncio.Event]:
        """Say inside the block that a node's runner is there; the event is set once that can't be said.

        Ends by itself `liveness` after the death of this process.
        """
        ...

    async def close(self) -> None:
        """Give back what the store holds."""
        ...

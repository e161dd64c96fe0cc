"""A store in memory: for tests, and as the plainest statement of what a store does."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from libs.common.errors import Conflict
from libs.common.names import NodeName
from services.scheduler.domain.change import Change, describe, revision_of
from services.scheduler.domain.objects import Object, PastRequest
from services.scheduler.store import (
    Alive,
    AliveKey,
    Batch,
    Event,
    HistoryLost,
    Kept,
    Key,
    Leader,
    LeaderKey,
    RequestKey,
    Term,
    Unreadable,
)


class MemoryStore:
    """See `services.scheduler.store`; durable for as long as the process lives."""

    def __init__(self) -> None:
        self._values: dict[Key, Kept | Unreadable] = {}
        self._log: list[tuple[int, Event]] = []
        self._first = 1
        self._revision = 1
        self._term: int | None = None
        self._written = asyncio.Condition()
        self._leading = asyncio.Lock()

    async def load(self) -> Batch:
        """See `Store`."""
        return Batch([Event(key, value) for key, value in self._values.items()], self._revision)

    async def watch(self, after: int) -> AsyncGenerator[Batch, None]:
        """See `Store`."""
        while True:
            async with self._written:
                while self._revision <= after and after >= self._first - 1:
                    await self._written.wait()
                if after < self._first - 1:
                    raise HistoryLost
                events = [event for revision, event in self._log if revision > after]
                after = self._revision
            yield Batch(events, after)

    async def commit(self, change: Change, term: Term | None = None) -> int:
        """See `Store`."""
        if term is not None and self._term != term.number:
            raise Conflict("another scheduler leads now", reason="NOT_LEADER")
        for value in (*change.puts, *change.deletes, *change.checks):
            key = key_of(value)
            held = self._values.get(key)
            if isinstance(held, Unreadable):
                raise Conflict(f"{describe(value)}: what is stored can't be read", reason="STALE")
            now = 0 if held is None or isinstance(held, Alive | Leader) else revision_of(held)
            if now != revision_of(value):
                raise Conflict(f"{describe(value)}: was changed meanwhile; try again", reason="STALE")
        revision = self._revision + 1
        events = [Event(key_of(value), at_revision(value, revision)) for value in change.puts]
        events.extend(Event(key_of(value), None) for value in change.deletes)
        await self._write(events)
        return revision

    def fits(self, change: Change) -> bool:
        """See `Store`; memory takes everything."""
        return True

    @asynccontextmanager
    async def lead(self, address: str) -> AsyncIterator[Term]:
        """See `Store`."""
        async with self._leading:
            await self._write([Event(LeaderKey(), Leader(address))])
            self._term = self._revision
            term = Term(self._term, asyncio.Event())
            try:
                yield term
            finally:
                self._term = None
                term.lost.set()
                await self._write([Event(LeaderKey(), None)])

    @asynccontextmanager
    async def keep_alive(self, node: NodeName) -> AsyncIterator[asyncio.Event]:
        """See `Store`."""
        await self._write([Event(AliveKey(node), Alive(node))])
        try:
            yield asyncio.Event()
        finally:
            await self._write([Event(AliveKey(node), None)])

    async def compact(self) -> None:
        """Forget the history, as etcd does now and then."""
        async with self._written:
            self._log.clear()
            self._first = self._revision + 1
            self._written.notify_all()

    async def close(self) -> None:
        """See `Store`."""

    async def spoil(self, key: Key) -> None:
        """Make a key's value unreadable, as somebody might by hand."""
        await self._write([Event(key, Unreadable())])

    async def mend(self, value: Object) -> None:
        """Write a value whatever its key holds, as somebody might by hand."""
        await self._write([Event(key_of(value), at_revision(value, self._revision + 1))])

    async def _write(self, events: list[Event]) -> None:
        async with self._written:
            self._revision += 1
            for event in events:
                if event.value is None:
                    self._values.pop(event.key, None)
                else:
                    self._values[event.key] = event.value
                self._log.append((self._revision, event))
            self._written.notify_all()


def key_of(value: Object | PastRequest) -> Key:
    """Return what an object is called in the store."""
    if isinstance(value, PastRequest):
        return RequestKey(value.tenant, value.digest)
    return value.name


def at_revision(value: Object | PastRequest, revision: int) -> Object | PastRequest:
    """Return an object as it is once it was written at a revision."""
    if isinstance(value, PastRequest):
        return replace(value, revision=revision)
    return replace(value, meta=replace(value.meta, revision=revision))

"""Leadership: one of several processes acts, and what it writes is fenced.

The leader is whoever made the key. The key is bound to a lease, so that it goes away with its process; its
create_revision is the fencing token. A leader that was stopped for a while and believes to be one still can't
write: each of its transactions compares the token (`Term.compare`), and its successor's differs.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

from libs.common.backoff import backoff
from libs.common.errors import NotFound, Unavailable
from libs.common.etcd.client import EtcdClient
from libs.common.etcd.lease import Lease
from libs.common.etcd.types import Compacted, Compare, Get, Put

_log = logging.getLogger("isthmus.etcd")

_WAIT_CAP_S = 2.0


@dataclass(frozen=True, slots=True)
class Term:
    """The time during which this process is the leader.

    Attributes:
        key: the leader's key.
        create_revision: the fencing token; each term's is greater than those before.
        lost: set when the term is over, or may be: stop acting.
    """

    key: str
    create_revision: int
    lost: asyncio.Event

    @property
    def compare(self) -> Compare:
        """The condition to put into every transaction of this term."""
        return Compare.create_revision(self.key, self.create_revision)


class Leadership:
    """A candidate for one leader's key."""

    def __init__(self, client: EtcdClient, key: str, *, ttl_s: float, identity: str) -> None:
        """Make a candidate; nothing is written yet.

        Args:
            client: where.
            key: the leader's key, the same for all candidates.
            ttl_s: how long after a leader's death the next one can start; also how long a leader may be cut
                off from etcd before its term is over.
            identity: says who leads; the key's value.
        """
        self._client = client
        self._key = key
        self._ttl_s = ttl_s
        self._identity = identity

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Term]:
        """Wait to become the leader, be it while the block runs, and resign.

        It waits as long as it takes, also while etcd is away. The block isn't interrupted when the term is
        lost: watch `Term.lost`.
        """
        lease, created = await self._campaign()
        term = Term(self._key, created, lease.lost)
        _log.info("leading", extra={"key": self._key, "term": created, "identity": self._identity})
        guard = asyncio.create_task(self._guard(lease, created))
        try:
            yield term
        finally:
            guard.cancel()
            await asyncio.gather(guard, return_exceptions=True)
            await lease.close()

    async def _campaign(self) -> tuple[Lease, int]:
        attempt = 0
        while True:
            try:
                lease = await self._client.grant(self._ttl_s)
            except Unavailable as error:
                await self._pause(attempt, error)
                attempt += 1
                continue
            attempt = 0
            created = 0
            try:
                created = await self._acquire(lease)
                if created and not lease.lost.is_set():
                    return lease, created
            finally:
                if not created or lease.lost.is_set():
                    await lease.close()

    async def _acquire(self, lease: Lease) -> int:
        """Return the create_revision of the key, made with `lease`; 0 when that is lost before."""
        attempt = 0
        while not lease.lost.is_set():
            try:
                result = await self._client.txn(
                    [Compare.create_revision(self._key, 0)],
                    [Put(self._key, self._identity.encode(), lease.id)],
                    [Get(self._key)],
                )
            except NotFound:  # the lease
                return 0
            except Unavailable as error:
                # If it was done all the same, the next try finds the key there with our lease.
                await self._pause(attempt, error)
                attempt += 1
                continue
            attempt = 0
            if result.succeeded:
                return result.revision
            (kv,) = result.results[0]
            if kv.lease == lease.id:
                return kv.create_revision
            await self._wait_for_end(kv.create_revision, result.revision, lease)
        return 0

    async def _pause(self, attempt: int, error: Unavailable) -> None:
        _log.warning("can't campaign: %s", error.message, extra={"key": self._key})
        wait_s = backoff(attempt, randomness=self._client.randomness, cap_s=_WAIT_CAP_S)
        await self._client.clock.sleep(wait_s)

    async def _wait_for_end(self, created: int, revision: int, lease: Lease) -> None:
        """Wait until the key that was made at `created` is gone, or our own lease is."""
        ended = asyncio.create_task(self._until_gone(created, revision))
        lost = asyncio.create_task(lease.lost.wait())
        try:
            await asyncio.wait((ended, lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ended, lost):
                task.cancel()
            results = await asyncio.gather(ended, lost, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    async def _until_gone(self, created: int, revision: int) -> None:
        while True:
            with suppress(Compacted):
                async with aclosing(self._client.watch(self._key, revision + 1)) as batches:
                    async for batch in batches:
                        if any(
                            event.kv.key == self._key and event.kv.create_revision != created
                            for event in batch.events
                        ):
                            return
            # The history is gone: look at the key itself, the first of those that begin with its name.
            with suppress(Unavailable):
                found = await self._client.range(self._key, limit=1)
                if not any(kv.key == self._key and kv.create_revision == created for kv in found.items):
                    return
                revision = found.revision

    async def _guard(self, lease: Lease, created: int) -> None:
        """Take the term for lost when the key is gone: somebody deleted it, or its lease."""
        try:
            await self._until_gone(created, created)
        finally:
            lease.abandon()

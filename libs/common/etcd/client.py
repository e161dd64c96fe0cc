"""The client: keys, ranges, transactions; leases and watches begin here."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import grpc
from etcd_stubs import rpc_pb2

from libs.common.clock import Clock
from libs.common.errors import Exhausted, Invalid
from libs.common.etcd import wire
from libs.common.etcd.lease import Lease
from libs.common.etcd.members import NEED_LEADER, Member, Members, too_large_for_us
from libs.common.etcd.types import (
    Compacted,
    Compare,
    Delete,
    Get,
    KeyValue,
    Op,
    Put,
    Range,
    TxnResult,
    WatchBatch,
)
from libs.common.etcd.watch import watch
from libs.common.rand import Randomness

DEFAULT_TIMEOUT_S = 5.0
_PAGE = 500
_RANGE_TRIES = 5


class _TooLarge(Exhausted):
    """An answer is larger than what is taken: ask for less."""


class EtcdClient:
    """A client of an etcd cluster; safe to share among the tasks of one event loop.

    Every call ends within `timeout_s`. All of them raise Unavailable when no member answers in that time, and
    Invalid for keys that can't be: empty, longer than 4,096 bytes, no text. Reads see every write that was
    answered before they were asked.

    Attributes:
        clock: measures deadlines and leases.
        randomness: draws the jitter.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        clock: Clock,
        randomness: Randomness,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """Make a client; it connects at the first call.

        Args:
            endpoints: the members, each as host:port.
            clock: measures deadlines and leases.
            randomness: draws the jitter.
            timeout_s: the time that a call may take, all tries together.
            credentials: TLS, see `libs.common.client.client_credentials`; a client certificate's common name
                is the user where etcd has authentication on. None speaks in the clear, for the loopback.

        Raises:
            Invalid: for an endpoint that isn't host:port, or a timeout that isn't positive.
        """
        if not timeout_s > 0:
            raise Invalid(f"timeout_s: {timeout_s} is not positive", metadata={"field": "timeout_s"})
        self.clock = clock
        self.randomness = randomness
        self._members = Members(
            endpoints, clock=clock, randomness=randomness, timeout_s=timeout_s, credentials=credentials
        )

    async def get(self, key: str) -> KeyValue | None:
        """Return a key as it is now; None when there is none of that name."""
        request = rpc_pb2.RangeRequest(key=wire.key_bytes(key))
        response = await self._range(request)
        return wire.key_value(response.kvs[0]) if response.kvs else None

    async def range(self, prefix: str, *, limit: int = 0, start: str = "", revision: int = 0) -> Range:
        """Return the keys that begin with `prefix`, all as they stood at one revision.

        It is read in pages, so that any number of keys comes back whatever their size.

        Args:
            prefix: "" for all keys.
            limit: keys at most; 0 for no bound.
            start: leave out the keys before this one.
            revision: as of when; 0 for now.

        Raises:
            Compacted: when `revision` is gone.
            Invalid: for a negative limit or revision.
        """
        if limit < 0:
            raise Invalid(f"limit: {limit} is negative; 0 means no bound", metadata={"field": "limit"})
        wire.revision_number(revision, "revision")
        first, end = wire.prefix_range(prefix)
        first = max(first, wire.prefix_bytes(start, "start"))
        for _ in range(_RANGE_TRIES - 1 if revision == 0 else 0):
            try:
                return await self._pages(first, end, limit, 0)
            except Compacted:
                # Between two pages: the whole list is read again, as of a newer revision.
                continue
        return await self._pages(first, end, limit, revision)

    async def _pages(self, first: bytes, end: bytes, limit: int, revision: int) -> Range:
        items: list[KeyValue] = []
        page = _PAGE
        while True:
            asked = min(page, limit - len(items)) if limit else page
            if end != b"\0" and first >= end:
                # etcd takes an empty interval for a mistake. Only its revision is asked for.
                return Range(tuple(items), revision or await self._revision(first), more=False)
            request = rpc_pb2.RangeRequest(key=first, range_end=end, limit=asked, revision=revision)
            try:
                response = await self._range(request)
            except _TooLarge:
                if page == 1:
                    raise
                page = max(1, asked // 4)
                continue
            items.extend(wire.key_value(kv) for kv in response.kvs)
            revision = revision or response.header.revision
            if not response.more or (limit and len(items) >= limit):
                return Range(tuple(items), revision, response.more)
            first = response.kvs[-1].key + b"\0"

    async def revision(self) -> int:
        """Return the store's current revision."""
        return await self._revision(b"\0")

    async def _revision(self, key: bytes) -> int:
        # By a key that the caller asks for anyway: it may not be allowed to read others.
        response = await self._range(rpc_pb2.RangeRequest(key=key, count_only=True))
        return response.header.revision

    async def _range(self, request: rpc_pb2.RangeRequest) -> rpc_pb2.RangeResponse:
        async def call(member: Member, timeout_s: float) -> rpc_pb2.RangeResponse:
            try:
                return await member.kv.Range(request, timeout=timeout_s, metadata=NEED_LEADER)
            except grpc.aio.AioRpcError as error:
                if too_large_for_us(error):
                    raise _TooLarge(f"etcd: {error.details()}") from error
                raise

        return await self._members.repeat("read", call)

    async def txn(
        self, compare: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op] = ()
    ) -> TxnResult:
        """Do `success` if every compare holds, else `failure`, as one step that nobody sees half of.

        A transaction that writes is sent once: what it did can't be told from what others did.

        Raises:
            Invalid: for more than 128 entries in one of the lists, more than 1.5 MiB in all, or a key that
                is written twice; nothing was sent.
            NotFound: when a Put names a lease that isn't there (any more).
            Unavailable: reason OUTCOME_UNKNOWN when it was sent and not answered: read again, then decide.
                Any other reason: nothing was done.
        """
        request = wire.transaction(compare, success, failure)
        response = await self._txn(request, reads=all(isinstance(op, Get) for op in (*success, *failure)))
        results = tuple(wire.found(one) for one in response.responses)
        return TxnResult(response.succeeded, response.header.revision, results)

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        """Write a key and return the revision; otherwise as a transaction of that Put alone."""
        return (await self.txn((), (Put(key, value, lease),))).revision

    async def delete(self, key: str, *, prefix: bool = False) -> int:
        """Delete a key, or all that begin with it, and return how many; otherwise as a transaction."""
        request = wire.transaction((), (Delete(key, prefix),), ())
        response = await self._txn(request, reads=False)
        return response.responses[0].response_delete_range.deleted

    async def _txn(self, request: rpc_pb2.TxnRequest, *, reads: bool) -> rpc_pb2.TxnResponse:
        async def call(member: Member, timeout_s: float) -> rpc_pb2.TxnResponse:
            return await member.kv.Txn(request, timeout=timeout_s, metadata=NEED_LEADER)

        if reads:
            return await self._members.repeat("read", call)
        return await self._members.once("write", call)

    @asynccontextmanager
    async def lease(self, ttl_s: float) -> AsyncIterator[Lease]:
        """Hold a lease of `ttl_s` seconds, rounded up, kept alive until the block ends; then it is revoked.

        Keys that were put with it are deleted when it is revoked or runs out. etcd makes short ones longer:
        at its usual settings, none is under two seconds.
        """
        lease = await self.grant(ttl_s)
        try:
            yield lease
        finally:
            await lease.close()

    async def grant(self, ttl_s: float) -> Lease:
        """Return a lease as `lease` does; the caller closes it."""
        return await Lease.grant(self._members, ttl_s)

    def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Yield every change of the keys that begin with `prefix`, from `start_revision` on, without end.

        Each comes once, in order, in batches of whole revisions, however often the connection, the members or
        the whole cluster go away and come back. A batch without events tells that nothing happened up to its
        revision. Close it (`contextlib.aclosing`) when leaving it early.

        Args:
            prefix: "" for all keys.
            start_revision: at least 1; for what follows a list, its revision plus 1.

        Raises:
            Compacted: when changes that should have come are gone, or the store is another or an older one.
            Forbidden: when this client may not read there.
        """
        wire.revision_number(start_revision, "start_revision", least=1)
        first, end = wire.prefix_range(prefix)
        return watch(self._members, first, end, start_revision, lambda: self._revision(first))

    async def close(self) -> None:
        """Close the connections; close leases and watches first."""
        await self._members.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

"""Leases: keys that go away when whoever wrote them does."""

import asyncio
import math
from contextlib import suppress

from etcd_stubs import rpc_pb2

from libs.common.errors import Error, Invalid, NotFound
from libs.common.etcd.members import NEED_LEADER, Member, Members
from libs.common.etcd.wire import MAX_TTL_S

_RENEWALS_PER_TTL = 3
_REVOKE_S = 2.0


class Lease:
    """A lease that is kept alive until it is closed; made by `EtcdClient.lease`.

    Attributes:
        id: its id, for `Put.lease`.
        ttl_s: for how many seconds etcd keeps it after the last renewal.
        lost: set for good when it has run out, or may have: once `ttl_s` has passed on the monotonic clock
            since the last renewal that was answered was *sent*. etcd counts from later, so whoever stops when
            this is set stops before anybody else can have its keys.
    """

    def __init__(self, members: Members, lease_id: int, ttl_s: float, sent: float) -> None:
        self.id = lease_id
        self.ttl_s = ttl_s
        self.lost = asyncio.Event()
        self._members = members
        self._clock = members.clock
        self._ends = sent + ttl_s
        self._tasks = [asyncio.create_task(self._keep_alive()), asyncio.create_task(self._expire())]

    @classmethod
    async def grant(cls, members: Members, ttl_s: float) -> "Lease":
        """Return a new lease of at least `ttl_s` seconds.

        Raises:
            Invalid: when `ttl_s` isn't positive, or more than etcd takes.
            Unavailable: when no member answers.
        """
        if not 0 < ttl_s <= MAX_TTL_S:
            raise Invalid(
                f"ttl_s: {ttl_s} can't be a lease's length; use more than 0 and at most {MAX_TTL_S} seconds",
                metadata={"field": "ttl_s"},
            )
        request = rpc_pb2.LeaseGrantRequest(TTL=math.ceil(ttl_s))
        sent = 0.0

        # Done twice, one lease too many runs out by itself.
        async def call(member: Member, timeout_s: float) -> rpc_pb2.LeaseGrantResponse:
            nonlocal sent
            sent = members.clock.monotonic()
            return await member.lease.LeaseGrant(request, timeout=timeout_s, metadata=NEED_LEADER)

        granted = await members.repeat("grant a lease", call)
        return cls(members, granted.ID, float(granted.TTL), sent)

    async def close(self) -> None:
        """Stop keeping it alive and revoke it; where etcd can't be reached, it runs out by itself."""
        await self._stop()
        request = rpc_pb2.LeaseRevokeRequest(ID=self.id)

        async def call(member: Member, timeout_s: float) -> rpc_pb2.LeaseRevokeResponse:
            return await member.lease.LeaseRevoke(request, timeout=timeout_s, metadata=NEED_LEADER)

        with suppress(Error):
            await self._members.repeat(
                "revoke a lease", call, timeout_s=min(_REVOKE_S, self._members.timeout_s)
            )

    def abandon(self) -> None:
        """Take it for lost: what it was held for is gone."""
        self.lost.set()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.lost.set()

    async def _expire(self) -> None:
        # By itself, so that a renewal that hangs can't keep it from being told.
        while (left_s := self._ends - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s)
        self.lost.set()

    async def _keep_alive(self) -> None:
        period_s = self.ttl_s / _RENEWALS_PER_TTL
        while not self.lost.is_set():
            await self._clock.sleep(period_s)
            try:
                await self._renew(period_s)
            except NotFound:
                self.lost.set()
            except Error:
                # Until it is lost, there is a next time.
                continue

    async def _renew(self, attempt_s: float) -> None:
        request = rpc_pb2.LeaseKeepAliveRequest(ID=self.id)
        sent = 0.0

        async def call(member: Member, timeout_s: float) -> int:
            nonlocal sent
            sent = self._clock.monotonic()
            stream = member.lease.LeaseKeepAlive(timeout=timeout_s, metadata=NEED_LEADER)
            try:
                await stream.write(request)
                response = await stream.read()
                return response.TTL if isinstance(response, rpc_pb2.LeaseKeepAliveResponse) else -1
            finally:
                stream.cancel()

        ttl_s = await self._members.repeat("keep a lease alive", call, attempt_s=attempt_s)
        if ttl_s == 0:
            raise NotFound("the lease has run out", reason="LEASE_LOST")
        if ttl_s > 0:
            self._ends = max(self._ends, sent + ttl_s)

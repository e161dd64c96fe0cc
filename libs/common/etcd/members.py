"""The members of an etcd cluster: who is called, for how long, and what is tried again.

Every call has a deadline, within which the members are tried in turn. What may be repeated is; a write is
sent to one member, and only sent again when it surely reached none.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import grpc
from etcd_stubs import rpc_pb2_grpc

from libs.common.backoff import backoff
from libs.common.client import Channel, create_channel
from libs.common.clock import Clock
from libs.common.errors import Error, Exhausted, Invalid, Unavailable
from libs.common.etcd.types import OUTCOME_UNKNOWN, Compacted
from libs.common.names import shown
from libs.common.rand import Randomness
from libs.common.status import error_from_rpc

T = TypeVar("T")

NEED_LEADER = (("hasleader", "true"),)
"""Makes a member that is cut off from the others refuse at once, and end its streams, instead of waiting."""
MAX_RECEIVE_BYTES = 32 * 1024 * 1024
"""Largest answer to take: fragments of a watch have up to 3 MiB, and pages of a range are made to fit."""
_BACKOFF_BASE_S = 0.05
_BACKOFF_CAP_S = 1.0
_OPTIONS = (
    # etcd cuts off clients that ping without a call in flight, or more often than each 5 seconds.
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.keepalive_time_ms", 6_000),
    # It is this one that ends the connection; the keepalive's own timeout counts only above it.
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_UNANSWERED = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.DATA_LOSS,
    }
)
# How the refusals begin that a member or our own side makes before a write is proposed.
_NEVER_DONE = (
    "failed to connect to all addresses",
    "etcdserver: no leader",
    "etcdserver: too many requests",
    "etcdserver: not capable",
    "etcdserver: rpc not supported for learner",
)


@dataclass(frozen=True, slots=True)
class Member:
    """One member and its stubs (whose classes for asyncio exist for type checkers only)."""

    endpoint: str
    channel: Channel
    kv: "rpc_pb2_grpc.KVAsyncStub"
    watch: "rpc_pb2_grpc.WatchAsyncStub"
    lease: "rpc_pb2_grpc.LeaseAsyncStub"


# Makes one call to a member: (whom, its timeout in seconds) → the answer.
Call = Callable[[Member, float], Awaitable[T]]


class Members:
    """The members, one of which is preferred until it fails.

    Attributes:
        timeout_s: the time that a call may take, all tries together.
        clock: measures it, and paces the tries.
        randomness: draws the jitter, and the first member.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        clock: Clock,
        randomness: Randomness,
        timeout_s: float,
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        if isinstance(endpoints, str) or not endpoints:
            raise Invalid("endpoints: name at least one member, as host:port", reason="BAD_ENDPOINT")
        for endpoint in endpoints:
            _check_endpoint(endpoint)
        self.timeout_s = timeout_s
        self.clock = clock
        self.randomness = randomness
        self._members = tuple(_member(endpoint, credentials) for endpoint in endpoints)
        self._preferred = int(randomness.uniform(0, len(self._members))) % len(self._members)

    @property
    def preferred(self) -> Member:
        """Whom to call next."""
        return self._members[self._preferred]

    def failed(self, member: Member) -> None:
        """Prefer the next member, if `member` is still the preferred one."""
        if member is self.preferred:
            self._preferred = (self._preferred + 1) % len(self._members)

    def wait_s(self, attempt: int) -> float:
        """Return how long to wait before try `attempt` (0 is the first repetition)."""
        # The other members are tried at once, or nearly; only then does it pay to wait.
        rounds = attempt // len(self._members)
        return backoff(rounds, randomness=self.randomness, base_s=_BACKOFF_BASE_S, cap_s=_BACKOFF_CAP_S)

    async def repeat(
        self, what: str, call: Call[T], *, timeout_s: float | None = None, attempt_s: float | None = None
    ) -> T:
        """Return the answer of a call that may be repeated, tried until the deadline.

        Args:
            what: what it does, for the message.
            call: makes it.
            timeout_s: the time for all tries; the client's unless given.
            attempt_s: the time for one try; a fair share of it unless given.

        Raises:
            Unavailable: when no member answered in time (reason ETCD_UNAVAILABLE).
            Error: what a member answered.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        # A member may hang with its connection open: its share must leave time for the others.
        share_s = timeout_s / len(self._members) if attempt_s is None else attempt_s
        return await self._try(what, call, timeout_s, share_s, lambda error: True)

    async def once(self, what: str, call: Call[T]) -> T:
        """Return the answer of a call that mustn't be done twice: it is repeated only when it wasn't done.

        Raises:
            Unavailable: when it was sent and not answered (reason OUTCOME_UNKNOWN), or when no member could
                be reached in time (reason ETCD_UNAVAILABLE): then nothing was done.
            Error: what a member answered.
        """
        return await self._try(what, call, self.timeout_s, self.timeout_s, never_done)

    async def _try(
        self,
        what: str,
        call: Call[T],
        timeout_s: float,
        share_s: float,
        again: Callable[[grpc.aio.AioRpcError], bool],
    ) -> T:
        deadline = self.clock.monotonic() + timeout_s
        attempt = 0
        while True:
            member = self.preferred
            left_s = deadline - self.clock.monotonic()
            try:
                return await call(member, max(0.001, min(left_s, share_s)))
            except grpc.aio.AioRpcError as error:
                if not unanswered(error):
                    raise translated(error) from error
                self.failed(member)
                if not again(error):
                    raise Unavailable(
                        f"etcd: {member.endpoint} was asked to {what} and didn't answer "
                        f"({error.details()}); it may have been done: read again",
                        reason=OUTCOME_UNKNOWN,
                    ) from error
                wait_s = self.wait_s(attempt)
                if self.clock.monotonic() + wait_s >= deadline:
                    self._give_up(what, timeout_s, member, error)
            attempt += 1
            await self.clock.sleep(wait_s)

    def _give_up(self, what: str, timeout_s: float, member: Member, error: grpc.aio.AioRpcError) -> NoReturn:
        endpoints = ", ".join(one.endpoint for one in self._members)
        raise Unavailable(
            f"etcd: no member could {what} within {timeout_s:g} s (asked {endpoints}); "
            f"{member.endpoint} last: {error.details() or error.code().name}",
            reason="ETCD_UNAVAILABLE",
        ) from error

    async def close(self) -> None:
        """Close the connections."""
        for member in self._members:
            await member.channel.close()


def _check_endpoint(endpoint: str) -> None:
    host, _, port = endpoint.rpartition(":")
    if not host or "/" in endpoint or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise Invalid(
            f"endpoints: {shown(endpoint)} is not of the form host:port (no scheme, no path)",
            reason="BAD_ENDPOINT",
            metadata={"field": "endpoints"},
        )


def _member(endpoint: str, credentials: grpc.ChannelCredentials | None) -> Member:
    channel = create_channel(
        endpoint, credentials=credentials, max_message_bytes=MAX_RECEIVE_BYTES, options=_OPTIONS
    )
    return Member(
        endpoint,
        channel,
        rpc_pb2_grpc.KVStub(channel),
        rpc_pb2_grpc.WatchStub(channel),
        rpc_pb2_grpc.LeaseStub(channel),
    )


def never_done(error: grpc.aio.AioRpcError) -> bool:
    """Return whether the call that failed surely changed nothing."""
    return (error.details() or "").startswith(_NEVER_DONE)


def unanswered(error: grpc.aio.AioRpcError) -> bool:
    """Return whether the failure tells of the member or the way to it, and not of the call itself."""
    return error.code() in _UNANSWERED or never_done(error) or too_large_for_us(error)


def too_large_for_us(error: grpc.aio.AioRpcError) -> bool:
    """Return whether the answer was refused by our own side for its size."""
    details = error.details() or ""
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "eceived message larger" in details


def translated(error: grpc.aio.AioRpcError) -> Error:
    """Return the error that a member's answer stands for."""
    details = error.details() or ""
    if error.code() is grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        return Compacted()
    if "database space exceeded" in details:
        return Exhausted(
            f"{details}; compact, defragment and clear the alarm, or raise the quota", reason="ETCD_FULL"
        )
    return error_from_rpc(error)

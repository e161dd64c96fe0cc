"""The services behind the door: one channel each, and what its calls are made of."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.common.clock import Clock
from libs.common.errors import Unavailable
from libs.common.status import error_from_rpc, is_made_up
from services.gateway.domain.routes import Method

_log = logging.getLogger(__name__)
_HEALTH_TIMEOUT_S = 1.0
_HEALTH_CACHE_S = 1.0
_RETRY_AFTER_S = 1.0
_MISTRUST_RETRY_AFTER_S = 5.0
# By these a service says that it doesn't believe this gateway, which is no fault of who called.
_MISTRUST = frozenset({"BAD_IDENTITY", "IDENTITY_EXPIRED"})
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    asked_at: float


class Upstream:
    """A service behind the door. `name` is the audience of the tokens it gets."""

    def __init__(
        self,
        name: str,
        target: str,
        channel: grpc.aio.Channel,
        clock: Clock,
        count_unreachable: Callable[[str], None],
    ) -> None:
        self.name = name
        self.target = target
        self.channel = channel
        self._clock = clock
        self._count_unreachable = count_unreachable
        self._health: _Answer | None = None
        self._asking: asyncio.Task[_Answer] | None = None

    def callable(self, method: Method) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
        """Return what starts calls of a method, on bytes, in the method's own shape."""
        shape = ("stream" if method.client_streaming else "unary") + (
            "_stream" if method.server_streaming else "_unary"
        )
        make: Callable[[str], grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = getattr(self.channel, shape)
        return make(method.path)

    def unreachable(self, error: grpc.aio.AioRpcError) -> Unavailable | None:
        """Return what to tell a caller whose call didn't get through to the service; None when it did."""
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            return self._mistrusts(error)
        if error.code() not in _AWAY or not is_made_up(error):
            return None
        self._count_unreachable(self.name)
        return Unavailable(
            f"the service {self.name!r} can't be reached; it may be restarting: try again",
            reason="UPSTREAM_UNREACHABLE",
            metadata={"service": self.name},
            retry_after_s=_RETRY_AFTER_S,
        )

    def _mistrusts(self, error: grpc.aio.AioRpcError) -> Unavailable | None:
        refusal = error_from_rpc(error)
        if refusal.reason not in _MISTRUST:
            return None
        self._count_unreachable(self.name)
        _log.error(
            "the service %r doesn't believe this gateway: %s",
            self.name,
            refusal.message,
            extra={"reason": refusal.reason},
        )
        return Unavailable(
            f"the service {self.name!r} doesn't believe this gateway; its operator must see to gateway.pub "
            "in the service's trust folder and to both machines' clocks",
            reason="UPSTREAM_MISTRUST",
            metadata={"service": self.name, "cause": refusal.reason},
            retry_after_s=_MISTRUST_RETRY_AFTER_S,
        )

    async def health(self) -> int:
        """Ask the service how it is; answers are kept for a second, and asked for once at a time."""
        answer = self._health
        if answer is not None and self._clock.monotonic() - answer.asked_at < _HEALTH_CACHE_S:
            return answer.status
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(self._keep)
        return (await asyncio.shield(self._asking)).status

    async def _ask(self) -> _Answer:
        asked_at = self._clock.monotonic()
        stub = health_pb2_grpc.HealthStub(self.channel)
        try:
            response = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_HEALTH_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return _Answer(health_pb2.HealthCheckResponse.NOT_SERVING, asked_at)
        return _Answer(response.status, asked_at)

    def _keep(self, done: asyncio.Task[_Answer]) -> None:
        self._asking = None
        if not done.cancelled() and done.exception() is None:
            self._health = done.result()

    async def close(self) -> None:
        """Close the channel; calls in flight are cancelled."""
        if self._asking is not None:
            self._asking.cancel()
        await self.channel.close()


Upstreams = Mapping[str, Upstream]

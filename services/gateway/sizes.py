"""How large messages may be on their way through, and how much of them may be in hand at once.

gRPC has one limit for a whole server, and it reads a unary request before anybody can say who sent it. So the
server takes what serving takes, tensors included, and the rest is refused here once it is read.
"""

from collections.abc import AsyncIterator, Awaitable
from typing import Any

from libs.common.errors import Exhausted, Invalid
from libs.common.shares import Shares
from services.gateway.domain.routes import Method
from services.gateway.proxy import Behaviour, Context
from services.gateway.visit import current_visit

SERVING = "serving"
"""The upstream whose messages hold tensors."""
# Requests that are smaller aren't worth counting: the bound on calls is theirs.
_LIGHT_BYTES = 64 * 1024


class Sizes:
    """Bounds the requests that are passed on, and the messages of streams. Belongs to one event loop."""

    def __init__(self, max_message_bytes: int, max_held_bytes: int) -> None:
        """`max_message_bytes`: of a request to anybody but serving; `max_held_bytes`: of all in hand."""
        self._max_message_bytes = max_message_bytes
        self._shares = Shares(max_held_bytes)

    @property
    def held_bytes(self) -> int:
        """Bytes of the larger requests in hand."""
        return self._shares.held

    def bound(self, method: Method, behaviour: Behaviour) -> Behaviour:
        """Return `behaviour` within the bounds; a stream has one message in hand at a time."""

        def bounded(request: bytes, context: Context) -> Awaitable[Any]:
            if len(request) <= _LIGHT_BYTES:
                return behaviour(request, context)
            return self._unary(method, behaviour, request, context)

        def bounded_stream(requests: AsyncIterator[bytes], context: Context) -> Awaitable[Any]:
            return self._stream(method, behaviour, requests, context)

        return bounded_stream if method.client_streaming else bounded

    async def _unary(self, method: Method, behaviour: Behaviour, request: bytes, context: Context) -> Any:
        tenant, size = current_visit().caller.identity.tenant, len(request)
        self._take(method, tenant, size)
        try:
            return await behaviour(request, context)
        finally:
            self._shares.give_back(tenant, size)

    async def _stream(
        self, method: Method, behaviour: Behaviour, requests: AsyncIterator[bytes], context: Context
    ) -> Any:
        tenant, held = current_visit().caller.identity.tenant, 0

        def let_go() -> None:
            nonlocal held
            if held:
                self._shares.give_back(tenant, held)
                held = 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal held
            async for request in requests:
                if len(request) > _LIGHT_BYTES:
                    self._take(method, tenant, len(request))
                    held = len(request)
                yield request
                let_go()  # it is on its way when the next one is asked for

        try:
            return await behaviour(counted(), context)
        finally:
            let_go()

    def _take(self, method: Method, tenant: str, size: int) -> None:
        if method.upstream != SERVING and size > self._max_message_bytes:
            raise Invalid(
                f"{method.path}: the request has {size} bytes, and {self._max_message_bytes} are allowed; "
                "bigger things travel in chunks, as blobs",
                reason="MESSAGE_TOO_LARGE",
            )
        if not self._shares.take(tenant, size):
            raise Exhausted(
                f"your tenant's requests in hand have {self._shares.held_by(tenant)} bytes; {size} more are "
                "too many beside those of others: try again in a moment",
                reason="TOO_MANY_BYTES",
                retry_after_s=0.5,
            )

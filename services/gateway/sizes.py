"""How large messages may be on their way through, and how much of them may be in hand at once.

gRPC has one limit for a whole server, and it reads a unary request before anybody can say who sent it. So the
server takes what serving takes, tensors included, and the rest is refused here once it is read.
"""

from collections.abc import Awaitable
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
    """Bounds the unary requests that are passed on. Belongs to one event loop."""

    def __init__(self, max_message_bytes: int, max_held_bytes: int) -> None:
        """`max_message_bytes`: of a request to anybody but serving; `max_held_bytes`: of all in hand."""
        self._max_message_bytes = max_message_bytes
        self._shares = Shares(max_held_bytes)

    @property
    def held_bytes(self) -> int:
        """Bytes of the larger requests in hand."""
        return self._shares.held

    def bound(self, method: Method, behaviour: Behaviour) -> Behaviour:
        """Return `behaviour` within the bounds; streams pass message by message and stay as they are."""
        if method.client_streaming:
            return behaviour
        tensors = method.upstream == SERVING

        def bounded(request: bytes, context: Context) -> Awaitable[Any]:
            size = len(request)
            if size <= _LIGHT_BYTES:
                return behaviour(request, context)
            if not tensors and size > self._max_message_bytes:
                raise Invalid(
                    f"{method.path}: the request has {size} bytes, and {self._max_message_bytes} are "
                    "allowed; bigger things travel in chunks, as blobs",
                    reason="MESSAGE_TOO_LARGE",
                )
            return self._held(size, behaviour, request, context)

        return bounded

    async def _held(self, size: int, behaviour: Behaviour, request: bytes, context: Context) -> Any:
        tenant = current_visit().caller.identity.tenant
        if not self._shares.take(tenant, size):
            raise Exhausted(
                f"your tenant's requests in hand have {self._shares.held_by(tenant)} bytes; {size} more are "
                "too many beside those of others: try again in a moment",
                reason="TOO_MANY_BYTES",
                retry_after_s=0.5,
            )
        try:
            return await behaviour(request, context)
        finally:
            self._shares.give_back(tenant, size)

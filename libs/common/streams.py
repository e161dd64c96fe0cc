"""Writing to a stream whose other end may end it at any moment."""

from typing import Any

import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # a compiled module without types


async def send(call: Any, message: bytes) -> bool:
    """Write a message to an open client call; return False when the call has ended, and its status says why.

    `call.write` of grpc.aio won't do. When it meets a stream that the other end has just ended, it makes the
    call's status INTERNAL, "Internal error from Core", and the one that the other end gave is lost. So this
    hands the message to the layer below, which leaves the status alone.

    Args:
        call: a client call of grpc.aio with a stream of requests, none of them sent by an iterator.
        message: the request, serialised.

    Raises:
        asyncio.CancelledError: the writer was cancelled; then the call is too, as half a message may be sent.
    """
    if call.done():
        return False
    try:
        await call.wait_for_connection()
        await call._cython_call.send_serialized_message(message)
    except (grpc.aio.AioRpcError, cygrpc.InternalError):
        return False
    except BaseException:
        call.cancel()
        raise
    return True

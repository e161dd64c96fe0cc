"""The least that grpc.aio can do as a proxy: unary calls as bytes, one header passed on, nothing else.

`python -m benchmarks.bare_proxy <host:port>` prints where it listens, and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import grpc.aio

from libs.common.identity import IDENTITY_HEADER


class _PassOn(grpc.GenericRpcHandler):
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        call: Any = self._channel.unary_unary(handler_call_details.method)

        async def forward(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            metadata = tuple(
                entry for entry in context.invocation_metadata() or () if entry[0] == IDENTITY_HEADER
            )
            response: bytes = await call(request, timeout=context.time_remaining(), metadata=metadata)
            return response

        return grpc.unary_unary_rpc_method_handler(forward)


async def main(target: str) -> None:
    """Pass calls on to `target` for ever."""
    async with grpc.aio.insecure_channel(target) as channel:
        server = grpc.aio.server(handlers=(_PassOn(channel),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(f"127.0.0.1:{port}", flush=True)
        await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

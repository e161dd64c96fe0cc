"""A service of all four arities for tests of servers, channels and proxies; no product serves it.

Its messages are `google.protobuf.StringValue`. What a method does with a text is injected, so that a test
writes the failure it is about and nothing else.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import StringValue

SERVICE = "isthmus.testing.v1.EchoService"
ECHO = f"/{SERVICE}/Echo"
COUNT = f"/{SERVICE}/Count"
JOIN = f"/{SERVICE}/Join"
CHAT = f"/{SERVICE}/Chat"

Act = Callable[[str], Awaitable[str]]


async def same(text: str) -> str:
    """Return the text as it is."""
    return text


class EchoService:
    """Echo: text → text. Count: text → itself for ever. Join: texts → one. Chat: texts → texts."""

    def __init__(self, act: Act = same) -> None:
        self._act = act

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        coding: Any = {
            "request_deserializer": StringValue.FromString,
            "response_serializer": StringValue.SerializeToString,
        }
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Echo": grpc.unary_unary_rpc_method_handler(self._echo, **coding),
            "Count": grpc.unary_stream_rpc_method_handler(self._count, **coding),
            "Join": grpc.stream_unary_rpc_method_handler(self._join, **coding),
            "Chat": grpc.stream_stream_rpc_method_handler(self._chat, **coding),
        }
        server.add_registered_method_handlers(SERVICE, handlers)

    async def _echo(self, request: StringValue, context: Any) -> StringValue:
        return StringValue(value=await self._act(request.value))

    async def _count(self, request: StringValue, context: Any) -> AsyncIterator[StringValue]:
        while True:
            yield StringValue(value=await self._act(request.value))

    async def _join(self, requests: AsyncIterator[StringValue], context: Any) -> StringValue:
        return StringValue(value=",".join([await self._act(request.value) async for request in requests]))

    async def _chat(self, requests: AsyncIterator[StringValue], context: Any) -> AsyncIterator[StringValue]:
        async for request in requests:
            yield StringValue(value=await self._act(request.value))


class EchoStub:
    """The client's side of `EchoService`, as generated stubs are."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        coding: Any = {
            "request_serializer": StringValue.SerializeToString,
            "response_deserializer": StringValue.FromString,
        }
        self.echo: Any = channel.unary_unary(ECHO, **coding)
        self.count: Any = channel.unary_stream(COUNT, **coding)
        self.join: Any = channel.stream_unary(JOIN, **coding)
        self.chat: Any = channel.stream_stream(CHAT, **coding)

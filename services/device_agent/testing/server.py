"""The gRPC server under the fake cloud; it keeps every message that comes in, as bytes."""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from services.device_agent.testing.answering import Answering, Answers

Unary = Callable[[Any, str], Awaitable[Any]]
Stream = Callable[[Any, Any], AsyncIterator[Any]]


class RecordingServer:
    """Serves one cloud on the loopback.

    Args:
        cloud: whose methods they are.
        wire: where messages are kept, by method.
    """

    def __init__(self, cloud: Answers, wire: dict[str, list[bytes]]) -> None:
        self._cloud = cloud
        self._wire = wire
        self._handlers: dict[str, dict[str, Any]] = defaultdict(dict)
        # A stopped server's port must not be shared with whoever comes next.
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])

    def unary(self, service: str, name: str, handler: Unary, kind: Any) -> None:
        """Add a method of one message each way; `handler` gets the request and the device that calls."""

        async def call(request: Any, context: Any) -> Any:
            async with Answering(self._cloud, name, context) as device:
                return await handler(request, device)

        self._handlers[service][name] = grpc.unary_unary_rpc_method_handler(
            call, self._recorder(name, kind), _serialise
        )

    def answers(self, service: str, name: str, handler: Stream, kind: Any) -> None:
        """Add a method that streams answers; `handler` gets request and context."""
        self._handlers[service][name] = grpc.unary_stream_rpc_method_handler(
            handler, self._recorder(name, kind), _serialise
        )

    def both_ways(self, service: str, name: str, handler: Stream, kind: Any) -> None:
        """Add a method that streams both ways; `handler` gets the requests and the context."""
        self._handlers[service][name] = grpc.stream_stream_rpc_method_handler(
            handler, self._recorder(name, kind), _serialise
        )

    async def start(self, port: int, credentials: grpc.ServerCredentials | None) -> int:
        """Listen on a port, 0 for any; return which."""
        address = f"127.0.0.1:{port}"
        if credentials is None:
            port = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, credentials)
        self._server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(service, handlers)
                for service, handlers in self._handlers.items()
            )
        )
        await self._server.start()
        return port

    async def stop(self) -> None:
        """Stop listening and cut every connection."""
        await self._server.stop(None)

    def _recorder(self, name: str, kind: Any) -> Callable[[bytes], Any]:
        def read(data: bytes) -> Any:
            self._wire[name].append(data)
            return kind.FromString(data)

        return read


def _serialise(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data

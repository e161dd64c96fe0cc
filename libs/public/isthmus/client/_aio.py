"""A channel to the gateway for asyncio."""

import os
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from isthmus.client import _target


class _Filling:
    """Adds the key to every call, and a deadline where one is given."""

    def __init__(self, entry: tuple[str, str], timeout_s: float | None) -> None:
        self._entry = entry
        self._timeout_s = timeout_s

    async def _call(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        metadata = grpc.aio.Metadata(*(details.metadata or ()))
        metadata.add(*self._entry)
        filled = grpc.aio.ClientCallDetails(
            details.method,
            self._timeout_s if details.timeout is None else details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
        )
        return await continuation(filled, request)


class _UnaryUnary(_Filling, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return await self._call(continuation, details, request)


class _StreamUnary(_Filling, grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return await self._call(continuation, details, request)


class _UnaryStream(_Filling, grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return await self._call(continuation, details, request)


class _StreamStream(_Filling, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return await self._call(continuation, details, request)


def connect_async(
    address: str,
    api_key: str,
    *,
    ca_file: str | os.PathLike[str] | None = None,
    plaintext: bool = False,
    timeout_s: float = _target.DEADLINE_S,
) -> grpc.aio.Channel:
    """Return an asyncio channel to the gateway; arguments and errors are those of :func:`connect`."""
    entry = _target.authorization(api_key)
    secured = _target.credentials(address, ca_file, plaintext)
    interceptors: list[Any] = [
        _UnaryUnary(entry, timeout_s),
        _StreamUnary(entry, timeout_s),
        _UnaryStream(entry, None),
        _StreamStream(entry, None),
    ]
    if secured is None:
        return grpc.aio.insecure_channel(address, _target.OPTIONS, interceptors=interceptors)
    return grpc.aio.secure_channel(address, secured, _target.OPTIONS, interceptors=interceptors)

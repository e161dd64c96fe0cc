"""Passing calls on, as bytes: nothing is decoded or buffered, and whatever ends one side ends the other.

A behaviour passes the calls of one method on. All have the one shape of the server's layers: they take the
request, or the stream of requests, and the context; a stream of responses is written to the context.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from libs.common.errors import Error
from libs.common.streams import send
from libs.common.telemetry import inject
from services.gateway.domain.live import LiveStream, LiveStreams
from services.gateway.domain.routes import Method
from services.gateway.upstreams import Upstream
from services.gateway.visit import Passport, Stamp, Visit, current_visit

Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[[Any, Context], Awaitable[Any]]


class Proxy:
    """Makes behaviours that pass calls on."""

    def __init__(self, passport: Passport, stamp: Stamp, live: LiveStreams, max_unary_s: float) -> None:
        """`max_unary_s`: the deadline of a unary call that comes without one."""
        self._passport = passport
        self._stamp = stamp
        self._live = live
        self._max_unary_s = max_unary_s

    def behaviour(self, method: Method, upstream: Upstream) -> Behaviour:
        """Return what passes calls of `method` on to `upstream`."""
        if method.client_streaming or method.server_streaming:
            return self._streaming(method, upstream)
        return self._unary(method, upstream)

    def _metadata(self, visit: Visit, upstream: Upstream) -> tuple[tuple[str, str | bytes], ...]:
        return (*visit.forwarded, self._passport.header(visit.caller, upstream.name), *inject())

    def _unary(self, method: Method, upstream: Upstream) -> Behaviour:
        start = upstream.callable(method)

        async def forward(request: bytes, context: Context) -> bytes:
            visit = current_visit()
            left_s = context.time_remaining()
            call = start(
                request,
                timeout=self._max_unary_s if left_s is None else left_s,
                metadata=self._metadata(visit, upstream),
            )
            try:
                response: bytes = await call
            except grpc.aio.AioRpcError as error:
                await self._refuse(visit, context, error, upstream)
            first = await call.initial_metadata()
            if first:
                await context.send_initial_metadata(tuple(first))
            last = await call.trailing_metadata()
            context.set_trailing_metadata((*(last or ()), *self._stamp.trailers(visit)))
            return response

        return forward

    def _streaming(self, method: Method, upstream: Upstream) -> Behaviour:
        start: Callable[..., Any] = upstream.callable(method)

        async def forward(request: Any, context: Context) -> bytes | None:
            visit = current_visit()
            call = start(
                *(() if method.client_streaming else (request,)),
                timeout=context.time_remaining(),
                metadata=self._metadata(visit, upstream),
            )
            uploading: asyncio.Task[None] | None = None
            try:
                with self._live.open(visit.caller, lambda _: call.cancel()) as stream:
                    if method.client_streaming:
                        uploading = asyncio.create_task(_upload(request, call, stream))
                    try:
                        response = await _download(call, context, method.server_streaming)
                    except asyncio.CancelledError:
                        if stream.error is None:
                            raise
                        context.set_trailing_metadata(self._stamp.trailers(visit))
                        raise stream.error from None
            except grpc.aio.AioRpcError as error:
                await self._refuse(visit, context, error, upstream)
            finally:
                call.cancel()
                if uploading is not None:
                    uploading.cancel()
                    await asyncio.gather(uploading, return_exceptions=True)
            last = await call.trailing_metadata()
            context.set_trailing_metadata((*(last or ()), *self._stamp.trailers(visit)))
            return response

        return forward

    async def _refuse(
        self, visit: Visit, context: Context, error: grpc.aio.AioRpcError, upstream: Upstream
    ) -> NoReturn:
        """End the call with the upstream's status as it is; with one of ours where the upstream gave none."""
        ours = upstream.unreachable(error)
        if ours is not None:
            context.set_trailing_metadata(self._stamp.trailers(visit))
            raise ours
        last = tuple(error.trailing_metadata() or ())
        trailers = (*last, *self._stamp.trailers(visit))
        await context.abort(error.code(), error.details() or "", trailers)
        raise AssertionError  # abort raises


async def _upload(requests: AsyncIterator[bytes], call: Any, stream: LiveStream) -> None:
    """Write the caller's messages to the upstream, each once the one before is under way.

    A message that may not pass cuts the stream.
    """
    try:
        async for request in requests:
            if not await send(call, request):
                return  # the upstream has answered already; `_download` brings its status
        await call.done_writing()
    except Error as error:
        stream.cut(error)


async def _download(call: Any, context: Context, streaming: bool) -> bytes | None:
    """Write the upstream's messages to the caller; return the response where there is just one."""
    if not streaming:
        response: bytes = await call
        await _pass_initial_metadata(call, context)
        return response
    await _pass_initial_metadata(call, context)
    while (message := await call.read()) is not grpc.aio.EOF:
        await context.write(message)
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            code,
            grpc.aio.Metadata(),
            await call.trailing_metadata(),
            await call.details(),
        )
    return None


async def _pass_initial_metadata(call: Any, context: Context) -> None:
    """Pass the initial metadata on as soon as they come, even if empty: they say that somebody is there."""
    await context.send_initial_metadata(tuple(await call.initial_metadata() or ()))

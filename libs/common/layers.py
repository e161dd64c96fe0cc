"""What every served call passes on its way to the handler, as layers around it.

The outermost first:

    telemetry → errors → trailers → limits → identity → handler

All four arities of gRPC are brought to one shape first, `async (request or requests, context) → response`,
where a response stream writes to the context and returns None; so each layer is written once. Layers are
built once for a method and cost a few microseconds a call.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from libs.common.access import PUBLIC_METHODS, Access, check_access
from libs.common.errors import Error, Exhausted, Internal, Invalid, Unauthenticated, Unavailable
from libs.common.identity import Authenticator, Metadata, set_current_identity
from libs.common.status import DETAILS_TRAILER, code_of, details_of, error_from_rpc, message_of
from libs.common.telemetry import MethodName, Telemetry

Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[[Any, Context], Awaitable[Any]]
_log = logging.getLogger("isthmus.server")

INTERNAL_TEXT = "something went wrong inside this service; it has been logged, and trying again may help"


@dataclass(frozen=True, slots=True)
class Method:
    """What a layer may know of the method it is built for."""

    name: MethodName
    request_streaming: bool
    response_streaming: bool


class Layer(Protocol):
    """One layer: wraps what is inside of it, once for each method."""

    def wrap(self, method: Method, inner: Behaviour) -> Behaviour:
        """Return `inner` with this layer around it."""
        ...


# What gRPC would build anew, entry by entry, for each layer that asks.
_metadata: ContextVar[Metadata | None] = ContextVar("isthmus_metadata", default=None)


def set_metadata(metadata: Metadata) -> None:
    """Keep what the call of this task came with, for `metadata_of`; the interceptor does it for each call."""
    _metadata.set(metadata)


def metadata_of(context: Context) -> Metadata:
    """Return the metadata that the call of this task came with."""
    metadata = _metadata.get()
    return metadata if metadata is not None else context.invocation_metadata() or ()  # type: ignore[return-value]


class Undecodable:
    """Stands for a request whose bytes are no message, until somebody looks at it."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def tolerant(deserialise: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a deserialiser that gives Undecodable where gRPC itself would answer UNKNOWN."""

    def decode(data: bytes) -> Any:
        try:
            return deserialise(data)
        except Exception as error:
            return Undecodable(error)

    return decode


def _decoded(method: Method, request: Any) -> Any:
    if type(request) is Undecodable:
        raise Invalid(
            f"{method.name.full}: the request is not a message of the method's request type; "
            "check that both sides have the same version of the API",
            reason="UNDECODABLE_REQUEST",
        ) from request.error
    return request


class _Requests:
    """A request stream in which undecodable messages raise Invalid."""

    __slots__ = ("_messages", "_method", "_reader")

    def __init__(self, messages: AsyncIterable[Any], method: Method) -> None:
        self._messages = messages
        self._method = method
        self._reader: AsyncIterator[Any] | None = None

    def __aiter__(self) -> "_Requests":
        return self

    async def __anext__(self) -> Any:
        if self._reader is None:
            # Not before: a handler that refuses at once would leave gRPC's reader, a coroutine, unawaited.
            self._reader = aiter(self._messages)
        return _decoded(self._method, await self._reader.__anext__())


def to_one_shape(method: Method, handler: Callable[[Any, Any], Any]) -> Behaviour:
    """Return any kind of handler as a `Behaviour`."""

    async def behaviour(request: Any, context: Context) -> Any:
        if method.request_streaming:
            request = _Requests(request, method)
        elif type(request) is Undecodable:
            _decoded(method, request)
        outcome = handler(request, context)
        if inspect.isawaitable(outcome):
            outcome = await outcome
        if not method.response_streaming:
            return outcome
        if isinstance(outcome, AsyncIterator):
            if inspect.isasyncgen(outcome):
                async with aclosing(outcome):
                    async for response in outcome:
                        await context.write(response)
            else:
                async for response in outcome:
                    await context.write(response)
        return None

    return behaviour


class TelemetryLayer:
    """Counts, times and traces. What its caller gave up is CANCELLED, whatever the handler made of it."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def wrap(self, method: Method, inner: Behaviour) -> Behaviour:
        """Return `inner` counted, timed and traced."""
        telemetry, name = self._telemetry, method.name

        async def call(request: Any, context: Context) -> Any:
            started = time.perf_counter()
            span = telemetry.start_server_span(name, metadata_of(context))
            code: grpc.StatusCode | None = None
            try:
                response = await inner(request, context)
                task = asyncio.current_task()
                code = _ended(context) if task is not None and task.cancelling() else context.code()
                return response
            except asyncio.CancelledError:
                code = _ended(context)
                raise
            except BaseException:
                code = context.code() or grpc.StatusCode.UNKNOWN
                raise
            finally:
                code = code or grpc.StatusCode.OK
                telemetry.record(name, code, time.perf_counter() - started)
                if span is not None:
                    span.set_attribute("rpc.grpc.status_code", code.value[0])
                    span.end()

        return call


def _ended(context: Context) -> grpc.StatusCode:
    # gRPC cancels the handler both when the caller gives up and when the caller's deadline passes.
    remaining = context.time_remaining()
    if remaining is not None and remaining <= 0:
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return grpc.StatusCode.CANCELLED


Trailers = Callable[[], tuple[tuple[str, str], ...]]


class Ended(Exception):
    """Ends a call with a status that stands for none of our errors."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class TrailersLayer:
    """Sends trailing metadata with every answer whose handler sets none, errors included.

    They are made once, at the call's end. What calls `context.abort` itself has to bring its own.
    """

    def __init__(self, trailers: Trailers) -> None:
        self._trailers = trailers

    def wrap(self, method: Method, inner: Behaviour) -> Behaviour:
        """Return `inner` whose answers carry the trailers."""
        trailers = self._trailers

        async def call(request: Any, context: Context) -> Any:
            try:
                return await inner(request, context)
            finally:
                if not context.trailing_metadata():
                    context.set_trailing_metadata(trailers())

        return call


class ErrorsLayer:
    """Turns what is raised into a status: our errors by the table, the rest into a fixed text and a log."""

    def __init__(self, domain: str) -> None:
        self._domain = domain

    def wrap(self, method: Method, inner: Behaviour) -> Behaviour:
        """Return `inner` whose errors reach the caller as statuses."""

        async def call(request: Any, context: Context) -> Any:
            try:
                return await inner(request, context)
            except Error as raised:
                error: Error = raised
            except (grpc.aio.AbortError, asyncio.CancelledError):
                raise
            except Ended as ended:
                return await context.abort(ended.code, ended.text, tuple(context.trailing_metadata() or ()))
            except grpc.aio.AioRpcError as raised:
                error = _from_upstream(method, raised)
            except Exception as raised:
                if _is_gone(raised):
                    raise asyncio.CancelledError from raised
                _log.exception("%s failed", method.name.full)
                error = Internal(INTERNAL_TEXT)
            # Under overload a line for each refusal would be a load of its own; the metrics count them.
            level = logging.DEBUG if isinstance(error, Exhausted) else logging.INFO
            _log.log(level, "%s refused: %s", method.name.full, error.message, extra={"reason": error.reason})
            trailers = (
                *(context.trailing_metadata() or ()),
                (DETAILS_TRAILER, details_of(error, self._domain)),
            )
            await context.abort(code_of(error), message_of(error), trailers)

        return call


def _is_gone(error: Exception) -> bool:
    # What gRPC raises from `context.write` once the caller is gone.
    return type(error).__name__ in ("ExecuteBatchError", "UsageError") and type(error).__module__.startswith(
        "grpc."
    )


def _from_upstream(method: Method, raised: grpc.aio.AioRpcError) -> Error:
    # A call of ours failed and the handler let it pass. Only "come back later" means the same to our caller;
    # NOT_FOUND or PERMISSION_DENIED speak of what we asked, not of what the caller did.
    error = error_from_rpc(raised)
    if error.retriable:
        return Unavailable(
            f"a service that this one needs doesn't answer: {error.message}",
            reason="UPSTREAM_UNAVAILABLE",
            retry_after_s=error.retry_after_s,
        )
    _log.error("%s: a call to another service failed", method.name.full, exc_info=raised)
    return Internal(INTERNAL_TEXT)


class LimitsLayer:
    """Bounds: unary calls and response streams at once, the time of a call without a deadline, shutdown."""

    def __init__(self, max_unary_s: float, max_in_flight: int, max_streams: int) -> None:
        self._max_unary_s = max_unary_s
        self._max_in_flight = max_in_flight
        self._max_streams = max_streams
        self._in_flight = 0
        self._streams: set[asyncio.Task[Any]] = set()
        self._stopping = False

    @property
    def streams(self) -> int:
        """How many response streams are held."""
        return len(self._streams)

    def stop_streams(self) -> None:
        """End every response stream with UNAVAILABLE; those who hold one connect again, elsewhere."""
        self._stopping = True
        for task in self._streams:
            task.cancel()

    def wrap(self, method: Method, inner: Behaviour) -> Behaviour:
        """Return `inner` within the bounds."""
        return self._stream(inner) if method.response_streaming else self._unary(inner, method)

    def _stream(self, inner: Behaviour) -> Behaviour:
        async def call(request: Any, context: Context) -> Any:
            task = asyncio.current_task()
            if task is None or self._stopping:
                raise Unavailable("shutting down; connect again", reason="SHUTTING_DOWN", retry_after_s=1.0)
            if len(self._streams) >= self._max_streams:
                raise Exhausted(
                    f"{len(self._streams)} streams are held, this service's limit; try again in a moment",
                    reason="TOO_MANY_CALLS",
                    retry_after_s=2.0,
                )
            self._streams.add(task)
            try:
                return await inner(request, context)
            except asyncio.CancelledError:
                if not self._stopping or task.uncancel():
                    raise
                raise Unavailable(
                    "shutting down; connect again", reason="SHUTTING_DOWN", retry_after_s=1.0
                ) from None
            finally:
                self._streams.discard(task)

        return call

    def _unary(self, inner: Behaviour, method: Method) -> Behaviour:
        async def call(request: Any, context: Context) -> Any:
            if self._in_flight >= self._max_in_flight:
                raise Exhausted(
                    f"{self._in_flight} calls are running, this service's limit; try again in a moment",
                    reason="TOO_MANY_CALLS",
                    retry_after_s=0.5,
                )
            self._in_flight += 1
            try:
                if method.request_streaming or context.time_remaining() is not None:
                    return await inner(request, context)
                return await self._bounded(inner, request, context)
            finally:
                self._in_flight -= 1

        return call

    async def _bounded(self, inner: Behaviour, request: Any, context: Context) -> Any:
        timeout = asyncio.timeout(self._max_unary_s)
        try:
            async with timeout:
                return await inner(request, context)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise Ended(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"no answer within {self._max_unary_s:g} s, the longest for a call without a deadline",
            ) from None


class IdentityLayer:
    """Finds out who is calling, checks the method's rule, and makes the caller the current identity."""

    def __init__(self, authenticator: Authenticator, access: Mapping[str, Access]) -> None:
        self._authenticator = authenticator
        self._access = access

    def wrap(self, method: Method, inner: Behaviour) -> Behaviour:
        """Return `inner` for those who may."""
        authenticate, name = self._authenticator.authenticate, method.name.full
        access = self._access.get(name) or PUBLIC_METHODS.get(name)
        public = access is not None and access.public

        async def call(request: Any, context: Context) -> Any:
            try:
                identity = await authenticate(name, metadata_of(context))
            except Unauthenticated:
                # An expired credential is no reason to hide from its holder what everybody may see.
                if not public:
                    raise
                identity = None
            check_access(access, name, identity)
            set_current_identity(identity)
            return await inner(request, context)

        return call

"""The one server interceptor: finds a method's handler and puts the layers around it, once."""

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import grpc

from libs.common.layers import Behaviour, Context, Ended, Layer, Method, set_metadata, to_one_shape, tolerant
from libs.common.names import shown
from libs.common.suggest import did_you_mean
from libs.common.telemetry import UNKNOWN_METHOD, MethodName

# Handlers that serve whole packages may be asked for any name; forget them all beyond this many.
_CACHED_MAX = 4096


class LayeredInterceptor(grpc.aio.ServerInterceptor):
    """Wraps each handler in the layers, outermost first, and answers calls to unknown methods.

    Args:
        outer: the layers that calls to unknown methods pass as well: telemetry, errors and trailers.
        inner: the rest: limits and identity.
        known: gives the methods that there are, for "did you mean".

    Attributes:
        taken: how many calls gRPC has handed over so far.
    """

    def __init__(
        self, outer: Sequence[Layer], inner: Sequence[Layer], known: Callable[[], Iterable[str]]
    ) -> None:
        self._outer = outer
        self._layers = (*outer, *inner)
        self._hint = functools.lru_cache(256)(lambda name: did_you_mean(name, known()))
        self._wrapped: dict[str, tuple[Any, Any]] = {}
        self.taken = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler within its layers."""
        self.taken += 1
        set_metadata(handler_call_details.invocation_metadata or ())
        handler = await continuation(handler_call_details)
        name = handler_call_details.method
        if handler is None:
            return self._refuse(name)
        cached = self._wrapped.get(name)
        if cached is not None and cached[0] is handler:
            return cached[1]
        wrapped = self._wrap(MethodName.parse(name), handler)
        if len(self._wrapped) >= _CACHED_MAX:
            self._wrapped.clear()
        self._wrapped[name] = (handler, wrapped)
        return wrapped

    def _wrap(self, name: MethodName, handler: Any) -> Any:
        method = Method(name, bool(handler.request_streaming), bool(handler.response_streaming))
        inner = handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary
        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[(method.request_streaming, method.response_streaming)]
        deserialise = handler.request_deserializer
        return make(
            self._layered(method, to_one_shape(method, inner), self._layers),
            request_deserializer=tolerant(deserialise) if deserialise is not None else None,
            response_serializer=handler.response_serializer,
        )

    def _refuse(self, name: str) -> Any:
        async def behaviour(request: Any, context: Context) -> None:
            text = f"{shown(name)}: no such method here{self._hint(name)}"
            raise Ended(grpc.StatusCode.UNIMPLEMENTED, text)

        # A stream, so that gRPC doesn't wait for a request before asking us.
        method = Method(UNKNOWN_METHOD, request_streaming=True, response_streaming=True)
        return grpc.stream_stream_rpc_method_handler(self._layered(method, behaviour, self._outer))

    @staticmethod
    def _layered(method: Method, behaviour: Behaviour, layers: Sequence[Layer]) -> Any:
        for layer in reversed(layers):
            behaviour = layer.wrap(method, behaviour)
        return behaviour

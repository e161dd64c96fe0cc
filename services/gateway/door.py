"""The door: every method that can be called here and isn't the gateway's own, each with its behaviour."""

from collections.abc import Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from services.gateway.domain.routes import Method
from services.gateway.proxy import Behaviour, Proxy
from services.gateway.sizes import Sizes
from services.gateway.upstreams import Upstreams

# grpc's own class; it takes parameters in type stubs only.
Handler = Any

_MAKERS: dict[tuple[bool, bool], Callable[..., Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class _Handlers(grpc.GenericRpcHandler):
    """All routed methods in one table, so that finding one takes one look-up."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._find = handlers.get

    def service(self, details: grpc.HandlerCallDetails) -> Handler | None:
        """Return a method's handler, or None."""
        return self._find(details.method)


class Door:
    """Registers a handler without any codec for each routed method."""

    def __init__(self, methods: Iterable[Method], upstreams: Upstreams, proxy: Proxy, sizes: Sizes) -> None:
        self.methods = tuple(method for method in methods if method.upstream in upstreams)
        self._handlers = {
            method.path: _handler(
                method, sizes.bound(method, proxy.behaviour(method, upstreams[method.upstream]))
            )
            for method in self.methods
        }

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        services: dict[str, dict[str, Handler]] = {}
        for method in self.methods:
            services.setdefault(method.service, {})[method.name] = self._handlers[method.path]
        server.add_generic_rpc_handlers((_Handlers(self._handlers),))
        for service, handlers in services.items():
            # The server finds calls by the table above; this lists them, for reflection and suggestions.
            server.add_registered_method_handlers(service, handlers)


def _handler(method: Method, behaviour: Behaviour) -> Handler:
    return _MAKERS[(method.client_streaming, method.server_streaming)](behaviour)

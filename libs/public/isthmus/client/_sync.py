"""A blocking channel to the gateway."""

import collections
import os
from collections.abc import Callable
from typing import Any

import grpc

from isthmus.client import _target


class _CallDetails(
    collections.namedtuple(
        "_CallDetails", ("method", "timeout", "metadata", "credentials", "wait_for_ready")
    ),
    grpc.ClientCallDetails,
):
    """One call's settings, with the key and a deadline filled in."""

    __slots__ = ()


class _Interceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the key to every call, and a deadline to those that end with one answer."""

    def __init__(self, entry: tuple[str, str], timeout_s: float) -> None:
        self._entry = entry
        self._timeout_s = timeout_s

    def _filled(self, details: Any, timeout_s: float | None) -> _CallDetails:
        return _CallDetails(
            details.method,
            timeout_s if details.timeout is None else details.timeout,
            (*(details.metadata or ()), self._entry),
            details.credentials,
            details.wait_for_ready,
        )

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._filled(details, self._timeout_s), request)

    def intercept_stream_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._filled(details, self._timeout_s), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._filled(details, None), request)

    def intercept_stream_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._filled(details, None), request)


def connect(
    address: str,
    api_key: str,
    *,
    ca_file: str | os.PathLike[str] | None = None,
    plaintext: bool = False,
    timeout_s: float = _target.DEADLINE_S,
) -> grpc.Channel:
    """Return a channel to the gateway at ``address``, every call of which carries ``api_key``.

    Args:
        address: ``host:port`` of the gateway's gRPC port.
        api_key: the key itself, ``isk_…``; white space around it is ignored.
        ca_file: PEM file of the authority that signed the gateway's certificate; the system's where None.
        plaintext: no TLS, as the local stack serves it; on the loopback only.
        timeout_s: deadline, in seconds, of a call with one answer that is made without one. Streams of
            answers last until either end closes them, or as long as their own ``timeout`` says.

    Raises:
        ValueError: an argument can't be right; nothing has been sent.
        OSError: ``ca_file`` can't be read.
    """
    entry = _target.authorization(api_key)
    secured = _target.credentials(address, ca_file, plaintext)
    channel = (
        grpc.insecure_channel(address, _target.OPTIONS)
        if secured is None
        else grpc.secure_channel(address, secured, _target.OPTIONS)
    )
    return grpc.intercept_channel(channel, _Interceptor(entry, timeout_s))

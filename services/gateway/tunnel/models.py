"""Models that serving serves, asked by the Open Inference Protocol."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from opentelemetry import context as otel_context

from inference import open_inference_pb2_grpc
from libs.common.client import Channel, on_behalf_of
from libs.common.errors import Error, Internal, Unavailable
from libs.common.names import DeviceName
from libs.common.status import error_from_rpc, is_made_up
from libs.common.telemetry import Telemetry, extract
from services.gateway.tunnel import convert_requests as convert
from services.gateway.tunnel.domain.frame import Device
from services.gateway.tunnel.domain.requests import Prediction, Request

_log = logging.getLogger(__name__)

_LATE = "DEADLINE_EXCEEDED"
# By these serving says that it doesn't believe this tunnel, which is no fault of the device.
_MISTRUST = frozenset({"BAD_IDENTITY", "IDENTITY_EXPIRED", "NO_CREDENTIAL", "WRONG_CALLER"})
# The last is what grpc.aio makes of a connection that breaks in the middle of a message.
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL)
# W3C's own takes 55 characters.
_LONGEST_TRACEPARENT = 128


class ServingModels:
    """See `Models`. Nothing is tried again: whoever asks has something else to do by then."""

    def __init__(self, channel: Channel, telemetry: Telemetry) -> None:
        """`channel` adds this tunnel's identity to calls."""
        self._stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        self._telemetry = telemetry

    async def ask(self, device: Device, request: Request, timeout_s: float) -> Prediction:
        """See `Models`."""
        name = str(DeviceName(device.tenant, device.device))
        with (
            _trace_of(request),
            self._telemetry.span("isthmus.tunnel.v1.Request", {"isthmus.model": request.model}),
            on_behalf_of(name),
        ):
            try:
                response = await self._stub.ModelInfer(convert.to_infer_request(request), timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                raise _failure(error) from error
            return convert.from_infer_response(response)


@contextmanager
def _trace_of(request: Request) -> Iterator[None]:
    """Go on in the request's trace; in a new one where it has none."""
    fits = 0 < len(request.traceparent) <= _LONGEST_TRACEPARENT
    token = otel_context.attach(extract((("traceparent", request.traceparent),) if fits else ()))
    try:
        yield
    finally:
        otel_context.detach(token)


def _failure(failed: grpc.aio.AioRpcError) -> Error | TimeoutError:
    """Return what a failed call means to a device."""
    error = error_from_rpc(failed)
    if error.reason == _LATE:
        return TimeoutError()
    if error.reason in _MISTRUST:
        _log.error("serving doesn't believe this tunnel: %s", error.message, extra={"reason": error.reason})
        return Unavailable(
            "serving doesn't believe this tunnel; its operator must see to tunnel.pub in serving's trust "
            "folder and to both machines' clocks",
            reason="SERVING_MISTRUST",
        )
    if is_made_up(failed) and failed.code() in _AWAY:
        return Unavailable(
            "serving can't be reached; it may be restarting: ask again later",
            reason="SERVING_UNREACHABLE",
        )
    return Internal(error.message) if error.reason == "UNKNOWN" else error

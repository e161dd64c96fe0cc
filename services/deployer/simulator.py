"""The simulator as the deployer calls it."""

import grpc

from isthmus.device_agent.v1 import simulator_pb2, simulator_pb2_grpc
from libs.common.client import on_behalf_of
from libs.common.errors import Error, Exhausted, Internal, Invalid, Unavailable
from libs.common.names import TaskName
from libs.common.status import error_from_rpc, is_made_up
from services.deployer import convert, convert_tasks
from services.deployer.domain.model import BlobRef, Preflight

_RETRY_S = 2.0


class RemoteSimulator:
    """See `services.deployer.domain.preflight.Simulator`; ends its call when whoever asked gives up."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float) -> None:
        """Call over `channel`, which mints this service's identity; wait at most `timeout_s`."""
        self._stub = simulator_pb2_grpc.SimulatorServiceStub(channel)
        self._timeout_s = timeout_s

    async def simulate(self, task: TaskName, signed: bytes, events: BlobRef | None) -> Preflight:
        """See `Simulator`."""
        request = simulator_pb2.SimulateRequest(
            parent=str(task),
            manifest=convert.signed(signed).payload,
            events=None if events is None else convert.blob(events),
        )
        try:
            with on_behalf_of(str(task)):
                answer = await self._stub.Simulate(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as failed:
            raise _failure(failed) from failed
        return convert_tasks.preflight_value(answer.preflight)


def _failure(failed: grpc.aio.AioRpcError) -> Error:
    """Return what a failed call means to whoever publishes."""
    error = error_from_rpc(failed)
    if error.reason == "DEADLINE_EXCEEDED":
        return _unavailable("is too slow", error)
    if is_made_up(failed) or isinstance(error, Unavailable):
        return _unavailable("can't be reached", error)
    if isinstance(error, Invalid | Exhausted | Internal):
        return error
    # That it doesn't know us, or lacks a file that we have, isn't the caller's fault.
    return _unavailable("can't try it", error)


def _unavailable(what: str, error: Error) -> Unavailable:
    return Unavailable(
        f"the simulator, which tries every version before it is published, {what}: {error.message}; "
        "nothing was published, try again",
        reason="SIMULATOR_UNAVAILABLE",
        retry_after_s=error.retry_after_s or _RETRY_S,
    )

"""What a failed call to the simulator means to whoever publishes."""

from typing import Any

import grpc
import pytest

from libs.common.errors import Error, Exhausted, Forbidden, Internal, Invalid, NotFound, Unavailable
from libs.common.names import TaskName
from libs.common.status import DETAILS_TRAILER, code_of, details_of
from services.deployer.simulator import RemoteSimulator

TASK = TaskName("acme", "genres")


class Broken:
    """A channel on which every call fails."""

    def __init__(self, code: grpc.StatusCode, text: str, *trailers: tuple[str, bytes]) -> None:
        self._failure = grpc.aio.AioRpcError(
            code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details=text
        )

    def unary_unary(self, *_: object, **__: object) -> Any:
        async def call(request: object, timeout: float) -> None:  # noqa: ASYNC109 - grpc's own
            raise self._failure

        return call


def answered(error: Error) -> Broken:
    details = (DETAILS_TRAILER, details_of(error, "simulator.isthmus"))
    return Broken(code_of(error), error.message, details)


async def failure(channel: Any) -> Error:
    with pytest.raises(Error) as caught:
        await RemoteSimulator(channel, 5.0).simulate(TASK, b"", None)
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        Invalid("events: line 3", reason="BAD_EVENTS"),
        Exhausted("busy", reason="SIMULATOR_BUSY", retry_after_s=5.0),
        Internal("it broke", reason="SIMULATION_BROKEN"),
    ],
)
async def test_what_it_decided_reaches_the_publisher(error: Error) -> None:
    found = await failure(answered(error))
    assert (type(found), found.reason, found.message) == (type(error), error.reason, error.message)
    assert found.retry_after_s == error.retry_after_s


@pytest.mark.parametrize(
    ("channel", "says"),
    [
        (Broken(grpc.StatusCode.UNAVAILABLE, "Socket closed"), "can't be reached: Socket closed"),
        # What grpc.aio makes of a connection that breaks in the middle of a message.
        (Broken(grpc.StatusCode.INTERNAL, "Internal error from Core"), "can't be reached"),
        (Broken(grpc.StatusCode.CANCELLED, ""), "can't be reached"),
        (Broken(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"), "is too slow"),
        (answered(Unavailable("stopping", reason="SHUTTING_DOWN")), "can't be reached: stopping"),
        (answered(Forbidden("who are you")), "can't try it: who are you"),
        (answered(NotFound("no such blob")), "can't try it: no such blob"),
    ],
)
async def test_whatever_else_is_worth_another_try(channel: Broken, says: str) -> None:
    found = await failure(channel)
    assert (type(found), found.reason, found.retry_after_s) == (Unavailable, "SIMULATOR_UNAVAILABLE", 2.0)
    assert says in found.message
    assert "nothing was published, try again" in found.message

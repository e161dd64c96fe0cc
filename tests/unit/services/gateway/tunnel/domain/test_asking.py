"""Requests of a connection, without gRPC: what a device hears, and when it hears nothing."""

import asyncio

import pytest

from libs.common.errors import Conflict, Error, Invalid, NotFound
from libs.common.testing import eventually
from services.gateway.tunnel.domain.frame import NO_STREAM, Device, Outcome
from services.gateway.tunnel.domain.requests import Fate, Prediction, Tensor
from services.gateway.tunnel.domain.session import Ack, Hello
from services.gateway.tunnel.testing import DEVICE, STREAM, FakeModels, frame, predicted, request
from tests.unit.services.gateway.tunnel.domain.asking_world import Connection, World


@pytest.fixture
def world() -> World:
    return World()


async def test_a_request_is_answered(world: World) -> None:
    device = world.connect()
    device.send(request(7, timeout_s=0.25), None)
    await device.task
    assert device.heard == [Ack(STREAM, 0), predicted(7)]
    assert world.models.asked == [(DEVICE, request(7, timeout_s=0.25), 0.25)]
    assert world.recorder.fates == [Fate.ANSWERED]
    assert world.recorder.requests == 0


async def test_requests_do_not_wait_for_frames_that_are_not_durable(world: World) -> None:
    device = world.connect()
    device.send(frame(1), frame(2), request(1), frame(3), request(2))
    assert await device.answered(2) == [predicted(1), predicted(2)]
    assert Ack(STREAM, 3) not in device.heard
    world.log.gate.set()
    device.send(None)
    await device.task
    assert device.heard[-1] == Ack(STREAM, 3)
    assert world.recorder.counts == {(Outcome.STORED, "data"): 3}


async def test_a_window_of_frames_as_large_as_the_inbox_does_not_pause_reading() -> None:
    each = frame(1, payload=bytes(1000)).cost
    world = World(connection_bytes=10 * each)
    device = world.connect()
    device.send(*(frame(n, payload=bytes(1000)) for n in range(1, 10)), request(1))
    await device.answered()
    device.send(frame(10, payload=bytes(1000)), request(2))
    await eventually(lambda: device.taken == 11)  # the Hello, ten frames and the first request, less the last
    world.log.gate.set()
    await device.answered(2)
    device.send(None)
    await device.task


async def test_answers_come_in_the_order_of_the_models(world: World) -> None:
    device = world.connect()
    world.models.gate.clear()
    device.send(request(1))
    await eventually(lambda: len(world.models.asked) == 1)
    world.models.gate = asyncio.Event()
    world.models.gate.set()
    device.send(request(2))
    assert await device.answered() == [predicted(2)]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(NotFound("no such model", reason="MODEL_NOT_FOUND"), "MODEL_NOT_FOUND"), (ValueError("x"), "INTERNAL")],
)
async def test_a_model_that_cannot_answer(world: World, failure: Exception, reason: str) -> None:
    world.models.failure = failure
    device = world.connect()
    device.send(request(1), request(2), None)
    await device.task
    assert device.reasons == [(1, reason), (2, reason)]
    assert "ValueError" not in device.answers[0].failure_message
    assert world.recorder.fates == [Fate.FAILED, Fate.FAILED]


async def test_a_long_message_is_cut(world: World) -> None:
    world.models.failure = NotFound("n" * 5000)
    device = world.connect()
    device.send(request(1), None)
    await device.task
    assert len(device.answers[0].failure_message) == 501


async def test_late_answers_are_dropped_and_counted(world: World) -> None:
    world.models.gate.clear()
    device = world.connect()
    device.send(request(1, timeout_s=1.0), request(2, timeout_s=3.0))
    await eventually(lambda: len(world.models.asked) == 2)
    world.clock.advance(1.0)
    world.models.gate.set()
    device.send(None)
    await device.task
    assert device.answers == [predicted(2)]
    assert sorted(world.recorder.fates, key=str) == [Fate.ANSWERED, Fate.LATE]


async def test_a_model_that_says_that_the_time_is_over(world: World) -> None:
    world.models.failure = TimeoutError()
    device = world.connect()
    device.send(request(1), None)
    await device.task
    assert device.answers == []
    assert world.recorder.fates == [Fate.LATE]


async def test_answers_that_wait_too_long_for_a_slow_reader_are_dropped(world: World) -> None:
    device = world.connect()
    device.send(request(1))
    await device.answered()
    device.reading.clear()
    device.send(request(2))
    await device.answered(2)  # handed over; what comes behind it waits
    device.send(request(3))
    await eventually(lambda: len(world.models.asked) == 3)
    world.clock.advance(60.0)
    device.reading.set()
    device.send(None)
    await device.task
    assert device.answers == [predicted(1), predicted(2)]
    assert world.recorder.fates == [Fate.ANSWERED, Fate.ANSWERED, Fate.LATE]


async def test_without_serving_requests_are_refused_and_frames_go_on(world: World) -> None:
    device = world.connect(tunnel=world.over(None))
    world.log.gate.set()
    device.send(request(1), frame(1), None)
    await device.task
    assert device.reasons == [(1, "NO_SERVING")]
    assert Ack(STREAM, 1) in device.heard
    assert world.recorder.fates == [Fate.REFUSED]


async def test_a_connection_that_ends_takes_its_requests_along(world: World) -> None:
    world.models.gate.clear()
    device = world.connect()
    device.send(request(1), request(2))
    await eventually(lambda: len(world.models.asked) == 2)
    device.task.cancel()
    await asyncio.gather(device.task, return_exceptions=True)
    assert sorted(world.models.cancelled) == [1, 2]
    assert world.recorder.fates == [Fate.CANCELLED, Fate.CANCELLED]
    assert world.recorder.requests == 0


async def test_a_fence_cancels_the_older_connections_requests(world: World) -> None:
    world.models.gate.clear()
    older = world.connect()
    older.send(request(1))
    await eventually(lambda: len(world.models.asked) == 1)
    newer = world.connect()
    with pytest.raises(Conflict):
        await older.task
    assert world.models.cancelled == [1]
    newer.send(request(1))
    world.models.gate.set()
    assert await newer.answered() == [predicted(1)]


async def test_a_fence_does_not_wait_for_a_device_that_does_not_read(world: World) -> None:
    world.models.gate.clear()
    older = world.connect()
    await eventually(lambda: len(older.heard) == 1)
    older.reading.clear()
    world.log.gate.set()
    older.send(request(1), frame(1))
    await eventually(lambda: Ack(STREAM, 1) in older.heard)
    world.connect()
    await eventually(lambda: world.models.cancelled == [1])
    older.send(request(2))
    older.reading.set()
    with pytest.raises(Conflict):
        await older.task
    assert len(world.models.asked) == 1


@pytest.mark.parametrize(("number", "reason"), [(0, "BAD_REQUEST_ID"), (1, "REQUEST_TWICE")])
async def test_an_id_that_cannot_be_told_apart_ends_the_connection(
    world: World, number: int, reason: str
) -> None:
    world.models.gate.clear()
    world.log.gate.set()
    device = world.connect()
    device.send(request(1), frame(1), request(number))
    with pytest.raises(Invalid) as caught:
        await device.task
    assert caught.value.reason == reason
    assert Ack(STREAM, 1) in device.heard
    assert world.models.cancelled == [1]


async def test_a_log_that_fails_ends_requests_too(world: World) -> None:
    world.models.gate.clear()
    device = world.connect()
    device.send(request(1), frame(1))
    await eventually(lambda: len(world.models.asked) == 1)
    await world.log.close()
    world.log.gate.set()
    with pytest.raises(Error):
        await device.task
    assert world.models.cancelled == [1]


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (Tensor("y", "FP32", (1, 262_145), bytes(4 * 262_145)), "ANSWER_TOO_LARGE"),
        (Tensor("y", "BYTES", (1,), b"\1\0\0\0x"), "BAD_OUTPUT"),
    ],
)
async def test_an_answer_that_no_device_can_take(world: World, output: Tensor, reason: str) -> None:
    class Odd(FakeModels):
        async def ask(self, device: Device, request: object, timeout_s: float) -> Prediction:
            return Prediction("v1", (output,))

    device = world.connect(tunnel=world.over(Odd()))
    device.send(request(1), None)
    await device.task
    assert device.reasons == [(1, reason)]
    assert world.recorder.fates == [Fate.FAILED]


async def test_a_model_whose_call_is_cancelled_underneath_frees_its_place(world: World) -> None:
    world.models.failure = None

    class Gone(FakeModels):
        async def ask(self, device: Device, request: object, timeout_s: float) -> Prediction:
            raise asyncio.CancelledError

    device = world.connect(tunnel=world.over(Gone()))
    device.send(request(1), None)
    await device.task
    assert device.answers == []
    assert (world.recorder.fates, world.recorder.requests) == ([Fate.CANCELLED], 0)


async def test_a_device_without_streams_may_ask(world: World) -> None:
    device = Connection(world.tunnel, DEVICE, Hello(()))
    device.send(request(1), None)
    await device.task
    assert device.heard == [Ack(NO_STREAM, 0), predicted(1)]

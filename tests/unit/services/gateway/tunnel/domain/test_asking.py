"""Requests of a connection, without gRPC: what a device hears, and when it hears nothing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import pytest

from libs.common.errors import Conflict, Error, Invalid, NotFound
from libs.common.testing import FakeClock, eventually
from services.gateway.tunnel.domain.checks import Limits
from services.gateway.tunnel.domain.frame import NO_STREAM, Device, Frame, Outcome, Receipt
from services.gateway.tunnel.domain.requests import Answer, Fate, Models, Prediction, Tensor
from services.gateway.tunnel.domain.session import Ack, Hello, Message, Reply
from services.gateway.tunnel.domain.tunnel import Tunnel
from services.gateway.tunnel.store.memory import MemoryLog
from services.gateway.tunnel.testing import (
    DEVICE,
    STREAM,
    FakeModels,
    Recorder,
    frame,
    predicted,
    request,
)

HELLO = Hello((STREAM,))


class StuckLog(MemoryLog):
    """Makes nothing durable until the gate opens."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock, partitions=1)
        self.gate = asyncio.Event()

    async def append(self, frames: Sequence[Frame]) -> Receipt:
        await self.gate.wait()
        return await super().append(frames)


class World:
    """A tunnel over fakes, and devices that talk through it."""

    def __init__(self, **limits: int) -> None:
        self.clock = FakeClock()
        self.models = FakeModels()
        self.recorder = Recorder()
        self.log = StuckLog(self.clock)
        self.tunnel = self.over(self.models, **limits)

    def over(self, models: Models | None, **limits: int) -> Tunnel:
        return Tunnel(self.log, models, limits=Limits(**limits), clock=self.clock, observer=self.recorder)

    def connect(self, device: Device = DEVICE, tunnel: Tunnel | None = None) -> "Connection":
        return Connection(tunnel or self.tunnel, device)


class Connection:
    """A device's end. While `reading` is clear it reads nothing."""

    def __init__(self, tunnel: Tunnel, device: Device, hello: Hello = HELLO) -> None:
        self._queue: asyncio.Queue[Message | None] = asyncio.Queue()
        self._queue.put_nowait(hello)
        self.taken = 0
        self.heard: list[Reply] = []
        self.reading = asyncio.Event()
        self.reading.set()
        self.task = asyncio.create_task(self._run(tunnel, device))

    async def _messages(self) -> AsyncIterator[Message]:
        while (message := await self._queue.get()) is not None:
            self.taken += 1
            yield message

    async def _run(self, tunnel: Tunnel, device: Device) -> None:
        async with aclosing(tunnel.connect(device, self._messages())) as replies:
            async for reply in replies:
                self.heard.append(reply)
                await self.reading.wait()

    def send(self, *messages: Message | None) -> None:
        for message in messages:
            self._queue.put_nowait(message)

    @property
    def answers(self) -> list[Answer]:
        return [reply for reply in self.heard if isinstance(reply, Answer)]

    @property
    def reasons(self) -> list[tuple[int, str]]:
        return [(answer.id, answer.failure_reason) for answer in self.answers]

    async def answered(self, count: int = 1) -> list[Answer]:
        await eventually(lambda: len(self.answers) >= count or self.task.done())
        if self.task.done():
            self.task.result()
        return self.answers


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


async def test_more_than_may_be_open_are_refused_at_once(world: World) -> None:
    world.models.gate.clear()
    device = world.connect()
    device.send(*(request(number) for number in range(1, 19)))
    await device.answered(2)
    assert device.reasons == [(17, "TOO_MANY_REQUESTS"), (18, "TOO_MANY_REQUESTS")]
    assert world.recorder.requests == 16
    world.models.gate.set()
    await device.answered(18)
    device.send(request(19), None)
    await device.task
    assert device.answers[-1] == predicted(19)


async def test_all_connections_together_are_bounded() -> None:
    world = World(requests_in_all=6)
    world.models.gate.clear()
    one, two = world.connect(), world.connect(Device("acme", "phone-2"))
    one.send(request(1), request(2))
    await eventually(lambda: len(world.models.asked) == 2)
    two.send(request(1), request(2))
    await two.answered()
    assert two.reasons == [(2, "TOO_MANY_REQUESTS")]
    assert "3 requests of your tenant's devices" in two.answers[0].failure_message
    one.task.cancel()
    await asyncio.gather(one.task, return_exceptions=True)
    two.send(request(3))
    await eventually(lambda: len(world.models.asked) == 4)
    assert world.recorder.requests == 2
    world.models.gate.set()
    two.send(None)
    await two.task


async def test_a_tenant_whose_model_is_stalled_leaves_places_to_others() -> None:
    world = World(requests_in_all=64)
    world.models.gate.clear()
    stalled = [world.connect(Device("acme", f"phone-{number}")) for number in range(8)]
    for device in stalled:
        device.send(*(request(number, timeout_s=30.0) for number in range(1, 17)))
    await eventually(lambda: len(world.models.asked) + sum(len(d.answers) for d in stalled) == 8 * 16)
    assert len(world.models.asked) == world.recorder.requests == 32
    world.models.gate = asyncio.Event()
    world.models.gate.set()
    other = world.connect(Device("rival", "phone-1"))
    other.send(*(request(number) for number in range(1, 17)), None)
    await other.task
    assert [answer.failure_reason for answer in other.answers] == [""] * 16


async def test_answers_that_nobody_reads_hold_their_places_no_longer_than_they_are_good_for() -> None:
    world = World(requests_in_all=4)
    deaf = world.connect()
    deaf.send(request(1))
    await deaf.answered()
    deaf.reading.clear()
    deaf.send(request(2))
    await deaf.answered(2)  # handed over; what comes behind it waits
    deaf.send(request(3, timeout_s=2.0), request(4, timeout_s=5.0))
    await eventually(lambda: len(world.models.asked) == 4)
    other = world.connect(Device("acme", "phone-2"))
    other.send(request(1))
    await other.answered()
    assert other.reasons == [(1, "TOO_MANY_REQUESTS")]
    world.clock.advance(2.0)
    await eventually(lambda: world.recorder.requests == 1)
    assert world.recorder.fates[-1] is Fate.LATE
    other.send(request(2))
    assert (await other.answered(2))[1] == predicted(2)
    deaf.reading.set()
    deaf.send(None)
    await deaf.task
    assert deaf.answers == [predicted(1), predicted(2), predicted(4)]
    assert world.recorder.requests == 0
    assert world.clock.sleepers == 0


async def test_who_reads_no_answers_is_not_read(world: World) -> None:
    device = world.connect(tunnel=world.over(None))
    device.send(request(1))
    await device.answered()
    device.reading.clear()
    device.send(request(2))
    await device.answered(2)
    device.send(*(request(number) for number in range(3, 1001)), None)
    for _ in range(2000):
        await asyncio.sleep(0)
    assert device.taken == 1 + 2 + 64
    device.reading.set()
    await device.task
    assert [answer.id for answer in device.answers] == list(range(1, 1001))


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

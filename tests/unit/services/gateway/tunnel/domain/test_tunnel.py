"""One connection after another, without gRPC: what a device hears."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing

import pytest

from libs.common.errors import Conflict, Error, Exhausted, Invalid, Unavailable
from libs.common.testing import FakeClock
from services.gateway.tunnel.domain.checks import Limits
from services.gateway.tunnel.domain.frame import NO_STREAM, Codec, Device, Frame, Outcome, Receipt, Stream
from services.gateway.tunnel.domain.session import Ack, Hello, Message, Reply
from services.gateway.tunnel.domain.tunnel import Tunnel
from services.gateway.tunnel.store.memory import MemoryLog
from services.gateway.tunnel.testing import DEVICE, EPOCH, STREAM, Recorder, everything, frame, frames

HELLO = Hello((STREAM,))
OTHER = Stream("profile/clicks", EPOCH)


class GatedLog(MemoryLog):
    """Commits only while the gate is open, and fails with `error` when there is one."""

    def __init__(self) -> None:
        super().__init__(FakeClock(), partitions=2)
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Error | None = None
        self.appends: list[int] = []

    async def append(self, frames: Sequence[Frame]) -> Receipt:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.appends.append(len(frames))
        return await super().append(frames)


class Connection:
    """A device's end: sends messages, collects acks."""

    def __init__(self, tunnel: Tunnel, device: Device = DEVICE) -> None:
        self._queue: asyncio.Queue[Message | None] = asyncio.Queue()
        self.taken = 0
        self.acks: list[Reply] = []
        self._heard = asyncio.Condition()
        self.task = asyncio.create_task(self._run(tunnel, device))

    async def _messages(self) -> AsyncIterator[Message]:
        while (message := await self._queue.get()) is not None:
            self.taken += 1
            async with self._heard:
                self._heard.notify_all()
            yield message

    async def _run(self, tunnel: Tunnel, device: Device) -> None:
        try:
            async with aclosing(tunnel.connect(device, self._messages())) as acks:
                async for ack in acks:
                    self.acks.append(ack)
                    async with self._heard:
                        self._heard.notify_all()
        finally:
            async with self._heard:
                self._heard.notify_all()

    def send(self, *messages: Message | None) -> None:
        for message in messages:
            self._queue.put_nowait(message)

    async def until(self, condition: Callable[[list[Reply]], bool]) -> None:
        async with asyncio.timeout(10), self._heard:
            await self._heard.wait_for(lambda: condition(self.acks) or self.task.done())
        if self.task.done():
            self.task.result()
        assert condition(self.acks)

    async def took(self, messages: int) -> None:
        await self.until(lambda _: self.taken >= messages)

    async def acked(self, sequence: int, stream: Stream = STREAM) -> None:
        await self.until(lambda acks: Ack(stream, sequence) in acks)


@pytest.fixture
def log() -> GatedLog:
    return GatedLog()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def tunnel_over(log: GatedLog, recorder: Recorder | None = None, **limits: float) -> Tunnel:
    return Tunnel(
        log,
        None,
        limits=Limits(**limits),  # type: ignore[arg-type]
        clock=FakeClock(),
        observer=recorder or Recorder(),
    )


async def test_frames_are_acked_once_they_are_in_the_log(log: GatedLog, recorder: Recorder) -> None:
    log.gate.clear()
    connection = Connection(tunnel_over(log, recorder))
    connection.send(HELLO, *frames([1, 2, 3]))
    await connection.acked(0)
    assert connection.acks == [Ack(STREAM, 0)]
    log.gate.set()
    await connection.acked(3)
    connection.send(frame(4, tombstone_reason="UNDECLARED_FIELD"), None)
    await connection.task
    assert connection.acks[-1] == Ack(STREAM, 4)
    assert [record.frame.sequence for record in await everything(log)] == [1, 2, 3, 4]
    assert recorder.counts == {(Outcome.STORED, "data"): 3, (Outcome.STORED, "tombstone"): 1}
    assert (recorder.open, recorder.reasons) == (0, ["closed"])


async def test_a_device_without_streams_hears_that_it_is_connected(log: GatedLog) -> None:
    connection = Connection(tunnel_over(log))
    connection.send(Hello(()))
    await connection.until(lambda acks: acks == [Ack(NO_STREAM, 0)])
    connection.send(None)
    await connection.task


async def test_acks_are_few_when_the_log_is_slow(log: GatedLog) -> None:
    log.gate.clear()
    connection = Connection(tunnel_over(log))
    connection.send(HELLO, *frames(range(1, 501)), None)
    await connection.took(501)
    log.gate.set()
    await connection.task
    assert connection.acks[-1] == Ack(STREAM, 500)
    assert len(connection.acks) <= 4
    assert sum(log.appends) == 500


async def test_a_device_resumes_from_what_is_durable(log: GatedLog) -> None:
    await log.append(frames([1, 2]))
    await log.append(frames([1], stream=OTHER))
    connection = Connection(tunnel_over(log))
    connection.send(Hello((STREAM, OTHER, Stream("new/one", EPOCH))))
    await connection.until(lambda acks: len(acks) == 3)
    assert connection.acks == [Ack(STREAM, 2), Ack(OTHER, 1), Ack(Stream("new/one", EPOCH), 0)]
    connection.send(*frames([3]), *frames([2], stream=OTHER), None)
    await connection.task
    assert set(connection.acks[3:]) == {Ack(STREAM, 3), Ack(OTHER, 2)}


async def test_a_new_epoch_starts_again(log: GatedLog) -> None:
    await log.append(frames([1, 2]))
    reborn = Stream(STREAM.name, bytes(16))
    connection = Connection(tunnel_over(log))
    connection.send(Hello((reborn,)), *frames([1], stream=reborn), None)
    await connection.task
    assert connection.acks == [Ack(reborn, 0), Ack(reborn, 1)]


async def test_frames_that_are_there_already_are_not_kept_twice(log: GatedLog, recorder: Recorder) -> None:
    await log.append(frames([1, 2]))
    connection = Connection(tunnel_over(log, recorder))
    connection.send(HELLO, *frames([1, 2, 3]), None)
    await connection.task
    assert connection.acks == [Ack(STREAM, 2), Ack(STREAM, 3)]
    assert recorder.counts == {(Outcome.DUPLICATE, "data"): 2, (Outcome.STORED, "data"): 1}


async def test_a_gap_is_told_once_by_the_same_ack_again(log: GatedLog, recorder: Recorder) -> None:
    connection = Connection(tunnel_over(log, recorder))
    connection.send(HELLO, *frames([1, 2]))
    await connection.acked(2)
    connection.send(*frames([4]))
    await connection.until(lambda acks: acks.count(Ack(STREAM, 2)) == 2)
    # These were on their way when the device heard of the gap: they say nothing new.
    connection.send(*frames([5, 6]))
    connection.send(*frames([3, 4, 5]))
    await connection.acked(5)
    connection.send(*frames([7]))
    await connection.until(lambda acks: acks.count(Ack(STREAM, 5)) == 2)
    connection.send(None)
    await connection.task
    assert connection.acks.count(Ack(STREAM, 2)) == 2
    assert [record.frame.sequence for record in await everything(log)] == [1, 2, 3, 4, 5]


async def test_a_gap_behind_progress_in_one_batch_is_told_too(log: GatedLog) -> None:
    log.gate.clear()
    connection = Connection(tunnel_over(log))
    connection.send(HELLO, *frames([1, 2, 4, 5]), None)
    await connection.took(5)
    log.gate.set()
    await connection.task
    assert connection.acks[1:] == [Ack(STREAM, 2), Ack(STREAM, 2)] or (
        connection.acks[1:] == [Ack(STREAM, 1), Ack(STREAM, 2), Ack(STREAM, 2)]
    )


async def test_the_newest_connection_wins(log: GatedLog, recorder: Recorder) -> None:
    tunnel = tunnel_over(log, recorder)
    older = Connection(tunnel)
    older.send(HELLO, *frames([1]))
    await older.acked(1)
    newer = Connection(tunnel)
    newer.send(HELLO)
    await newer.acked(1)
    with pytest.raises(Conflict, match="newer connection") as caught:
        await older.task
    assert caught.value.reason == "FENCED"
    newer.send(*frames([2]))
    await newer.acked(2)
    newest = Connection(tunnel)
    newest.send(HELLO, None)
    await newest.task
    with pytest.raises(Conflict):
        await newer.task
    assert sorted(recorder.reasons) == ["FENCED", "FENCED", "closed"]


async def test_fencing_while_frames_wait_loses_and_doubles_nothing(log: GatedLog) -> None:
    tunnel = tunnel_over(log)
    older = Connection(tunnel)
    older.send(HELLO)
    await older.acked(0)
    log.gate.clear()
    older.send(*frames([1, 2]))
    newer = Connection(tunnel)
    newer.send(HELLO, *frames([1, 2, 3]))
    await newer.acked(0)
    with pytest.raises(Conflict):
        await older.task
    log.gate.set()
    await newer.acked(3)
    newer.send(None)
    await newer.task
    assert [record.frame.sequence for record in await everything(log)] == [1, 2, 3]


async def test_devices_do_not_fence_each_other(log: GatedLog) -> None:
    tunnel = tunnel_over(log)
    namesake = Device("rival", DEVICE.device)
    one, two = Connection(tunnel), Connection(tunnel, namesake)
    one.send(HELLO)
    two.send(HELLO)
    await one.acked(0)
    await two.acked(0)
    one.send(*frames([1]), None)
    two.send(*frames([1], device=namesake), None)
    await one.task
    await two.task


async def test_a_log_that_fails_ends_the_connection_with_its_error(log: GatedLog, recorder: Recorder) -> None:
    connection = Connection(tunnel_over(log, recorder))
    connection.send(HELLO, *frames([1]))
    await connection.acked(1)
    log.error = Exhausted("full", reason="DISK_FULL", retry_after_s=5.0)
    connection.send(*frames([2]))
    with pytest.raises(Exhausted) as caught:
        await connection.task
    assert caught.value.retry_after_s == 5.0
    assert connection.acks == [Ack(STREAM, 0), Ack(STREAM, 1)]
    assert recorder.reasons == ["DISK_FULL"]


async def test_frames_before_a_malformed_one_are_acked(log: GatedLog) -> None:
    connection = Connection(tunnel_over(log))
    connection.send(HELLO, *frames([1, 2]), frame(0))
    with pytest.raises(Invalid, match="sequences start at 1"):
        await connection.task
    assert connection.acks[-1] == Ack(STREAM, 2)


async def test_reading_pauses_while_too_much_is_not_durable(log: GatedLog) -> None:
    log.gate.clear()
    each = frame(1, payload=bytes(1000)).cost
    connection = Connection(tunnel_over(log, connection_bytes=10 * each))
    connection.send(HELLO, *(frame(n, payload=bytes(1000)) for n in range(1, 101)), None)
    for _ in range(500):
        await asyncio.sleep(0)
    assert connection.taken == 1 + 10
    log.gate.set()
    await connection.task
    assert connection.acks[-1] == Ack(STREAM, 100)
    assert max(log.appends) <= 10


async def test_too_many_connections_are_refused(log: GatedLog) -> None:
    tunnel = tunnel_over(log, connections=1)
    one = Connection(tunnel)
    one.send(HELLO)
    await one.acked(0)
    two = Connection(tunnel, Device("acme", "phone-2"))
    with pytest.raises(Exhausted, match="all it takes"):
        await two.task
    one.send(None)
    await one.task
    three = Connection(tunnel)
    three.send(HELLO, None)
    await three.task


async def test_a_cancelled_connection_frees_its_place(log: GatedLog, recorder: Recorder) -> None:
    tunnel = tunnel_over(log, recorder, connections=1)
    one = Connection(tunnel)
    one.send(HELLO)
    await one.acked(0)
    one.task.cancel()
    await asyncio.gather(one.task, return_exceptions=True)
    assert (recorder.open, recorder.reasons) == (0, ["cancelled"])


async def test_a_log_that_is_closed_is_unavailable(log: GatedLog) -> None:
    connection = Connection(tunnel_over(log))
    connection.send(HELLO)
    await connection.acked(0)
    await log.close()
    connection.send(*frames([1]))
    with pytest.raises(Unavailable):
        await connection.task


async def test_silence_instead_of_a_hello(log: GatedLog) -> None:
    connection = Connection(tunnel_over(log, hello_s=0.01))
    with pytest.raises(Invalid, match=r"must be the first message, within 0\.01 s"):
        await connection.task


@pytest.mark.parametrize("first", [None, frame(1)])
async def test_anything_but_a_hello_first(log: GatedLog, first: Message | None) -> None:
    connection = Connection(tunnel_over(log))
    connection.send(first)
    with pytest.raises(Invalid, match="must be the first message") as caught:
        await connection.task
    assert caught.value.reason == "NO_HELLO"


@pytest.mark.parametrize(
    ("streams", "told"),
    [
        ([Stream(f"task/s-{n}", EPOCH) for n in range(65)], "65 streams, and a device may have 64"),
        (
            [Stream("task", EPOCH)],
            r'streams\[0\]\.stream: .task. is not of the form "<task>/<stream>"',
        ),
        ([STREAM, Stream("task/Ab", EPOCH)], r"hello\.streams\[1\]\.stream: .Ab. is not an id"),
        ([Stream("t/s/u", EPOCH)], "is not an id"),
        ([Stream("/s", EPOCH)], "is not an id"),
        ([Stream("t/s", b"short")], "has 5 bytes; it must have 16"),
        ([STREAM, Stream(STREAM.name, bytes(16))], "is listed twice"),
    ],
)
async def test_a_bad_hello(log: GatedLog, streams: list[Stream], told: str) -> None:
    connection = Connection(tunnel_over(log))
    connection.send(Hello(tuple(streams)))
    with pytest.raises(Invalid, match=told):
        await connection.task


def changed(**values: object) -> Frame:
    base = {name: getattr(frame(1), name) for name in Frame.__slots__}
    return Frame(**{**base, **values})


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (HELLO, "hello: comes once"),
        (
            frame(1, stream=Stream("profile/visit", EPOCH)),
            "didn't list 'profile/visit'; did you mean 'profile/visits'",
        ),
        (changed(stream=Stream(STREAM.name, bytes(16))), "differs from the one that the Hello gave"),
        (changed(sequence=0), "sequences start at 1"),
        (changed(sequence=2**63), "sequences start at 1"),
    ],
)
async def test_a_message_that_breaks_the_protocol(log: GatedLog, bad: Message, told: str) -> None:
    connection = Connection(tunnel_over(log))
    connection.send(HELLO, bad)
    with pytest.raises(Invalid, match=told):
        await connection.task
    assert await everything(log) == []


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (changed(payload=bytes(256 * 1024 + 1)), "FRAME_TOO_LARGE"),
        (changed(codec=Codec.NONE), "BAD_CODEC"),
        (changed(codec=Codec.UNKNOWN), "BAD_CODEC"),
        (changed(event_time_ns=None), "BAD_EVENT_TIME"),
        (changed(event_time_ns=253_402_300_800 * 10**9), "BAD_EVENT_TIME"),
        (changed(event_time_ns=-(2**80)), "BAD_EVENT_TIME"),
        (changed(schema_id=""), "BAD_SCHEMA_ID"),
        (changed(schema_id="x" * 100_000), "BAD_SCHEMA_ID"),
        (changed(schema_id="profile@1/other"), "BAD_SCHEMA_ID"),
        (changed(schema_id="other@1/visits"), "BAD_SCHEMA_ID"),
        (changed(schema_id="profile@/visits"), "BAD_VERSION"),
        (changed(schema_id="profile@" + "1" * 129 + "/visits"), "BAD_VERSION"),
        (changed(tombstone_reason="lower"), "BAD_TOMBSTONE"),
        (changed(tombstone_reason="A" * 64), "BAD_TOMBSTONE"),
        (changed(tombstone_reason="DROPPED"), "BAD_TOMBSTONE"),
    ],
)
async def test_a_malformed_frame_becomes_a_tombstone_and_stalls_nothing(
    log: GatedLog, recorder: Recorder, caplog: pytest.LogCaptureFixture, bad: Frame, reason: str
) -> None:
    connection = Connection(tunnel_over(log, recorder))
    connection.send(HELLO, bad, *frames([2]), None)
    await connection.task
    assert connection.acks[-1] == Ack(STREAM, 2)
    refused, good = (record.frame for record in await everything(log))
    assert (refused.tombstone_reason, refused.payload, refused.sequence) == (reason, b"", 1)
    assert good == frame(2)
    assert recorder.refusals == [reason]
    assert "a tombstone takes its place" in caplog.text


@pytest.mark.parametrize("time_ns", [0, -1, -(10**18), 253_402_300_799 * 10**9])
async def test_events_of_any_year(log: GatedLog, recorder: Recorder, time_ns: int) -> None:
    connection = Connection(tunnel_over(log, recorder))
    connection.send(HELLO, changed(event_time_ns=time_ns), None)
    await connection.task
    (record,) = await everything(log)
    assert record.frame.event_time_ns == time_ns
    assert recorder.refusals == []


async def test_a_tombstone_needs_neither_schema_nor_time(log: GatedLog) -> None:
    connection = Connection(tunnel_over(log))
    bare = changed(
        payload=b"", codec=Codec.NONE, event_time_ns=None, schema_id="", tombstone_reason="DROPPED"
    )
    connection.send(HELLO, bare, None)
    await connection.task
    assert connection.acks[-1] == Ack(STREAM, 1)

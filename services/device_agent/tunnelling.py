"""The tunnel's device end: frames in order, a window of them in flight, deleted when the cloud has them.

After a connection opens, nothing of a stream is sent before its first Ack says where to resume. An Ack that
repeats means a gap: the stream goes back to the frame after it. Frames are only ever deleted by an Ack.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.tunnel.v1 import tunnel_pb2
from libs.common.clock import Clock
from libs.common.errors import Error, Unavailable
from libs.common.rand import Randomness
from libs.task.event import MAX_TIME_S
from services.device_agent.backoff import Backoff
from services.device_agent.cloud import Cloud, Tunnel
from services.device_agent.signals import Bell, Problems
from services.device_agent.store import frames as frame_store
from services.device_agent.store.database import Database
from services.device_agent.store.frames import Frame, Stream

_log = logging.getLogger("isthmus.agent")

_BATCH = 64
_BATCH_BYTES = 256 * 1024
_WINDOW = 512
_WINDOW_BYTES = 1024 * 1024
# With frames in flight and no Ack for this long the connection is taken for dead.
_ACK_S = 30.0
_MAX_STREAMS = 64
_SUBJECT = "tunnel"


@dataclass(slots=True)
class _Sending:
    """A stream on this connection."""

    epoch: bytes
    sent: int = -1
    """Highest sequence sent; -1 before the first Ack."""
    acked: int = -1
    in_flight: dict[int, int] = field(default_factory=dict)
    """Sequence → payload bytes."""
    went_back: bool = False
    """Has gone back since the last progress."""


class Tunneller:
    """Holds the tunnel and empties the streams into it.

    Attributes:
        bell: rings when there may be frames, or new streams.
        connected: the cloud has answered on the open connection.
    """

    def __init__(
        self,
        database: Database,
        cloud: Cloud,
        clock: Clock,
        randomness: Randomness,
        problems: Problems,
        backoff: Backoff,
        fenced_wait_s: float,
        bell: Bell,
    ) -> None:
        self.bell = bell
        self.connected = False
        self._database = database
        self._cloud = cloud
        self._clock = clock
        self._random = randomness
        self._problems = problems
        self._backoff = backoff
        self._fenced_wait_s = fenced_wait_s

    async def run(self) -> None:
        """Connect while there are streams; again, with backoff, after every end."""
        attempt = 0
        while True:
            seen = self.bell.rings
            streams = (await self._database.run(frame_store.list_streams))[:_MAX_STREAMS]
            if not streams:
                await self.bell.wait(seen)
                continue
            try:
                await self._connect(streams)
                error: Error | None = None
            except grpc.aio.AioRpcError as failure:
                error = self._cloud.tunnel_error(failure)
            except Error as failure:
                error = failure
            was_connected, self.connected = self.connected, False
            attempt = 0 if was_connected else attempt + 1
            await self._clock.sleep(self._wait_s(error, attempt))

    def _wait_s(self, error: Error | None, attempt: int) -> float:
        if error is None:  # new streams: connect again with a Hello that names them
            return 0.0
        if error.reason == "FENCED":
            text = "another agent uses this device's identity; stop one of them, or enrol it under its own id"
            self._problems.set(_SUBJECT, text, "FENCED")
            return self._fenced_wait_s * self._random.uniform(1.0, 1.5)
        if attempt > 1:
            self._problems.set(_SUBJECT, error.message, error.reason)
        return self._backoff.delay_s(max(0, attempt - 1), error)

    async def _connect(self, streams: list[Stream]) -> None:
        """Hold one connection; returns when the streams have changed, raises when it ends."""
        sending = {stream.stream: _Sending(stream.epoch) for stream in streams}
        call = self._cloud.open_tunnel()
        try:
            hello = tunnel_pb2.Hello(
                streams=[tunnel_pb2.StreamEpoch(stream=s.stream, epoch=s.epoch) for s in streams]
            )
            await call.write(tunnel_pb2.ConnectRequest(hello=hello))
            acks = Bell()
            tasks = {
                asyncio.create_task(self._receive(call, sending, acks)),
                asyncio.create_task(self._send(call, sending, acks)),
                asyncio.create_task(self._streams_other_than({(s.stream, s.epoch) for s in streams})),
            }
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for task in done:
                task.result()
        finally:
            call.cancel()

    async def _receive(self, call: Tunnel, sending: dict[str, _Sending], acks: Bell) -> None:
        while (response := await call.read()) is not grpc.aio.EOF:
            if response.WhichOneof("kind") != "ack":
                continue  # of a newer cloud: nothing that we know what to do with
            ack = response.ack
            state = sending.get(ack.stream)
            if state is None or state.epoch != ack.epoch:
                continue
            self.connected = True
            self._problems.clear(_SUBJECT)
            await self._take_ack(ack.stream, state, ack.sequence)
            acks.ring()
        raise Unavailable("the cloud closed the tunnel", reason="CLOSED")

    async def _take_ack(self, stream: str, state: _Sending, sequence: int) -> None:
        if sequence < state.acked:
            return
        progress = sequence > state.acked
        state.acked = sequence
        if state.sent < sequence:
            state.sent = sequence
        for done in [s for s in state.in_flight if s <= sequence]:
            del state.in_flight[done]
        if progress:
            state.went_back = False
        elif state.in_flight and not state.went_back:
            state.went_back = True
            state.sent = sequence
            state.in_flight.clear()
        known = await self._database.run(_acker(stream, state.epoch, sequence))
        if not known:
            # The cloud has more than we ever numbered: this store is an older copy. What we number from here
            # on would look like repetitions, so the stream starts a new life.
            epoch = self._random.bytes(16)
            await self._database.run(
                lambda connection: frame_store.renumber_stream(connection, stream, epoch)
            )
            _log.warning("stream %s: the cloud is ahead of this store; a new epoch begins", stream)
            self.bell.ring()

    async def _send(self, call: Tunnel, sending: dict[str, _Sending], acks: Bell) -> None:
        while True:
            seen_frames, seen_acks = self.bell.rings, acks.rings
            while await self._send_some(call, sending):
                pass
            await self._wait(seen_frames, seen_acks, acks, any(s.in_flight for s in sending.values()))

    async def _send_some(self, call: Tunnel, sending: dict[str, _Sending]) -> bool:
        """Send a batch of each stream that has room; return whether anything was sent."""
        sent = False
        for stream, state in sending.items():
            room = _WINDOW - len(state.in_flight)
            room_bytes = _WINDOW_BYTES - sum(state.in_flight.values())
            if state.sent < 0 or room <= 0 or room_bytes <= 0:
                continue
            start = state.sent
            frames = await self._database.run(
                _frame_reader(stream, start, min(room, _BATCH), min(room_bytes, _BATCH_BYTES)), durable=False
            )
            for frame in frames:
                if state.sent != frame.sequence - 1:
                    break  # an Ack has moved the place meanwhile
                state.sent = frame.sequence
                state.in_flight[frame.sequence] = len(frame.payload)
                await call.write(tunnel_pb2.ConnectRequest(frame=_to_proto(frame, state.epoch)))
                sent = True
        return sent

    async def _wait(self, seen_frames: int, seen_acks: int, acks: Bell, in_flight: bool) -> None:
        waits = {
            asyncio.create_task(self.bell.wait(seen_frames)),
            asyncio.create_task(acks.wait(seen_acks)),
        }
        patience = asyncio.create_task(self._clock.sleep(_ACK_S)) if in_flight or not self.connected else None
        tasks = waits if patience is None else {*waits, patience}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if patience is not None and done == {patience}:
            raise Unavailable(f"no answer from the tunnel for {_ACK_S:.0f} s", reason="NO_ACK")

    async def _streams_other_than(self, known: set[tuple[str, bytes]]) -> None:
        while True:
            seen = self.bell.rings
            streams = await self._database.run(frame_store.list_streams, durable=False)
            if {(s.stream, s.epoch) for s in streams[:_MAX_STREAMS]} != known:
                return
            await self.bell.wait(seen)


def _to_proto(frame: Frame, epoch: bytes) -> tunnel_pb2.Frame:
    moment = Timestamp()
    # An event at the edge of what a time may be lies beyond it by the gateway's clock.
    moment.FromNanoseconds(int(min(max(frame.event_time_s, 0.0), MAX_TIME_S - 1.0) * 1e9))
    return tunnel_pb2.Frame(
        stream=frame.stream,
        epoch=epoch,
        sequence=frame.sequence,
        schema_id=frame.schema_id,
        event_time=moment,
        codec=tunnel_pb2.Frame.CODEC_JSON,
        payload=frame.payload,
        tombstone_reason=frame.tombstone,
    )


def _acker(stream: str, epoch: bytes, sequence: int) -> Callable[[sqlite3.Connection], bool]:
    return lambda connection: frame_store.ack_frames(connection, stream, epoch, sequence)


def _frame_reader(
    stream: str, after: int, count: int, max_bytes: int
) -> Callable[[sqlite3.Connection], list[Frame]]:
    return lambda connection: frame_store.read_frames(connection, stream, after, count, max_bytes)

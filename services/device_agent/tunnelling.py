"""The tunnel's device end: frames in order, a window of them in flight, deleted when the cloud has them.

Requests to models in the cloud (`asking`) share the connection.

After a connection opens, nothing of a stream is sent before its first Ack says where to resume. An Ack that
repeats means a gap: the stream goes back to the frame after it. Frames are only ever deleted by an Ack.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import grpc

from isthmus.tunnel.v1 import tunnel_pb2
from libs.common.clock import Clock
from libs.common.errors import Error, Unavailable
from libs.common.rand import Randomness
from services.device_agent.asking import Requests
from services.device_agent.backoff import Backoff
from services.device_agent.cloud import Cloud, Tunnel
from services.device_agent.convert import to_timestamp
from services.device_agent.domain.turns import Turns
from services.device_agent.signals import Bell, Problems
from services.device_agent.store import frames as frame_store
from services.device_agent.store.bad_rows import BAD_ROW
from services.device_agent.store.database import Database
from services.device_agent.store.frames import Frame, Stream

_log = logging.getLogger("isthmus.agent")

_BATCH = 64
_BATCH_BYTES = 256 * 1024
_WINDOW = 512
# Of all streams together, each frame counted as its payload and an allowance for the rest. Below 1 MiB the
# cloud reads on however long its log takes, so that requests don't wait behind frames.
_WINDOW_BYTES = 512 * 1024
_FRAME_BYTES = 256
# With frames in flight and no Ack for this long the connection is taken for dead.
_ACK_S = 30.0
# What a Hello may name.
_MAX_STREAMS = 64
# How long streams keep their places on the connection while others wait for one.
_TURN_S = 5.0
_SUBJECT = "tunnel"
_STREAMS = "tunnel streams"


@dataclass(slots=True)
class _Sending:
    """A stream on this connection."""

    epoch: bytes
    sent: int = -1
    """Highest sequence sent; -1 before the first Ack."""
    acked: int = -1
    in_flight: dict[int, int] = field(default_factory=dict)
    """Sequence → bytes in the window."""
    went_back: bool = False
    """Has gone back since the last progress."""


class Tunneller:
    """Holds the tunnel and empties the streams into it.

    Attributes:
        bell: rings when there may be frames, or new streams.
        connected: the cloud has answered on the open connection.
        left_out: streams with frames that have no place on the connection, as of when it was opened.
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
        requests: Requests,
        asks: Callable[[], bool],
    ) -> None:
        """Take what it needs; `asks` tells whether a connection is wanted for requests, without frames."""
        self.bell = bell
        self.connected = False
        self.left_out = 0
        self._turns = Turns(_MAX_STREAMS)
        self._database = database
        self._cloud = cloud
        self._clock = clock
        self._random = randomness
        self._problems = problems
        self._backoff = backoff
        self._fenced_wait_s = fenced_wait_s
        self._requests = requests
        self._asks = asks

    async def run(self) -> None:
        """Connect while there are streams or requests; again, with backoff, after every end."""
        attempt = 0
        while True:
            seen = self.bell.rings
            streams = self._choose(await self._database.run(frame_store.list_streams))
            if not streams and not self._asks():
                self._problems.clear(_SUBJECT)  # whatever it was: no connection is wanted
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

    def _choose(self, known: list[Stream]) -> list[Stream]:
        """Return the streams for the next connection."""
        chosen = self._turns.choose([(stream.stream, stream.waiting) for stream in known])
        waiting = sum(stream.waiting for stream in known)
        self.left_out = max(0, waiting - _MAX_STREAMS)
        if self.left_out:
            text = (
                f"{waiting} streams have frames and a connection carries {_MAX_STREAMS}: they take turns of "
                f"{_TURN_S:g} s; remove tasks that aren't needed, or let tasks share streams"
            )
            self._problems.set(_STREAMS, text, "STREAMS_TAKE_TURNS")
        else:
            self._problems.clear(_STREAMS)
        return [stream for stream in known if stream.stream in chosen]

    def _wait_s(self, error: Error | None, attempt: int) -> float:
        if error is None:  # other streams: connect again with a Hello that names them
            return 0.0
        if error.reason == "FENCED":
            text = "another agent uses this device's identity; stop one of them, or enrol it under its own id"
            self._problems.set(_SUBJECT, text, "FENCED")
            return self._fenced_wait_s * self._random.uniform(1.0, 1.5)
        if attempt > 1:
            self._problems.set(_SUBJECT, error.message, error.reason)
        return self._backoff.delay_s(max(0, attempt - 1), error)

    async def _connect(self, streams: list[Stream]) -> None:
        """Hold one connection; returns when others are due, raises when it ends."""
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
                asyncio.create_task(self._send_requests(call)),
                asyncio.create_task(self._until_others_are_due({s.stream: s.epoch for s in streams})),
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
            self._requests.closed()
            call.cancel()

    async def _send_requests(self, call: Tunnel) -> None:
        # Its own task, so that a run that gives up never breaks off a message on its way.
        while True:
            await call.write(await self._requests.next())

    async def _receive(self, call: Tunnel, sending: dict[str, _Sending], acks: Bell) -> None:
        while (response := await call.read()) is not grpc.aio.EOF:
            kind = response.WhichOneof("kind")
            if kind == "answer":
                self._requests.answered(response.answer)
            if kind != "ack":
                continue  # of a newer cloud: nothing that we know what to do with
            ack = response.ack
            state = sending.get(ack.stream)
            if sending and (state is None or state.epoch != ack.epoch):
                continue
            self.connected = True
            self._problems.clear(_SUBJECT)
            self._requests.opened()
            if state is None:
                continue  # there are no streams: all that it says is that the cloud is there
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
            if not await self._database.run(
                lambda connection: frame_store.renumber_stream(connection, stream, state.epoch, epoch)
            ):
                return  # forgotten or begun anew meanwhile
            _log.warning("stream %s: the cloud is ahead of this store; a new epoch begins", stream)
            self.bell.ring()

    async def _send(self, call: Tunnel, sending: dict[str, _Sending], acks: Bell) -> None:
        while True:
            seen_frames, seen_acks = self.bell.rings, acks.rings
            while await self._send_some(call, sending):
                pass
            waits = not self.connected or any(state.in_flight for state in sending.values())
            await self._wait(seen_frames, seen_acks, acks, waits)

    async def _send_some(self, call: Tunnel, sending: dict[str, _Sending]) -> bool:
        """Send a batch of each stream that has room; return whether anything was sent."""
        sent = False
        for stream, state in sending.items():
            room = _WINDOW - len(state.in_flight)
            # A share each, so that none waits for another's backlog; at least a frame, whatever its size.
            room_bytes = _WINDOW_BYTES // len(sending) - sum(state.in_flight.values())
            if state.sent < 0 or room <= 0 or room_bytes <= 0:
                continue
            start = state.sent
            frames = await self._database.run(
                _frame_reader(stream, start, min(room, _BATCH), min(room_bytes, _BATCH_BYTES)), durable=False
            )
            for frame in frames:
                if state.sent != frame.sequence - 1:
                    break  # an Ack has moved the place meanwhile
                try:
                    message = _to_proto(frame, state.epoch)
                except BAD_ROW as error:
                    await self._database.run(
                        partial(frame_store.spoil_frame, stream=stream, sequence=frame.sequence, error=error)
                    )
                    return True  # its tombstone is read in its place
                size = len(frame.payload) + _FRAME_BYTES
                if state.in_flight and size > room_bytes:
                    break
                state.sent = frame.sequence
                state.in_flight[frame.sequence] = size
                room_bytes -= size
                await call.write(tunnel_pb2.ConnectRequest(frame=message))
                sent = True
        return sent

    async def _wait(self, seen_frames: int, seen_acks: int, acks: Bell, for_an_ack: bool) -> None:
        waits = {
            asyncio.create_task(self.bell.wait(seen_frames)),
            asyncio.create_task(acks.wait(seen_acks)),
        }
        patience = asyncio.create_task(self._clock.sleep(_ACK_S)) if for_an_ack else None
        tasks = waits if patience is None else {*waits, patience}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if patience is not None and done == {patience}:
            raise Unavailable(f"no answer from the tunnel for {_ACK_S:.0f} s", reason="NO_ACK")

    async def _until_others_are_due(self, carried: Mapping[str, bytes]) -> None:
        """Return when a connection for other streams than `carried` (with their epochs), or none, is due.

        Frames of a stream left out wait for at most a turn per 64 streams. A stream that was forgotten does
        no harm on the connection.
        """
        turn_ends = self._clock.monotonic() + _TURN_S
        while True:
            seen = self.bell.rings
            streams = await self._database.run(frame_store.list_streams, durable=False)
            others = [s for s in streams if carried.get(s.stream) != s.epoch]
            begun_anew = any(s.stream in carried for s in others)
            unneeded = not streams and not self._asks()
            if unneeded or begun_anew or (others and len(carried) < _MAX_STREAMS):
                return
            left_s = turn_ends - self._clock.monotonic()
            if not any(s.waiting for s in others):
                await self.bell.wait(seen)
            elif left_s > 0:
                await self.bell.wait_or_sleep(seen, self._clock, left_s)
            else:
                return


def _to_proto(frame: Frame, epoch: bytes) -> tunnel_pb2.Frame:
    return tunnel_pb2.Frame(
        stream=frame.stream,
        epoch=epoch,
        sequence=frame.sequence,
        schema_id=frame.schema_id,
        event_time=to_timestamp(frame.event_time_s),
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

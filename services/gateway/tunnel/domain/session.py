"""One connection of a device: frames come in, the log keeps them, acks go out; requests are answered beside.

    messages ─► _read ─┬─► inbox ─► _write ─► Log.append
                       │               │
                       └─► Asking      │
                             │         │
    acks, answers ◄── run ◄──┴─────────┘

While the log makes one batch durable, the next one gathers in the inbox. The inbox is bounded: when it is
full, nothing more is read, and HTTP/2 flow control holds the device back. A device whose frames on the way
fit the inbox never fills it, so that its requests are read at once, however long the log takes.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from libs.common.clock import Clock
from libs.common.errors import Conflict, Invalid
from libs.common.names import shown
from libs.common.suggest import did_you_mean
from services.gateway.tunnel.domain import asking
from services.gateway.tunnel.domain.asking import Asking, Places
from services.gateway.tunnel.domain.checks import Limits, check_content, check_key
from services.gateway.tunnel.domain.frame import NO_STREAM, Device, Frame, Outcome, Receipt, Stream
from services.gateway.tunnel.domain.requests import Answer, Models, Request
from services.gateway.tunnel.store.log import Log

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hello:
    """A device's first message: the streams that it is going to send."""

    streams: tuple[Stream, ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """All frames of a stream up to `sequence` are durable; 0 means none yet."""

    stream: Stream
    sequence: int


Message = Hello | Frame | Request
Reply = Ack | Answer


class Observer(asking.Observer, Protocol):
    """Is told what happens, for metrics."""

    def frames(self, outcome: Outcome, tombstones: int, others: int) -> None:
        """Take note of how many frames ended like this."""
        ...

    def refused(self, reason: str) -> None:
        """Take note that the tunnel put a tombstone in the place of a malformed frame."""
        ...

    def acked(self, seconds: float) -> None:
        """Take note that the oldest frame of a batch is durable, so long after it was read."""
        ...

    def connections(self, count: int) -> None:
        """Take note of how many connections there are now."""
        ...

    def ended(self, reason: str) -> None:
        """Take note that a connection ended: "closed" by the device, or the error's reason."""
        ...


@dataclass(slots=True)
class _Due:
    """What a device must be told of a stream."""

    mark: int
    again: bool = False
    """Tell it once more, so that the device goes back to the frame after the mark."""


class Session:
    """Runs once."""

    def __init__(
        self,
        device: Device,
        hello: Hello,
        log: Log,
        models: Models | None,
        places: Places,
        *,
        limits: Limits,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._device = device
        self._streams = {stream.name: stream for stream in hello.streams}
        self._log = log
        self._limits = limits
        self._clock = clock
        self._observer = observer
        self._inbox: list[Frame] = []
        self._oldest = 0.0
        self._held_bytes = 0
        self._ended = False
        self._fenced = False
        self._refusals = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._wake = asyncio.Event()
        self._told: dict[Stream, int] = {}
        self._due: dict[Stream, _Due] = {}
        self._rewinding: set[Stream] = set()
        self._asking = Asking(
            device, models, places, limits=limits, clock=clock, observer=observer, wake=self._wake.set
        )

    def fence(self) -> None:
        """End this session: a newer one of the same device has begun."""
        self._fenced = True
        self._asking.cancel()
        self._wake.set()

    async def run(self, messages: AsyncIterator[Message]) -> AsyncGenerator[Reply, None]:
        """Yield an ack for each stream of the Hello, then acks as frames become durable, and answers.

        A Hello without streams gets one ack, of no stream. Ends when `messages` end, all frames are acked and
        all requests over. An ack that is repeated tells of a gap.

        Raises:
            Conflict: FENCED.
            Invalid: for a message that breaks the protocol; the frames before it are acked first. A frame
                that is malformed only in its content becomes a tombstone.
            Exhausted, Unavailable: from the log.
        """
        marks = self._log.marks(self._device)
        for stream in self._streams.values():
            self._told[stream] = marks.get(stream, 0)
            yield Ack(stream, self._told[stream])
        if not self._streams:
            yield Ack(NO_STREAM, 0)
        reader = asyncio.create_task(self._read(messages))
        writer = asyncio.create_task(self._write())
        writer.add_done_callback(lambda _: self._wake.set())
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._fenced:
                    raise Conflict(
                        "a newer connection of this device took over; if this is a second process or a copy "
                        "of the device, "
                        "stop it or enrol it under a name of its own",
                        reason="FENCED",
                    )
                for ack in self._take_due():
                    yield ack
                answer = self._asking.next()
                if answer is not None:
                    yield answer
                    self._wake.set()  # there may be more, but acks and a fence come first
                elif writer.done() and not self._due and (_failed(reader, writer) or self._asking.idle):
                    break
            await writer
            await reader
        finally:
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, self._asking.close(), return_exceptions=True)

    def _take_due(self) -> list[Ack]:
        due, self._due = self._due, {}
        acks = []
        for stream, state in due.items():
            if state.mark > self._told[stream]:
                self._told[stream] = state.mark
                acks.append(Ack(stream, state.mark))
            if state.again:
                acks.append(Ack(stream, state.mark))
        return acks

    async def _read(self, messages: AsyncIterator[Message]) -> None:
        try:
            async for message in messages:
                if isinstance(message, Request):
                    self._asking.take(message)
                    await self._asking.room()
                    continue
                frame = self._checked(message)
                if not self._inbox:
                    self._oldest = self._clock.monotonic()
                self._inbox.append(frame)
                self._held_bytes += frame.cost
                self._arrived.set()
                while self._held_bytes >= self._limits.connection_bytes:
                    self._room.clear()
                    await self._room.wait()
        finally:
            self._ended = True
            self._arrived.set()

    def _checked(self, message: Hello | Frame) -> Frame:
        if isinstance(message, Hello):
            raise Invalid("hello: comes once, as the first message", reason="HELLO_TWICE")
        known = self._streams.get(message.stream.name)
        if known is None:
            raise Invalid(
                f"frame.stream: the Hello didn't list {shown(message.stream.name)}"
                f"{did_you_mean(message.stream.name, self._streams)}",
                reason="UNKNOWN_STREAM",
            )
        if known.epoch != message.stream.epoch:
            raise Invalid(
                f"frame.epoch: differs from the one that the Hello gave for {shown(known.name)}",
                reason="BAD_EPOCH",
            )
        check_key(message)
        try:
            check_content(message, self._limits)
        except Invalid as refusal:
            # A device would send it again for ever, and nothing behind it would get through.
            if not self._refusals:
                _log.warning("refused a frame, a tombstone takes its place: %s", refusal.message)
            self._refusals += 1
            self._observer.refused(refusal.reason)
            return message.refused(refusal.reason)
        return message

    async def _write(self) -> None:
        while self._inbox or not self._ended:
            if not self._inbox:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            batch, self._inbox = self._inbox, []
            oldest = self._oldest
            receipt = await self._log.append(batch)
            self._held_bytes -= sum(frame.cost for frame in batch)
            self._room.set()
            self._observer.acked(self._clock.monotonic() - oldest)
            self._note(batch, receipt)

    def _note(self, batch: Sequence[Frame], receipt: Receipt) -> None:
        counts = dict.fromkeys(((outcome, kind) for outcome in Outcome for kind in (True, False)), 0)
        for frame, outcome in zip(batch, receipt.outcomes, strict=True):
            counts[outcome, frame.tombstone] += 1
            if outcome is not Outcome.GAP:
                self._rewinding.discard(frame.stream)
            elif frame.stream not in self._rewinding:
                # Once for all that was on its way already: the device goes back when it hears of it.
                self._rewinding.add(frame.stream)
                self._due_of(frame.stream, receipt).again = True
        for stream, mark in receipt.marks.items():
            if mark > self._told[stream]:
                self._due_of(stream, receipt).mark = mark
        for outcome in Outcome:
            if counts[outcome, True] or counts[outcome, False]:
                self._observer.frames(outcome, counts[outcome, True], counts[outcome, False])
        if self._due:
            self._wake.set()

    def _due_of(self, stream: Stream, receipt: Receipt) -> _Due:
        return self._due.setdefault(stream, _Due(receipt.marks[stream]))


def _failed(*tasks: asyncio.Task[None]) -> bool:
    """Tell whether any of the tasks has ended with an error."""
    return any(task.done() and (task.cancelled() or task.exception() is not None) for task in tasks)

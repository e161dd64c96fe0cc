"""A tunnel over fakes, and devices that ask through it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from libs.common.testing import FakeClock, eventually
from services.gateway.tunnel.domain.checks import Limits
from services.gateway.tunnel.domain.frame import Device, Frame, Receipt
from services.gateway.tunnel.domain.requests import Answer, Models
from services.gateway.tunnel.domain.session import Hello, Message, Reply
from services.gateway.tunnel.domain.tunnel import Tunnel
from services.gateway.tunnel.store.memory import MemoryLog
from services.gateway.tunnel.testing import DEVICE, STREAM, FakeModels, Recorder

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

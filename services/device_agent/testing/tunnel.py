"""The fake cloud's end of the tunnel: keeps frames as the log would, acknowledges them, answers requests."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from isthmus.tunnel.v1 import tunnel_pb2
from libs.common import errors
from services.device_agent.testing.answering import Answering, Answers

_MAX_STREAMS = 64

Model = Callable[[tunnel_pb2.Request], Awaitable[tunnel_pb2.Answer | None]]


async def no_serving(request: tunnel_pb2.Request) -> tunnel_pb2.Answer | None:
    """Answer as a cloud without models does."""
    return tunnel_pb2.Answer(id=request.id, failure_reason="NO_SERVING", failure_message="no models here")


class FakeTunnel:
    """See the module's text.

    Attributes:
        frames: (device, stream) → sequence → frame, as the log would hold them.
        requests: what devices asked, in order.
        model: answers a request; None as its answer sends none.
    """

    def __init__(self, cloud: Answers) -> None:
        self.frames: dict[tuple[str, str], dict[int, tunnel_pb2.Frame]] = defaultdict(dict)
        self.requests: list[tunnel_pb2.Request] = []
        self.model: Model = no_serving
        self._cloud = cloud
        self._connections: dict[str, int] = defaultdict(int)

    async def connect(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Serve a connection."""
        async with Answering(self._cloud, "Connect", context) as device:
            self._connections[device] += 1
            out: asyncio.Queue[Any] = asyncio.Queue()
            reading = asyncio.create_task(self._read(device, self._connections[device], requests, out))
            try:
                while (response := await out.get()) is not None:
                    yield response
                await reading
            finally:
                reading.cancel()

    async def _read(
        self, device: str, mine: int, requests: AsyncIterator[Any], out: asyncio.Queue[Any]
    ) -> None:
        answering: set[asyncio.Task[None]] = set()
        try:
            async for request in requests:
                if self._connections[device] != mine:
                    raise errors.Conflict("a newer connection took over", reason="FENCED")
                if request.HasField("hello"):
                    if len(request.hello.streams) > _MAX_STREAMS:
                        raise errors.Invalid("hello.streams: more than 64", reason="TOO_MANY_STREAMS")
                    for stream in request.hello.streams:
                        out.put_nowait(self._ack(device, stream.stream, stream.epoch))
                    if not request.hello.streams:
                        out.put_nowait(tunnel_pb2.ConnectResponse(ack=tunnel_pb2.Ack()))
                elif request.HasField("request"):
                    self.requests.append(request.request)
                    answering.add(asyncio.create_task(self._answer(request.request, out)))
                    await self._cloud.notify()
                else:
                    await self._keep(device, request.frame, out)
        finally:
            for task in answering:
                task.cancel()
            out.put_nowait(None)

    async def _answer(self, request: tunnel_pb2.Request, out: asyncio.Queue[Any]) -> None:
        answer = await self.model(request)
        if answer is not None:
            out.put_nowait(tunnel_pb2.ConnectResponse(answer=answer))

    async def _keep(self, device: str, frame: tunnel_pb2.Frame, out: asyncio.Queue[Any]) -> None:
        key = (device, frame.stream)
        if frame.sequence == self._mark(key, frame.epoch) + 1:
            self.frames[key][frame.sequence] = frame
        await self._cloud.notify()
        await self._cloud.stage("ack")
        out.put_nowait(self._ack(device, frame.stream, frame.epoch))

    def fence(self, device: str) -> None:
        """Act as if another agent had connected as this device."""
        self._connections[device] += 1

    def _mark(self, key: tuple[str, str], epoch: bytes) -> int:
        return max((s for s, frame in self.frames[key].items() if frame.epoch == epoch), default=0)

    def _ack(self, device: str, stream: str, epoch: bytes) -> tunnel_pb2.ConnectResponse:
        sequence = self._mark((device, stream), epoch)
        return tunnel_pb2.ConnectResponse(ack=tunnel_pb2.Ack(stream=stream, epoch=epoch, sequence=sequence))

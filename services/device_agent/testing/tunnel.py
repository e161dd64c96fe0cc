"""The fake cloud's end of the tunnel: it keeps frames as the log would, and acknowledges them."""

from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

from isthmus.tunnel.v1 import tunnel_pb2
from libs.common import errors
from services.device_agent.testing.answering import Answering, Answers

_MAX_STREAMS = 64


class FakeTunnel:
    """See the module's text.

    Attributes:
        frames: (device, stream) → sequence → frame, as the log would hold them.
    """

    def __init__(self, cloud: Answers) -> None:
        self.frames: dict[tuple[str, str], dict[int, tunnel_pb2.Frame]] = defaultdict(dict)
        self._cloud = cloud
        self._connections: dict[str, int] = defaultdict(int)

    async def connect(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Serve a connection."""
        async with Answering(self._cloud, "Connect", context) as device:
            self._connections[device] += 1
            mine = self._connections[device]
            async for request in requests:
                if self._connections[device] != mine:
                    raise errors.Conflict("a newer connection took over", reason="FENCED")
                if request.HasField("hello"):
                    if len(request.hello.streams) > _MAX_STREAMS:
                        raise errors.Invalid("hello.streams: more than 64", reason="TOO_MANY_STREAMS")
                    for stream in request.hello.streams:
                        yield self._ack(device, stream.stream, stream.epoch)
                    continue
                frame = request.frame
                key = (device, frame.stream)
                if frame.sequence == self._mark(key, frame.epoch) + 1:
                    self.frames[key][frame.sequence] = frame
                await self._cloud.notify()
                await self._cloud.stage("ack")
                yield self._ack(device, frame.stream, frame.epoch)

    def fence(self, device: str) -> None:
        """Act as if another agent had connected as this device."""
        self._connections[device] += 1

    def _mark(self, key: tuple[str, str], epoch: bytes) -> int:
        return max((s for s, frame in self.frames[key].items() if frame.epoch == epoch), default=0)

    def _ack(self, device: str, stream: str, epoch: bytes) -> tunnel_pb2.ConnectResponse:
        sequence = self._mark((device, stream), epoch)
        return tunnel_pb2.ConnectResponse(ack=tunnel_pb2.Ack(stream=stream, epoch=epoch, sequence=sequence))

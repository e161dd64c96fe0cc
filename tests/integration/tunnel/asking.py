"""A device's end of a connection that asks."""

import asyncio
from typing import Any

import grpc
import numpy as np
from google.protobuf.duration_pb2 import Duration

from isthmus.tunnel.v1 import tunnel_pb2

STREAM = "profile/visits"
EPOCH = bytes(range(16))
HELLO = tunnel_pb2.ConnectRequest(
    hello=tunnel_pb2.Hello(streams=[tunnel_pb2.StreamEpoch(stream=STREAM, epoch=EPOCH)])
)
ROW = np.ones((1, 4), np.float32)


def ask(number: int, x: Any = ROW, *, model: str = "m", timeout_s: float = 30.0, **fields: Any) -> Any:
    """Return a request with one input of numbers."""
    timeout = Duration()
    timeout.FromNanoseconds(round(timeout_s * 1e9))
    row = tunnel_pb2.Tensor(name="x", datatype="FP32", shape=x.shape, content=x.astype("<f4").tobytes())
    return tunnel_pb2.ConnectRequest(
        request=tunnel_pb2.Request(
            **{"id": number, "model": model, "timeout": timeout, "inputs": [row], **fields}
        )
    )


def frame(sequence: int) -> tunnel_pb2.ConnectRequest:
    return tunnel_pb2.ConnectRequest(
        frame=tunnel_pb2.Frame(
            stream=STREAM,
            epoch=EPOCH,
            sequence=sequence,
            schema_id="profile@1.0/visits",
            event_time={"seconds": 1_700_000_000},
            codec=tunnel_pb2.Frame.CODEC_JSON,
            payload=b"{}",
        )
    )


class Asker:
    """A connection that is read all the time."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.acked = -1
        self.answers: dict[int, tunnel_pb2.Answer] = {}
        self._news = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while (response := await self.call.read()) is not grpc.aio.EOF:
                async with self._news:
                    if response.WhichOneof("kind") == "ack":
                        self.acked = response.ack.sequence
                    else:
                        self.answers[response.answer.id] = response.answer
                    self._news.notify_all()
        finally:
            async with self._news:
                self._news.notify_all()

    async def send(self, *messages: tunnel_pb2.ConnectRequest) -> None:
        for message in messages:
            await self.call.write(message)

    async def _until(self, condition: Any) -> None:
        async with asyncio.timeout(60), self._news:
            await self._news.wait_for(lambda: condition() or self._reading.done())
        if not condition():
            self._reading.result()
            raise AssertionError("the connection ended")

    async def answer(self, number: int) -> tunnel_pb2.Answer:
        """Wait for the answer to a request."""
        await self._until(lambda: number in self.answers)
        return self.answers[number]

    async def result(self, number: int) -> Any:
        """Wait for the first output."""
        answer = await self.answer(number)
        assert answer.failure_reason == "", answer
        output = answer.outputs[0]
        return np.frombuffer(output.content, "<f4").reshape(tuple(output.shape))

    async def until_acked(self, sequence: int) -> None:
        await self._until(lambda: self.acked >= sequence)

    async def end(self) -> None:
        """Give the connection up and wait until it is gone."""
        self.call.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def ended(self) -> grpc.aio.AioRpcError | None:
        """Wait until the connection ends; return its error."""
        async with asyncio.timeout(60):
            (outcome,) = await asyncio.gather(self._reading, return_exceptions=True)
        assert outcome is None or isinstance(outcome, grpc.aio.AioRpcError)
        return outcome


async def connect(served: Any, device: str = "phone-1", tenant: str = "acme") -> Asker:
    """Connect a device and say Hello."""
    asker = Asker(served.connect(served.identity(device, tenant)))
    await asker.send(HELLO)
    await asker.until_acked(0)
    return asker

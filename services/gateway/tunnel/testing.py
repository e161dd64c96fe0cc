"""Builders and fakes for tests of the tunnel."""

import asyncio
import errno
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc

from inference import open_inference_pb2 as pb
from inference import open_inference_pb2_grpc
from libs.common.errors import Error
from libs.common.identity import Identity, current_identity
from services.gateway.tunnel.domain.frame import Codec, Device, Frame, Outcome, Record, Stream
from services.gateway.tunnel.domain.requests import Answer, Fate, Prediction, Request, Tensor
from services.gateway.tunnel.store.disk import DiskFile, SystemDisk
from services.gateway.tunnel.store.log import Log

DEVICE = Device("acme", "phone-1")
EPOCH = bytes(range(16))
STREAM = Stream("profile/visits", EPOCH)


def frame(
    sequence: int,
    *,
    device: Device = DEVICE,
    stream: Stream = STREAM,
    payload: bytes = b'{"n":1}',
    tombstone_reason: str = "",
) -> Frame:
    """Return a frame that differs from its neighbours only in what is given."""
    task, _, name = stream.name.partition("/")
    return Frame(
        device=device,
        stream=stream,
        sequence=sequence,
        schema_id=f"{task}@1.0.0/{name}",
        event_time_ns=1_700_000_000_000_000_000 + sequence,
        codec=Codec.NONE if tombstone_reason else Codec.JSON,
        payload=b"" if tombstone_reason else payload,
        tombstone_reason=tombstone_reason,
    )


def frames(sequences: Iterable[int], *, device: Device = DEVICE, stream: Stream = STREAM) -> list[Frame]:
    """Return a frame for each sequence."""
    return [frame(sequence, device=device, stream=stream) for sequence in sequences]


class FaultyDisk:
    """A real disk with `room` bytes left, whose syncs fail while `sync_errno` is set.

    When the room ends, a write leaves what still fitted behind, as a full disk does. Truncating gives room
    back.
    """

    def __init__(self, room: int | None = None) -> None:
        self.room = room
        self.sync_errno = 0
        self.truncate_fails = False
        self._system = SystemDisk()

    def create(self, path: Path) -> DiskFile:
        """Create a file, if there is room at all."""
        if self.room is not None and self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return _FaultyFile(self, self._system.create(path), 0)

    def open(self, path: Path) -> DiskFile:
        """Open a file."""
        return _FaultyFile(self, self._system.open(path), path.stat().st_size)


class _FaultyFile:
    def __init__(self, disk: FaultyDisk, file: DiskFile, size: int) -> None:
        self._disk = disk
        self._file = file
        self._size = size

    def write_at(self, position: int, data: bytes) -> None:
        growth = max(0, position + len(data) - self._size)
        room = self._disk.room
        if room is not None and growth > room:
            fits = len(data) - (growth - room)
            self._disk.room = 0
            self._file.write_at(position, data[:fits])
            self._size = max(self._size, position + fits)
            raise OSError(errno.ENOSPC, "No space left on device")
        if room is not None:
            self._disk.room = room - growth
        self._file.write_at(position, data)
        self._size += growth

    def truncate(self, size: int) -> None:
        if self._disk.truncate_fails:
            raise OSError(errno.EIO, "Input/output error")
        if self._disk.room is not None:
            self._disk.room += self._size - size
        self._file.truncate(size)
        self._size = size

    def sync(self) -> None:
        if self._disk.sync_errno:
            raise OSError(self._disk.sync_errno, "sync failed")
        self._file.sync()

    def close(self) -> None:
        self._file.close()


async def everything(log: Log) -> list[Record]:
    """Return all records of a log, partition by partition."""
    found: list[Record] = []
    for partition, bounds in enumerate(log.bounds()):
        offset = bounds.earliest
        while offset < bounds.end:
            part = await log.read(partition, offset, 1 << 20)
            found += part.records
            offset = part.next_offset
    return found


class Recorder:
    """An `Observer` that remembers."""

    def __init__(self) -> None:
        self.counts: dict[tuple[Outcome, str], int] = {}
        self.refusals: list[str] = []
        self.acks = 0
        self.open = 0
        self.reasons: list[str] = []
        self.fates: list[Fate] = []
        self.requests = 0

    def frames(self, outcome: Outcome, tombstones: int, others: int) -> None:
        """Count by outcome and kind."""
        for kind, count in (("tombstone", tombstones), ("data", others)):
            if count:
                self.counts[outcome, kind] = self.counts.get((outcome, kind), 0) + count

    def refused(self, reason: str) -> None:
        """Remember why frames were refused."""
        self.refusals.append(reason)

    def acked(self, seconds: float) -> None:
        """Count batches."""
        self.acks += 1

    def connections(self, count: int) -> None:
        """Remember how many are open."""
        self.open = count

    def ended(self, reason: str) -> None:
        """Remember why connections ended."""
        self.reasons.append(reason)

    def asked(self, fate: Fate, seconds: float) -> None:
        """Remember how requests ended."""
        self.fates.append(fate)

    def asking(self, count: int) -> None:
        """Remember how many requests are open."""
        self.requests = count


ROW = Tensor("x", "FP32", (1, 2), bytes(8))


def request(number: int, *, model: str = "ranker", timeout_s: float = 1.0, **fields: Any) -> Request:
    """Return a request with one row of two numbers."""
    return Request(number, model, timeout_s, **{"inputs": (ROW,), **fields})


def predicted(number: int, version: str = "v1") -> Answer:
    """Return what `FakeModels` makes the device hear."""
    return Answer(number, Prediction(version, (ROW,)))


class FakeModels:
    """`Models` that answer with their inputs; while `gate` is clear they keep everybody waiting.

    Attributes:
        asked: whom and what they were asked, in order.
        cancelled: ids of requests that were given up.
        failure: raised in place of an answer.
    """

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[tuple[Device, Request, float]] = []
        self.cancelled: list[int] = []
        self.failure: Exception | None = None

    async def ask(self, device: Device, request: Request, timeout_s: float) -> Prediction:
        """See `Models`."""
        self.asked.append((device, request, timeout_s))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.id)
            raise
        if self.failure is not None:
            raise self.failure
        return Prediction("v1", request.inputs)


class FakeServing(open_inference_pb2_grpc.GRPCInferenceServiceServicer):
    """Serving on gRPC that answers with its inputs; while `gate` is clear it keeps everybody waiting.

    Attributes:
        callers: who asked, in order.
        traces: the `traceparent` of each call, "" where there was none.
        cancelled: how many calls were given up by the caller.
        respond: makes the answer.
        failure: raised in place of an answer.
    """

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.callers: list[Identity] = []
        self.traces: list[str] = []
        self.cancelled = 0
        self.respond: Callable[[pb.ModelInferRequest], pb.ModelInferResponse] = _echo
        self.failure: Error | None = None

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, server)

    async def ModelInfer(  # noqa: N802
        self, request: pb.ModelInferRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ModelInferResponse:
        """Answer."""
        self.callers.append(current_identity())
        sent = dict(context.invocation_metadata() or ())
        self.traces.append(str(sent.get("traceparent", "")))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure
        return self.respond(request)


def _echo(request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    response = pb.ModelInferResponse(
        model_name=request.model_name, model_version="v1", raw_output_contents=request.raw_input_contents
    )
    for tensor in request.inputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return response

"""How many frames the tunnel's device end has in flight when the cloud acknowledges nothing."""

from typing import Any
from unittest.mock import Mock

import pytest

from services.device_agent import tunnelling
from services.device_agent.store.frames import Frame
from services.device_agent.tunnelling import Tunneller, _Sending

CLOUD_READS_BYTES = 1024 * 1024


class Backlog:
    """A database whose streams never run out of frames of one size."""

    async def run(self, job: Any, *, durable: bool = True) -> Any:
        return job(None)


class Call:
    """The cloud's end: takes everything, acknowledges nothing."""

    def __init__(self) -> None:
        self.frames: list[Any] = []

    async def write(self, request: Any) -> None:
        self.frames.append(request.frame)


def tunneller() -> Tunneller:
    made: Any = Mock()
    return Tunneller(
        Backlog(),
        made,
        made,
        made,
        made,
        made,
        1.0,
        made,
        requests=made,
        asks=lambda: False,
    )


@pytest.mark.parametrize("streams", [1, 2, 7, 64])
@pytest.mark.parametrize("size", [1, 300, 7_000, 250_000])
async def test_frames_in_flight_leave_the_cloud_reading(
    monkeypatch: pytest.MonkeyPatch, streams: int, size: int
) -> None:
    def reader(stream: str, after: int, count: int, max_bytes: int) -> Any:
        wanted = min(count, max(1, max_bytes // size))
        return lambda _: [
            Frame(stream, after + number, "s@1/out", 0.0, bytes(size), "") for number in range(1, wanted + 1)
        ]

    monkeypatch.setattr(tunnelling, "_frame_reader", reader)
    sending = {f"s/{number}": _Sending(bytes(16), sent=0, acked=0) for number in range(streams)}
    call = Call()
    sender = tunneller()
    while await sender._send_some(call, sending):  # type: ignore[arg-type]
        pass
    assert {frame.stream for frame in call.frames} == set(sending), "none waits for another's backlog"
    if size + 256 <= 512 * 1024 // streams:
        assert sum(len(frame.payload) + 256 for frame in call.frames) < CLOUD_READS_BYTES
    else:  # one each, since a frame can't be sent by halves
        assert len(call.frames) == streams
    for stream in sending:
        sequences = [frame.sequence for frame in call.frames if frame.stream == stream]
        assert sequences == list(range(1, len(sequences) + 1))

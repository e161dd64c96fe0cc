"""The tunnel over real gRPC: devices connect, people export."""

from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_health.v1 import health_pb2, health_pb2_grpc

from isthmus.tunnel.v1 import tunnel_pb2, tunnel_pb2_grpc
from libs.common.errors import Conflict, Exhausted, Forbidden, Invalid, NotFound, Unauthenticated, Unavailable
from libs.common.identity import Identity
from libs.common.status import error_from_rpc
from libs.common.testing import eventually

STREAM = "profile/visits"
EPOCH = bytes(range(16))
HELLO = tunnel_pb2.ConnectRequest(
    hello=tunnel_pb2.Hello(streams=[tunnel_pb2.StreamEpoch(stream=STREAM, epoch=EPOCH)])
)


def frame(sequence: int, payload: bytes = b'{"n": 1}', **fields: Any) -> tunnel_pb2.ConnectRequest:
    return tunnel_pb2.ConnectRequest(
        frame=tunnel_pb2.Frame(
            **{
                "stream": STREAM,
                "epoch": EPOCH,
                "sequence": sequence,
                "schema_id": "profile@1.0/visits",
                "event_time": Timestamp(seconds=1_700_000_000, nanos=sequence),
                "codec": tunnel_pb2.Frame.CODEC_JSON,
                "payload": payload,
                **fields,
            }
        )
    )


async def acked(call: Any, sequence: int) -> list[int]:
    """Read acks until one for `sequence` comes; return all that came."""
    heard: list[int] = []
    while not heard or heard[-1] != sequence:
        response = await call.read()
        assert response is not grpc.aio.EOF, "the call ended before the ack came"
        assert (response.ack.stream, response.ack.epoch) == (STREAM, EPOCH)
        heard.append(response.ack.sequence)
    return heard


async def error_of(call: Any) -> Exception:
    """Read to the end of a call that fails; return its error."""

    async def read_on() -> None:
        while await call.read() is not grpc.aio.EOF:
            pass

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_on()
    return error_from_rpc(caught.value)


async def exported(served: Any, **fields: Any) -> list[tunnel_pb2.ExportResponse]:
    request = tunnel_pb2.ExportRequest(**{"parent": "tenants/acme", **fields})
    return [response async for response in served.export(request, "tunnel:read")]


async def test_frames_go_in_and_come_out(served: Any) -> None:
    call = served.connect()
    await call.write(HELLO)
    assert await acked(call, 0) == [0]
    given = [frame(1), frame(2, '{"größe": 2}'.encode()), frame(3, b"", tombstone_reason="UNDECLARED_FIELD")]
    for message in given:
        await call.write(message)
    await call.done_writing()
    await acked(call, 3)
    assert await call.read() is grpc.aio.EOF
    assert await call.code() == grpc.StatusCode.OK
    pages = await exported(served, include_tombstones=True)
    records = [record for page in pages for record in page.records]
    assert [record.frame for record in records] == [message.frame for message in given]
    assert {record.device for record in records} == {"tenants/acme/devices/phone-1"}
    assert all(record.receive_time.seconds > 1_700_000_000 for record in records)
    assert [r.frame.sequence for page in await exported(served) for r in page.records] == [1, 2]


async def test_a_second_connection_resumes(served: Any) -> None:
    call = served.connect()
    await call.write(HELLO)
    for sequence in (1, 2):
        await call.write(frame(sequence))
    await acked(call, 2)
    call.cancel()
    call = served.connect()
    await call.write(HELLO)
    assert await acked(call, 2) == [2]
    await call.write(frame(2))
    await call.write(frame(3))
    await acked(call, 3)
    assert [r.frame.sequence for page in await exported(served) for r in page.records] == [1, 2, 3]


async def test_the_newest_connection_fences_the_older(served: Any) -> None:
    older = served.connect()
    await older.write(HELLO)
    await acked(older, 0)
    newer = served.connect()
    await newer.write(HELLO)
    await acked(newer, 0)
    error = await error_of(older)
    assert isinstance(error, Conflict)
    assert await older.code() == grpc.StatusCode.ABORTED
    assert error.reason == "FENCED"
    await newer.write(frame(1))
    await acked(newer, 1)


async def test_a_gap(served: Any) -> None:
    call = served.connect()
    await call.write(HELLO)
    await call.write(frame(1))
    await acked(call, 1)
    await call.write(frame(3))
    assert await acked(call, 1) == [1]
    for sequence in (2, 3):
        await call.write(frame(sequence))
    await acked(call, 3)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (tunnel_pb2.ConnectRequest(), "kind: neither hello, frame nor request is set"),
        (frame(1, epoch=b""), "differs from the one"),
        (frame(1, stream="profile/vists"), "did you mean 'profile/visits'"),
        (HELLO, "comes once"),
    ],
)
async def test_bad_messages_are_told(served: Any, message: tunnel_pb2.ConnectRequest, told: str) -> None:
    call = served.connect()
    await call.write(HELLO)
    await acked(call, 0)
    await call.write(message)
    error = await error_of(call)
    assert isinstance(error, Invalid)
    assert told in error.message


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (frame(1, codec=7), "BAD_CODEC"),
        (frame(1, event_time=Timestamp(seconds=1, nanos=-1)), "BAD_EVENT_TIME"),
        (frame(1, event_time=Timestamp(seconds=2**62)), "BAD_EVENT_TIME"),
        (frame(1, event_time=None), "BAD_EVENT_TIME"),
        (frame(1, payload=bytes(256 * 1024 + 1)), "FRAME_TOO_LARGE"),
    ],
)
async def test_malformed_frames_do_not_stall_the_stream(
    served: Any, message: tunnel_pb2.ConnectRequest, reason: str
) -> None:
    call = served.connect()
    await call.write(HELLO)
    await call.write(message)
    await call.write(frame(2))
    await acked(call, 2)
    pages = await exported(served, include_tombstones=True)
    frames = [record.frame for page in pages for record in page.records]
    assert [(f.sequence, f.tombstone_reason) for f in frames] == [(1, reason), (2, "")]
    refused = served.telemetry.registry.get_sample_value(
        "isthmus_tunnel_frames_refused_total", {"reason": reason}
    )
    assert refused == 1


async def test_only_devices_connect(served: Any) -> None:
    user = Identity("acme", "tenants/acme/keys/k", "user", frozenset({"*"}), "gateway")
    error = await error_of(served.connect(user))
    assert isinstance(error, Forbidden)


async def test_nobody_gets_in_without_an_identity(served: Any) -> None:
    call = tunnel_pb2_grpc.TunnelServiceStub(served.channel).Connect()
    assert isinstance(await error_of(call), Unauthenticated)


async def test_export_needs_its_scope_and_its_tenant(served: Any) -> None:
    request = tunnel_pb2.ExportRequest(parent="tenants/acme")
    assert isinstance(await error_of(served.export(request, "tasks:read")), Forbidden)
    assert isinstance(await error_of(served.export(request, "tunnel:read", tenant="rival")), NotFound)
    device = Identity("acme", "tenants/acme/devices/phone-1", "device", frozenset(), "gateway")
    stub = tunnel_pb2_grpc.ExportServiceStub(served.channel)
    assert isinstance(await error_of(stub.Export(request, metadata=served.metadata(device))), Forbidden)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"parent": ""}, "parent"),
        ({"parent": "acme"}, "tenants/{tenant}"),
        ({"device": "phone-1"}, "device: 'phone-1' is not of the form"),
        ({"device": "tenants/rival/devices/x"}, "isn't in tenants/acme"),
        ({"stream": "a/b/c"}, "stream"),
        ({"stream": "Task"}, "is not an id"),
        ({"position": "x"}, "position: not one"),
    ],
)
async def test_bad_export_requests(served: Any, fields: dict[str, Any], told: str) -> None:
    request = tunnel_pb2.ExportRequest(**{"parent": "tenants/acme", **fields})
    error = await error_of(served.export(request, "tunnel:read"))
    assert isinstance(error, Invalid)
    assert told in error.message


async def test_an_export_follows_and_resumes(served: Any) -> None:
    call = served.connect()
    await call.write(HELLO)
    await call.write(frame(1))
    await acked(call, 1)
    follower = served.export(tunnel_pb2.ExportRequest(parent="tenants/acme", follow=True), "tunnel:read")
    page = await follower.read()
    assert [record.frame.sequence for record in page.records] == [1]
    await call.write(frame(2))
    page = await follower.read()
    while not page.records:
        page = await follower.read()
    assert [record.frame.sequence for record in page.records] == [2]
    follower.cancel()
    await call.write(frame(3))
    await acked(call, 3)
    rest = await exported(served, position=page.position)
    assert [record.frame.sequence for page in rest for record in page.records] == [3]


async def test_a_full_disk_is_told_and_heals(served: Any) -> None:
    call = served.connect()
    await call.write(HELLO)
    await call.write(frame(1))
    await acked(call, 1)
    served.disk.room = 10
    await call.write(frame(2))
    error = await error_of(call)
    assert isinstance(error, Exhausted)
    assert (error.reason, error.retry_after_s) == ("DISK_FULL", 5.0)
    served.disk.room = None
    call = served.connect()
    await call.write(HELLO)
    assert await acked(call, 1) == [1]
    await call.write(frame(2))
    await acked(call, 2)


async def test_health_tells_of_a_log_that_cannot_write(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    health = health_pb2_grpc.HealthStub(served.channel)
    states: list[int] = []

    async def watch(service: str) -> None:
        call = health.Watch(health_pb2.HealthCheckRequest(service=service))
        while len(states) < 3:
            states.append((await call.read()).status)
            if states == [1]:
                served.disk.room = 0
                monkeypatch.setattr(type(served.log), "probe", _no_probe)
                device = served.connect()
                await device.write(HELLO)
                await device.write(frame(1))
                await error_of(device)
            if states == [1, 2]:
                served.disk.room = None
                monkeypatch.undo()
        call.cancel()

    await watch("isthmus.tunnel.v1.TunnelService")
    assert states == [1, 2, 1]


async def _no_probe(self: Any) -> None:
    """Stand for a probe that finds the disk still full: the real one looks at the real disk."""


async def test_metrics(served: Any) -> None:
    call = served.connect()
    await call.write(HELLO)
    for message in (frame(1), frame(1), frame(3), frame(2, b"", tombstone_reason="DROPPED")):
        await call.write(message)
    await acked(call, 2)

    def value(name: str, **labels: str) -> float:
        found: float | None = served.telemetry.registry.get_sample_value(name, labels)
        assert found is not None, name
        return found

    assert value("isthmus_tunnel_connections") == 1
    await call.done_writing()
    while await call.read() is not grpc.aio.EOF:
        pass
    await eventually(lambda: value("isthmus_tunnel_connections") == 0)

    def frames(result: str, kind: str) -> float:
        return value("isthmus_tunnel_frames_total", result=result, kind=kind)

    assert frames("stored", "data") == 1
    assert frames("stored", "tombstone") == 1
    assert frames("duplicate", "data") == 1
    assert frames("gap", "data") == 1
    assert value("isthmus_tunnel_connections_ended_total", reason="closed") == 1
    assert value("isthmus_tunnel_log_bytes") > 100
    assert value("isthmus_tunnel_log_quarantined_segments") == 0
    assert value("isthmus_tunnel_log_fault") == 0
    assert value("isthmus_tunnel_commit_seconds_count") >= 1
    assert value("isthmus_tunnel_ack_seconds_count") >= 1


async def test_a_shutdown_ends_connections_with_unavailable(served: Any) -> None:
    call = served.connect()
    await call.write(HELLO)
    await call.write(frame(1))
    await acked(call, 1)
    await served.server.stop(0.2)
    assert isinstance(await error_of(call), Unavailable)

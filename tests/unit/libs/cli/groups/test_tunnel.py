import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.tunnel.v1 import tunnel_pb2
from libs.cli.groups.tunnel import record_line

FRAME = tunnel_pb2.Frame(
    stream="clicks/count",
    epoch=b"\x01" * 16,
    sequence=7,
    schema_id="clicks@1.0.0/count",
    event_time=Timestamp(seconds=1_700_000_000),
    codec=tunnel_pb2.Frame.CODEC_JSON,
    payload=b'{"count":10}',
)


def line(frame: tunnel_pb2.Frame) -> dict[str, object]:
    record = tunnel_pb2.Record(
        device="tenants/t/devices/d1", frame=frame, receive_time=Timestamp(seconds=1_700_000_060)
    )
    return record_line(record)


def test_a_frame_is_a_line() -> None:
    assert line(FRAME) == {
        "device": "d1",
        "stream": "clicks/count",
        "epoch": "01" * 16,
        "sequence": 7,
        "schema": "clicks@1.0.0/count",
        "event_time": "2023-11-14T22:13:20+00:00",
        "receive_time": "2023-11-14T22:14:20+00:00",
        "payload": {"count": 10},
    }


def test_a_tombstone_that_knows_no_time_has_none() -> None:
    found = line(tunnel_pb2.Frame(stream="clicks/count", sequence=8, tombstone_reason="FRAME_TOO_LARGE"))
    assert found["event_time"] is None
    assert found["tombstone"] == "FRAME_TOO_LARGE"
    assert "payload" not in found


@pytest.mark.parametrize(("codec", "payload"), [(1, b"\xff"), (9, b"{}")])
def test_what_is_not_json_or_of_a_newer_codec_is_base64(codec: int, payload: bytes) -> None:
    frame = tunnel_pb2.Frame()
    frame.CopyFrom(FRAME)
    frame.codec = tunnel_pb2.Frame.Codec.ValueType(codec)
    frame.payload = payload
    assert line(frame)["payload_base64"] == {b"\xff": "/w==", b"{}": "e30="}[payload]

"""Both ways between messages and domain."""

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from isthmus.tunnel.v1 import tunnel_pb2
from libs.common.errors import Forbidden, Invalid, NotFound
from libs.common.identity import Identity, Kind
from services.gateway.tunnel import convert
from services.gateway.tunnel.access import ACCESS
from services.gateway.tunnel.domain.checks import Limits, check_content
from services.gateway.tunnel.domain.export import Page, Selection
from services.gateway.tunnel.domain.frame import Codec, Device, Frame, Record, Stream
from services.gateway.tunnel.domain.session import Ack, Hello
from services.gateway.tunnel.testing import DEVICE, EPOCH, STREAM, frame

FRAMES = st.builds(
    Frame,
    device=st.just(DEVICE),
    stream=st.builds(Stream, st.text(max_size=20), st.binary(max_size=16)),
    sequence=st.integers(0, 2**64 - 1),
    schema_id=st.text(max_size=20),
    event_time_ns=st.none() | st.integers(-62_135_596_800 * 10**9, 253_402_300_799 * 10**9),
    codec=st.sampled_from([Codec.NONE, Codec.JSON]),
    payload=st.binary(max_size=50),
    tombstone_reason=st.text(max_size=10),
)


def identity(principal: str, tenant: str = "acme", kind: Kind = "device") -> Identity:
    return Identity(tenant, principal, kind, frozenset(), "gateway")


@given(FRAMES)
def test_a_frame_there_and_back(original: Frame) -> None:
    message = tunnel_pb2.Frame.FromString(convert.to_frame(original).SerializeToString())
    assert convert.from_frame(message, DEVICE) == original


def test_a_hello() -> None:
    streams = [tunnel_pb2.StreamEpoch(stream=STREAM.name, epoch=EPOCH)]
    request = tunnel_pb2.ConnectRequest(hello=tunnel_pb2.Hello(streams=streams))
    assert convert.from_connect_request(request, DEVICE) == Hello((STREAM,))


def test_an_ack() -> None:
    ack = convert.to_connect_response(Ack(STREAM, 7)).ack
    assert (ack.stream, ack.epoch, ack.sequence) == (STREAM.name, EPOCH, 7)


def test_an_empty_message() -> None:
    with pytest.raises(Invalid, match="neither hello, frame nor request"):
        convert.from_connect_request(tunnel_pb2.ConnectRequest(), DEVICE)


@pytest.mark.parametrize("nanos", [-1, 10**9])
def test_a_malformed_time(nanos: int) -> None:
    message = tunnel_pb2.Frame(event_time=Timestamp(seconds=1, nanos=nanos))
    malformed = convert.from_frame(message, DEVICE)
    with pytest.raises(Invalid, match="within the years 1 to 9999"):
        check_content(malformed, Limits())


def test_a_record() -> None:
    page = convert.to_export_response(Page((Record(9, 1_700_000_000_123, frame(4)),), "here"))
    (record,) = page.records
    assert page.position == "here"
    assert record.device == "tenants/acme/devices/phone-1"
    assert record.frame == convert.to_frame(frame(4))
    assert record.receive_time.ToJsonString() == "2023-11-14T22:13:20.123Z"


def test_whose_tunnel_it_is() -> None:
    assert convert.device_of(identity("tenants/acme/devices/phone-1")) == Device("acme", "phone-1")


@pytest.mark.parametrize(
    "caller",
    [
        identity("anonymous", tenant=""),
        identity("tenants/acme/devices/phone-1", tenant="rival"),
        identity("tenants/acme/devices/phone-1", kind="user"),
        identity("tenants/acme/keys/phone-1"),
    ],
)
def test_who_has_no_tunnel(caller: Identity) -> None:
    with pytest.raises(Forbidden, match="enrol it first"):
        convert.device_of(caller)


def test_export_requests() -> None:
    user = identity("tenants/acme/keys/k", kind="user")

    def convert_it(**fields: object) -> Selection:
        return convert.from_export_request(tunnel_pb2.ExportRequest(**fields), user)  # type: ignore[arg-type]

    assert convert_it(parent="tenants/acme") == Selection("acme")
    assert convert_it(
        parent="tenants/acme",
        stream="task/s",
        device="tenants/acme/devices/d",
        include_tombstones=True,
    ) == Selection("acme", "task/s", "d", tombstones=True)
    assert convert_it(parent="tenants/acme", stream="task") == Selection("acme", "task")
    with pytest.raises(NotFound):
        convert_it(parent="tenants/rival")


def test_every_method_has_an_access_rule() -> None:
    methods = {
        f"/{service.full_name}/{method.name}"
        for service in tunnel_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert methods == set(ACCESS)


def test_a_stream_at_fault_is_named_once() -> None:
    request = tunnel_pb2.ExportRequest(parent="tenants/t", stream="a/B")
    with pytest.raises(Invalid, match=r"^stream: 'B' is not an id"):
        convert.from_export_request(request, Identity("t", "p", "user", frozenset(), "gateway"))

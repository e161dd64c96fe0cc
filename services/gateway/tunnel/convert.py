"""Between the tunnel's messages and its domain."""

from collections.abc import AsyncIterator

from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.tunnel.v1 import tunnel_pb2
from libs.common.access import require_tenant
from libs.common.errors import Forbidden, Invalid
from libs.common.identity import Identity
from libs.common.names import DeviceName, TenantName, check_id, shown
from services.gateway.tunnel.convert_requests import from_request, to_answer
from services.gateway.tunnel.domain.checks import check_stream_name
from services.gateway.tunnel.domain.export import Page, Selection
from services.gateway.tunnel.domain.frame import Codec, Device, Frame, Record, Stream
from services.gateway.tunnel.domain.requests import Answer
from services.gateway.tunnel.domain.session import Hello, Message, Reply

_NS = 10**9
_NO_TIME_NS = 2**80


def device_of(identity: Identity) -> Device:
    """Return whose tunnel a caller may use: its own.

    Raises:
        Forbidden: when the caller isn't an enrolled device.
    """
    try:
        name = DeviceName.parse(identity.principal, "identity")
    except Invalid:
        name = None
    if identity.kind != "device" or name is None or name.tenant != identity.tenant:
        raise Forbidden(
            f"the tunnel is for enrolled devices, and {shown(identity.principal)} is none; enrol it first",
            reason="NOT_A_DEVICE",
        )
    return Device(name.tenant, name.device)


async def from_requests(
    requests: AsyncIterator[tunnel_pb2.ConnectRequest], device: Device
) -> AsyncIterator[Message]:
    """Convert a device's messages as they come; raises Invalid for one that isn't whole."""
    async for request in requests:
        yield from_connect_request(request, device)


def from_connect_request(request: tunnel_pb2.ConnectRequest, device: Device) -> Message:
    """Convert one message of a device; raises Invalid when it isn't whole."""
    kind = request.WhichOneof("kind")
    if kind == "hello":
        return Hello(tuple(Stream(stream.stream, stream.epoch) for stream in request.hello.streams))
    if kind == "frame":
        return from_frame(request.frame, device)
    if kind == "request":
        return from_request(request.request)
    raise Invalid(
        "kind: neither hello, frame nor request is set", reason="EMPTY_MESSAGE", metadata={"field": "kind"}
    )


def from_frame(frame: tunnel_pb2.Frame, device: Device) -> Frame:
    """Convert a frame of `device`, whatever it says: the domain checks it."""
    try:
        codec = Codec(frame.codec)
    except ValueError:
        codec = Codec.UNKNOWN
    # A malformed one comes out as a time that no frame may have.
    time = frame.event_time
    time_ns = time.seconds * _NS + time.nanos if 0 <= time.nanos < _NS else _NO_TIME_NS
    return Frame(
        device=device,
        stream=Stream(frame.stream, frame.epoch),
        sequence=frame.sequence,
        schema_id=frame.schema_id,
        event_time_ns=time_ns if frame.HasField("event_time") else None,
        codec=codec,
        payload=frame.payload,
        tombstone_reason=frame.tombstone_reason,
    )


def to_frame(frame: Frame) -> tunnel_pb2.Frame:
    """Convert a frame; whose it is isn't in the message."""
    time = None
    if frame.event_time_ns is not None:
        seconds, nanos = divmod(frame.event_time_ns, _NS)
        time = Timestamp(seconds=seconds, nanos=nanos)
    return tunnel_pb2.Frame(
        stream=frame.stream.name,
        epoch=frame.stream.epoch,
        sequence=frame.sequence,
        schema_id=frame.schema_id,
        event_time=time,
        codec=tunnel_pb2.Frame.Codec.ValueType(int(frame.codec)),
        payload=frame.payload,
        tombstone_reason=frame.tombstone_reason,
    )


def to_connect_response(reply: Reply) -> tunnel_pb2.ConnectResponse:
    """Convert an ack or an answer."""
    if isinstance(reply, Answer):
        return tunnel_pb2.ConnectResponse(answer=to_answer(reply))
    return tunnel_pb2.ConnectResponse(
        ack=tunnel_pb2.Ack(stream=reply.stream.name, epoch=reply.stream.epoch, sequence=reply.sequence)
    )


def from_export_request(request: tunnel_pb2.ExportRequest, identity: Identity) -> Selection:
    """Return what is to be exported.

    Raises:
        Invalid: naming the field.
        NotFound: for another tenant than the caller's.
    """
    tenant = TenantName.parse(request.parent, "parent").tenant
    require_tenant(identity, tenant)
    device = ""
    if request.device:
        name = DeviceName.parse(request.device, "device")
        if name.tenant != tenant:
            raise Invalid(
                f"device: {shown(request.device)} isn't in {request.parent}",
                reason="BAD_NAME",
                metadata={"field": "device"},
            )
        device = name.device
    if "/" in request.stream:
        check_stream_name(request.stream, "stream")
    elif request.stream:
        check_id(request.stream, "stream: task")
    return Selection(tenant, request.stream, device, request.include_tombstones)


def to_record(record: Record) -> tunnel_pb2.Record:
    """Convert a logged frame."""
    seconds, ms = divmod(record.received_ms, 1000)
    device = record.frame.device
    return tunnel_pb2.Record(
        device=str(DeviceName(device.tenant, device.device)),
        frame=to_frame(record.frame),
        receive_time=Timestamp(seconds=seconds, nanos=ms * 1_000_000),
    )


def to_export_response(page: Page) -> tunnel_pb2.ExportResponse:
    """Convert a page."""
    return tunnel_pb2.ExportResponse(
        records=[to_record(record) for record in page.records], position=page.position
    )

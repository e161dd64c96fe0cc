"""What a device's messages must look like, whatever state the tunnel is in."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from libs.common.errors import Invalid
from libs.common.names import check_id, check_version, shown
from services.gateway.tunnel.domain.frame import EPOCH_BYTES, Codec, Frame, Stream

_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,62}", re.ASCII)
_LAST_SEQUENCE = 2**63 - 1
# The years 1 to 9999, which is what a Timestamp may say.
_FIRST_NS = -62_135_596_800 * 10**9
_LAST_NS = 253_402_300_800 * 10**9 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may bring."""

    frame_bytes: int = 256 * 1024
    """Largest payload."""
    streams: int = 64
    """Streams of a device."""
    connection_bytes: int = 1024 * 1024
    """Frames of a connection that were read and aren't durable yet; beyond, its reading pauses."""
    connections: int = 10_000
    """Connections of this process; more are refused."""
    hello_s: float = 10.0
    """Time in which the Hello must come."""


def check_stream_name(name: str, field: str) -> str:
    """Return `name` if it is "<task>/<stream>"; raise Invalid naming `field` otherwise."""
    task, slash, stream = name.partition("/")
    if not slash:
        raise Invalid(f'{field}: {shown(name)} is not of the form "<task>/<stream>"', reason="BAD_STREAM")
    check_id(task, f"{field}: task")
    check_id(stream, field if field.endswith("stream") else f"{field}: stream")
    return name


def check_hello(streams: Sequence[Stream], limits: Limits) -> None:
    """Refuse a Hello that lists too many streams, one twice or a malformed one; raises Invalid."""
    if len(streams) > limits.streams:
        raise Invalid(
            f"hello.streams: {len(streams)} streams, and a device may have {limits.streams}",
            reason="TOO_MANY_STREAMS",
        )
    names: set[str] = set()
    for number, stream in enumerate(streams):
        field = f"hello.streams[{number}]"
        check_stream_name(stream.name, f"{field}.stream")
        if len(stream.epoch) != EPOCH_BYTES:
            raise Invalid(
                f"{field}.epoch: has {len(stream.epoch)} bytes; it must have {EPOCH_BYTES}",
                reason="BAD_EPOCH",
            )
        if stream.name in names:
            raise Invalid(
                f"{field}.stream: {shown(stream.name)} is listed twice; a stream has one epoch at a time",
                reason="STREAM_TWICE",
            )
        names.add(stream.name)


def check_key(frame: Frame) -> None:
    """Refuse a frame that has no place in its stream; raises Invalid."""
    if not 1 <= frame.sequence <= _LAST_SEQUENCE:
        raise Invalid(
            f"frame.sequence: {frame.sequence} in {shown(frame.stream.name)}; sequences start at 1",
            reason="BAD_SEQUENCE",
        )


def check_content(frame: Frame, limits: Limits) -> None:
    """Refuse a frame for what is in it; raises Invalid with a reason that fits a tombstone."""
    if len(frame.payload) > limits.frame_bytes:
        raise Invalid(
            f"frame.payload: {len(frame.payload)} bytes in {shown(frame.stream.name)}; at most "
            f"{limits.frame_bytes} are allowed",
            reason="FRAME_TOO_LARGE",
        )
    time_ns = frame.event_time_ns
    if time_ns is not None and not _FIRST_NS <= time_ns <= _LAST_NS:
        raise Invalid("frame.event_time: must lie within the years 1 to 9999", reason="BAD_EVENT_TIME")
    _check_schema(frame)
    if frame.codec is Codec.UNKNOWN:
        raise Invalid("frame.codec: unknown; use CODEC_JSON", reason="BAD_CODEC")
    if frame.tombstone:
        if not _REASON.fullmatch(frame.tombstone_reason) or frame.payload:
            raise Invalid(
                f"frame.tombstone_reason: {shown(frame.tombstone_reason)} with {len(frame.payload)} bytes of "
                "payload; a tombstone has an UPPER_SNAKE reason of at most 63 characters, and no payload",
                reason="BAD_TOMBSTONE",
            )
    elif frame.codec is Codec.NONE:
        raise Invalid("frame.codec: not given; use CODEC_JSON", reason="BAD_CODEC")
    elif time_ns is None:
        raise Invalid("frame.event_time: not given", reason="BAD_EVENT_TIME")


def _check_schema(frame: Frame) -> None:
    """Refuse a schema of another stream; a tombstone may come without one."""
    if frame.tombstone and not frame.schema_id:
        return
    head, _, stream = frame.schema_id.partition("/")
    task, at, version = head.partition("@")
    if not at or f"{task}/{stream}" != frame.stream.name:
        raise Invalid(
            f'frame.schema_id: {shown(frame.schema_id)} is not of the form "<task>@<version>/<stream>" '
            f"with the task and stream of {shown(frame.stream.name)}",
            reason="BAD_SCHEMA_ID",
        )
    check_version(version, "frame.schema_id: version")

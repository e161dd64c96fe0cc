"""What a device's messages must look like, whatever state the tunnel is in."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from libs.common.errors import Invalid
from libs.common.names import check_id, check_version, shown
from services.gateway.tunnel.domain.frame import EPOCH_BYTES, Codec, Frame, Stream

_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,62}", re.ASCII)
_LAST_SEQUENCE = 2**63 - 1
_YEAR_2200_NS = 7_258_118_400 * 10**9


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
    check_id(stream, f"{field}: stream")
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


def check_frame(frame: Frame, limits: Limits) -> None:
    """Refuse a malformed frame of a stream that the Hello listed; raises Invalid."""
    if len(frame.payload) > limits.frame_bytes:
        raise Invalid(
            f"frame.payload: {len(frame.payload)} bytes in {shown(frame.stream.name)}; at most "
            f"{limits.frame_bytes} are allowed: send less, or a tombstone in its place",
            reason="FRAME_TOO_LARGE",
        )
    if not 1 <= frame.sequence <= _LAST_SEQUENCE:
        raise Invalid(
            f"frame.sequence: {frame.sequence} in {shown(frame.stream.name)}; sequences start at 1",
            reason="BAD_SEQUENCE",
        )
    _check_schema(frame)
    if not 0 <= frame.event_time_ns <= _YEAR_2200_NS:
        raise Invalid("frame.event_time: must lie between 1970 and 2200", reason="BAD_EVENT_TIME")
    if frame.tombstone:
        if not _REASON.fullmatch(frame.tombstone_reason):
            raise Invalid(
                f"frame.tombstone_reason: {shown(frame.tombstone_reason)} is not UPPER_SNAKE of at most 63 "
                "characters",
                reason="BAD_TOMBSTONE",
            )
        if frame.payload:
            raise Invalid(
                f"frame.payload: a tombstone has none, and this one has {len(frame.payload)} bytes",
                reason="BAD_TOMBSTONE",
            )
    elif frame.codec is Codec.NONE:
        raise Invalid("frame.codec: not given; use CODEC_JSON", reason="BAD_CODEC")
    elif frame.event_time_ns == 0:
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

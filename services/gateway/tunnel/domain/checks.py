"""What a device's messages must look like, whatever state the tunnel is in."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from libs.common.errors import Invalid
from libs.common.names import check_id, check_version, shown
from libs.common.suggest import did_you_mean
from services.gateway.tunnel.domain.frame import EPOCH_BYTES, Codec, Frame, Stream
from services.gateway.tunnel.domain.requests import Prediction, Request, Tensor

_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,62}", re.ASCII)
_LAST_SEQUENCE = 2**63 - 1
# The years 1 to 9999, which is what a Timestamp may say.
_FIRST_NS = -62_135_596_800 * 10**9
_LAST_NS = 253_402_300_800 * 10**9 - 1

DATATYPES: Mapping[str, int] = MappingProxyType(
    {
        "BOOL": 1,
        **{f"{sign}INT{8 * size}": size for sign in ("", "U") for size in (1, 2, 4, 8)},
        **{f"FP{8 * size}": size for size in (2, 4, 8)},
    }
)
"""Bytes of an element, by the Open Inference Protocol's name. BYTES has no fixed size and isn't taken."""
MAX_TENSORS = 32
"""Of a request; also names of outputs."""
MAX_RANK = 8
NAME_BYTES = 128
"""Of a tensor's name."""
_MODEL = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)


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
    requests: int = 16
    """Requests of a connection that are open; more are refused."""
    requests_in_all: int = 512
    """Requests of all connections that are open; more are refused. A tenant may hold as many as it leaves."""
    request_bytes: int = 256 * 1024
    """Content of a request's inputs."""
    answer_bytes: int = 1024 * 1024
    """Content of an answer's outputs."""
    request_s: float = 30.0
    """The longest that a request may wait."""


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


def check_request_id(request: Request) -> None:
    """Refuse a request that nothing can be answered to; raises Invalid."""
    if request.id < 1:
        raise Invalid("request.id: is 0; ids start at 1", reason="BAD_REQUEST_ID")


def check_request(request: Request, limits: Limits) -> None:
    """Refuse a request for what is in it; raises Invalid with a reason for the device."""
    if not _MODEL.fullmatch(request.model):
        raise Invalid(
            f"request.model: {shown(request.model)} is no model's id; use 1 to 128 of A-Z, a-z, 0-9, '.', "
            "'_' and '-'",
            reason="BAD_MODEL",
        )
    if not 0 < request.timeout_s <= limits.request_s:
        raise Invalid(
            f"request.timeout: must be more than 0 and at most {limits.request_s:g} s", reason="BAD_TIMEOUT"
        )
    if not 1 <= len(request.inputs) <= MAX_TENSORS:
        raise Invalid(f"request.inputs: there must be 1 to {MAX_TENSORS}", reason="BAD_INPUT")
    if len(request.outputs) > MAX_TENSORS:
        raise Invalid(f"request.outputs: there may be at most {MAX_TENSORS}", reason="BAD_OUTPUT")
    for number, name in enumerate(request.outputs):
        _check_tensor_name(name, f"request.outputs[{number}]", "BAD_OUTPUT")
    size = sum(len(tensor.content) for tensor in request.inputs)
    if size > limits.request_bytes:
        raise Invalid(
            f"request.inputs: {size} bytes of content; at most {limits.request_bytes} are allowed",
            reason="REQUEST_TOO_LARGE",
        )
    for number, tensor in enumerate(request.inputs):
        _check_tensor(tensor, f"request.inputs[{number}]")


def _check_tensor_name(name: str, field: str, reason: str) -> None:
    if not 1 <= len(name.encode()) <= NAME_BYTES:
        raise Invalid(f"{field}: {shown(name)} must have 1 to {NAME_BYTES} bytes", reason=reason)


def _check_tensor(tensor: Tensor, field: str) -> None:
    _check_tensor_name(tensor.name, f"{field}.name", "BAD_INPUT")
    size = DATATYPES.get(tensor.datatype)
    if size is None:
        raise Invalid(
            f"{field}.datatype: {shown(tensor.datatype)} isn't one"
            f"{did_you_mean(tensor.datatype, DATATYPES)}; use one of {', '.join(DATATYPES)}",
            reason="BAD_INPUT",
        )
    if len(tensor.shape) > MAX_RANK or any(dim < 0 for dim in tensor.shape):
        raise Invalid(f"{field}.shape: must have at most {MAX_RANK} sizes of 0 or more", reason="BAD_INPUT")
    wanted = math.prod(tensor.shape) * size
    if len(tensor.content) != wanted:
        raise Invalid(
            f"{field}.content: has {len(tensor.content)} bytes; {tensor.datatype} of the shape "
            f"{list(tensor.shape)} has {wanted}",
            reason="BAD_INPUT",
        )


def check_answer(prediction: Prediction, limits: Limits) -> None:
    """Refuse what can't be told a device; raises Invalid."""
    size = sum(len(tensor.content) for tensor in prediction.outputs)
    if size > limits.answer_bytes:
        raise Invalid(
            f"the model's outputs have {size} bytes; at most {limits.answer_bytes} fit an answer: ask for "
            "fewer outputs or rows",
            reason="ANSWER_TOO_LARGE",
        )
    for tensor in prediction.outputs:
        if tensor.datatype not in DATATYPES:
            raise Invalid(
                f"the model's output {shown(tensor.name)} has the datatype {shown(tensor.datatype)}, which a "
                "device can't take; ask for other outputs",
                reason="BAD_OUTPUT",
            )

"""The one table between our errors and gRPC statuses, in both directions.

A status carries `google.rpc.ErrorInfo` (reason, domain, metadata) and, where one is known,
`google.rpc.RetryInfo` in the trailer `grpc-status-details-bin`, so that clients in every language can tell
errors apart by reason.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from libs.common import errors
from libs.common.errors import Error
from libs.common.sizes import size_text

DETAILS_TRAILER = "grpc-status-details-bin"

# Statuses travel in HTTP/2 headers, and beyond 8 KiB of them a peer drops the call. The message goes twice:
# percent-encoded, and inside the details, which travel in base 64.
_MESSAGE_BYTES_MAX = 2000
_METADATA_BYTES_MAX = 1500

CODES: Mapping[type[Error], grpc.StatusCode] = {
    errors.Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.Conflict: grpc.StatusCode.ABORTED,
    errors.Precondition: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    errors.Exhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.Internal: grpc.StatusCode.INTERNAL,
}

# Back again, and where statuses that no domain raises go: (class, reason when no ErrorInfo came).
_KINDS: Mapping[grpc.StatusCode, tuple[type[Error], str]] = {
    **{code: (kind, kind.default_reason) for kind, code in CODES.items()},
    grpc.StatusCode.DEADLINE_EXCEEDED: (errors.Unavailable, "DEADLINE_EXCEEDED"),
    grpc.StatusCode.CANCELLED: (errors.Unavailable, "CANCELLED"),
    grpc.StatusCode.UNIMPLEMENTED: (errors.Precondition, "UNIMPLEMENTED"),
    grpc.StatusCode.UNKNOWN: (errors.Internal, "UNKNOWN"),
    grpc.StatusCode.DATA_LOSS: (errors.Internal, "DATA_LOSS"),
}

# What gRPC itself says of a message beyond the limit of one side: C-core's words, and Go's without a side.
_TOO_LARGE = re.compile(
    r"(?:(?P<side>client|server): ?)?(?P<way>received|sent) message larger than max "
    r"\((?P<size>\d{1,19}) vs\. (?P<most>\d{1,19})\)",
    re.IGNORECASE,
)


def code_of(error: Error) -> grpc.StatusCode:
    """Return the status code of an error; a subclass has its base's."""
    for kind in type(error).__mro__:
        if kind in CODES:
            return CODES[kind]
    return grpc.StatusCode.INTERNAL


def message_of(error: Error) -> str:
    """Return the text of the status: the error's message, cut to what fits a header."""
    message = error.message[:_MESSAGE_BYTES_MAX]
    while len(quote(message)) > _MESSAGE_BYTES_MAX:
        message = message[: len(message) * 3 // 4]
    return message if len(message) == len(error.message) else message + "…"


def details_of(error: Error, domain: str) -> bytes:
    """Return the serialised `google.rpc.Status` for the trailer; `domain` says which service raised it."""
    status = status_pb2.Status(code=code_of(error).value[0], message=message_of(error))
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=domain)
    room = _METADATA_BYTES_MAX
    for key in sorted(error.metadata):
        room -= len(key.encode()) + len(error.metadata[key].encode()) + 8
        if room < 0:
            break
        info.metadata[key] = error.metadata[key]
    status.details.add().Pack(info)
    if error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(max(0, round(error.retry_after_s * 1e9)))
        status.details.add().Pack(retry)
    return bytes(status.SerializeToString())


def error_from_rpc(rpc_error: grpc.aio.AioRpcError) -> Error:
    """Return the error that a failed call stands for: class, reason, metadata and wait as they were raised.

    What a peer without ErrorInfo answers gets its class from the status code alone, except for messages that
    gRPC itself refuses for their size: those are Invalid, MESSAGE_TOO_LARGE or ANSWER_TOO_LARGE.
    """
    kind, usual = _KINDS.get(rpc_error.code(), (errors.Internal, "UNKNOWN"))
    reason = usual
    metadata: dict[str, str] = {}
    retry_after_s: float | None = None
    message = rpc_error.details() or rpc_error.code().name
    for key, value in rpc_error.trailing_metadata() or ():
        if key != DETAILS_TRAILER or not isinstance(value, bytes):
            continue
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        try:
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(info):
                    reason, metadata = info.reason or reason, dict(info.metadata)
                elif detail.Unpack(retry):
                    retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
        except (DecodeError, ValueError):
            continue
    if kind is errors.Exhausted and reason == usual:
        too_large = _too_large(message)
        if too_large is not None:
            return too_large
    return kind(message, reason=reason, metadata=metadata, retry_after_s=retry_after_s)


def _both(count: int) -> str:
    """Return a size as people read it, and exactly: two that differ little look the same otherwise."""
    return size_text(count) if count < 1024 else f"{size_text(count)} ({count:,} bytes)"


def _too_large(message: str) -> Error | None:
    found = _TOO_LARGE.search(message)
    if found is None:
        return None
    size, most = int(found["size"]), int(found["most"])
    answer = f"{found['side']} {found['way']}".lower() in ("client received", "server sent")
    what, remedy = ("answer", "ask for less at once") if answer else ("request", "send less at once")
    return errors.Invalid(
        f"the {what} has {_both(size)}, and {_both(most)} are allowed; {remedy}, such as fewer rows",
        reason="ANSWER_TOO_LARGE" if answer else "MESSAGE_TOO_LARGE",
        metadata={"bytes": str(size), "max_bytes": str(most)},
    )


def is_made_up(rpc_error: grpc.aio.AioRpcError) -> bool:
    """Tell whether no handler decided on the status of a failed call.

    Every answer of a service has trailers. A status without was made up on this side of the connection, which
    could break at any moment, or by a server that cancels its calls as it goes down.
    """
    return not rpc_error.trailing_metadata()


@contextmanager
def rpc_errors() -> Iterator[None]:
    """Turn a failed call inside the block into the `Error` that it stands for."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error

"""The errors that a domain raises: what went wrong, said for people and for programs.

None of them knows a status code; `libs.common.status` owns the one table between these classes and gRPC.
Messages are for people: what was wrong, with which value, and what to do. Programs read `reason` (a constant
in UPPER_SNAKE) and `metadata`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Error(Exception):
    """Base of every expected error. Raise a subclass.

    `retriable` says whether the very same call may succeed later; `retry_after_s` is the least time to wait
    before it, in seconds, where the raiser knows one.
    """

    default_reason: ClassVar[str] = "INTERNAL"
    retriable: bool = False

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] = _NOTHING,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata))
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        """Survive pickling (errors cross process pools), keyword arguments included."""
        return _rebuild, (type(self), self.message, self.reason, dict(self.metadata), self.retry_after_s)

    def __str__(self) -> str:
        return self.message


def _rebuild(
    cls: type[Error], message: str, reason: str, metadata: dict[str, str], retry_after_s: float | None
) -> Error:
    return cls(message, reason=reason, metadata=metadata, retry_after_s=retry_after_s)


class Invalid(Error):
    """The request itself is wrong, whatever the state: a field, its value, a limit."""

    default_reason = "INVALID"


class Unauthenticated(Error):
    """Nobody knows who is calling: no credential, or one that doesn't verify or has expired."""

    default_reason = "UNAUTHENTICATED"


class Forbidden(Error):
    """The caller is known and may not do this."""

    default_reason = "FORBIDDEN"


class NotFound(Error):
    """The thing named isn't there, or belongs to another tenant (which is never revealed)."""

    default_reason = "NOT_FOUND"


class AlreadyExists(Error):
    """The thing to create is there already, with other content."""

    default_reason = "ALREADY_EXISTS"


class Conflict(Error):
    """The caller's etag or revision is stale: read again, decide again, write again."""

    default_reason = "CONFLICT"


class Precondition(Error):
    """The state doesn't allow this now, and waiting alone won't change it."""

    default_reason = "FAILED_PRECONDITION"


class OutOfRange(Error):
    """A position is past what there is: a compacted revision, an offset beyond the end."""

    default_reason = "OUT_OF_RANGE"


class Exhausted(Error):
    """A limit, a quota, a queue or a disk is full; come back later."""

    default_reason = "EXHAUSTED"
    retriable = True


class Unavailable(Error):
    """Something needed can't be reached or is shutting down; come back soon."""

    default_reason = "UNAVAILABLE"
    retriable = True


class Internal(Error):
    """A fault of ours. The message travels to the caller, so it must not hold anything secret."""

    default_reason = "INTERNAL"

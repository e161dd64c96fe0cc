"""What is written in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.scheduler.domain.objects import Object, PastRequest


@dataclass(frozen=True, slots=True)
class Change:
    """Objects to write, as one: all or none.

    Each must still be as it was read: at its `revision`, or missing where that is 0.

    Attributes:
        puts: what is written.
        deletes: what is removed, as it was read.
        checks: what must be as it was read, and stays.
    """

    puts: Sequence[Object | PastRequest] = ()
    deletes: Sequence[Object | PastRequest] = ()
    checks: Sequence[Object] = ()


def revision_of(value: Object | PastRequest) -> int:
    """Return the revision that an object was read at; 0 for a new one."""
    return value.revision if isinstance(value, PastRequest) else value.meta.revision


def describe(value: Object | PastRequest) -> str:
    """Return an object's name for messages."""
    return f"request {value.digest}" if isinstance(value, PastRequest) else str(value.name)

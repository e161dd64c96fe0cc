"""What etcd holds and what one asks of it, without its wire format.

Revisions are etcd's: one counter for the whole store, raised by each transaction that writes. A key's
`mod_revision` is that of its last write, its `create_revision` that of the write that made it.
"""

from dataclasses import dataclass
from typing import Literal

from libs.common.errors import OutOfRange


class Compacted(OutOfRange):
    """The history from the revision asked for is gone: list again, and watch from there.

    Attributes:
        revision: the oldest one that is still there; 0 where etcd doesn't say.
    """

    default_reason = "COMPACTED"

    def __init__(self, revision: int = 0) -> None:
        super().__init__(
            f"the history up to revision {revision or 'asked for'} is gone; list again, and go on from there",
            metadata={"revision": str(revision)},
        )
        self.revision = revision

    def __reduce__(self) -> tuple[object, ...]:
        return Compacted, (self.revision,)


OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
"""The reason of Unavailable for a write that was sent and not answered: read again, then decide."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it stood at some revision.

    Attributes:
        key: its name.
        value: its content; empty for a key that was deleted.
        create_revision: when it was made; 0 for a key that was deleted.
        mod_revision: when it was last written, or deleted.
        version: writes since it was made, 1 for the first; 0 for a key that was deleted.
        lease: the id of the lease that it goes away with; 0 for none.
    """

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


@dataclass(frozen=True, slots=True)
class Range:
    """Keys under a prefix, all as they stood at one revision, in the order of their bytes.

    Attributes:
        items: the keys.
        revision: the revision; watch from the one after it.
        more: whether there are keys beyond `items`; ask again with `start=next_start, revision=revision`.
    """

    items: tuple[KeyValue, ...]
    revision: int
    more: bool

    @property
    def next_start(self) -> str:
        """The least key after those in `items`; "" when there are none."""
        return self.items[-1].key + "\0" if self.items else ""


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction on one key; make it by one of the class methods."""

    key: str
    field: Literal["mod_revision", "create_revision", "version", "value"]
    equals: int | bytes

    @classmethod
    def mod_revision(cls, key: str, equals: int) -> "Compare":
        """Hold when the key was last written at this revision; 0 means that there is no such key."""
        return cls(key, "mod_revision", equals)

    @classmethod
    def create_revision(cls, key: str, equals: int) -> "Compare":
        """Hold when the key was made at this revision; 0 means that there is no such key."""
        return cls(key, "create_revision", equals)

    @classmethod
    def version(cls, key: str, equals: int) -> "Compare":
        """Hold when the key was written this often since it was made; 0 means that there is no such key."""
        return cls(key, "version", equals)

    @classmethod
    def value(cls, key: str, equals: bytes) -> "Compare":
        """Hold when the key is there and has this value."""
        return cls(key, "value", equals)


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key; it goes away with the lease, where one is named."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key, or with `prefix` every key that begins with it."""

    key: str
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Get:
    """Read a key."""

    key: str


Op = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class TxnResult:
    """What a transaction did.

    Attributes:
        succeeded: whether every compare held, so that `success` was done and not `failure`.
        revision: that of the store afterwards; the `mod_revision` of what it wrote, if it wrote.
        results: for each operation that was done, in order, what it read: one key or none for a Get, none
            for a Put or a Delete.
    """

    succeeded: bool
    revision: int
    results: tuple[tuple[KeyValue, ...], ...]


@dataclass(frozen=True, slots=True)
class Event:
    """One change of one key.

    Attributes:
        kind: whether it was written or deleted.
        kv: the key after it; after a deletion only its `key` and `mod_revision` say anything.
        previous: the key before it; None for one that wasn't there, or whose history was compacted since.
    """

    kind: Literal["put", "delete"]
    kv: KeyValue
    previous: KeyValue | None


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Changes of one or more whole revisions, in their order.

    Attributes:
        events: the changes; none when etcd only tells how far it got.
        revision: nothing up to and with this one is still to come; a later watch starts after it.
    """

    events: tuple[Event, ...]
    revision: int

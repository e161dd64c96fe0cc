"""What travels through the tunnel and how it is named."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

EPOCH_BYTES = 16
"""Length of an epoch: random, chosen when the stream's store on the device was created."""


class Codec(enum.IntEnum):
    """How a payload is encoded. The numbers are stored in the log: never reuse one."""

    UNKNOWN = -1
    """One that this program doesn't know. Never stored."""
    NONE = 0
    """A tombstone: there is no payload."""
    JSON = 1
    """A JSON object in UTF-8. The tunnel doesn't look inside."""


@dataclass(frozen=True, slots=True)
class Device:
    """Whose tunnel it is: a tenant's id and a device's id, both from the caller's identity."""

    tenant: str
    device: str


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of a device in one life of the device's store."""

    name: str
    """`<task>/<stream>`."""
    epoch: bytes
    """16 bytes."""


NO_STREAM = Stream("", b"")
"""What a device without streams gets an ack of."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One entry of a stream; its key is device, stream and sequence."""

    device: Device
    stream: Stream
    sequence: int
    """From 1, growing by 1 within the stream."""
    schema_id: str
    """What the payload's fields are: `<task>@<version>/<stream>`."""
    event_time_ns: int | None
    """When it happened, Unix time in nanoseconds; None where a tombstone doesn't say."""
    codec: Codec
    payload: bytes
    tombstone_reason: str = ""
    """UPPER_SNAKE where the device or the tunnel refused or dropped what stood here; "" for data."""

    @property
    def tombstone(self) -> bool:
        """Whether this only keeps the sequence whole."""
        return bool(self.tombstone_reason)

    def refused(self, reason: str) -> "Frame":
        """Return the tombstone that keeps this frame's place."""
        return Frame(self.device, self.stream, self.sequence, "", None, Codec.NONE, b"", reason)

    @property
    def cost(self) -> int:
        """Bytes this takes in queues: its payload and an allowance for the rest."""
        return len(self.payload) + 256


@dataclass(frozen=True, slots=True)
class Record:
    """A frame as the log keeps it."""

    offset: int
    """Place in its partition, from 0, growing by 1."""
    received_ms: int
    """When the log took it, Unix time in milliseconds."""
    frame: Frame


class Outcome(enum.Enum):
    """What the log did with a frame."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    """It was there already (or stood twice in what was just appended)."""
    GAP = "gap"
    """It doesn't follow the stream's mark, so it wasn't kept."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one append. Everything it says is durable."""

    outcomes: tuple[Outcome, ...]
    """One for each frame, in order."""
    marks: Mapping[Stream, int]
    """Highest contiguous durable sequence of each stream that was in the append."""

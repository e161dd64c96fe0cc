"""What scripts may send from the device: what the manifest's upload streams declare, and nothing else.

A frame is let through whole or refused whole. What is refused leaves a tombstone that carries the reason to
the cloud, and neither the value nor the name of the field: a name that a script made up is data too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from libs.common.errors import Invalid
from libs.task.uploads import UploadStream

# The tunnel's own limit on a payload.
MAX_FRAME_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What a script's `context.send` has become."""

    stream: str
    """The manifest's stream; empty when the script named one that isn't declared."""
    payload: bytes
    """Compact JSON, keys sorted; empty when refused."""
    refusal: str = ""
    """UPPER_SNAKE reason, for the tombstone."""
    message: str = ""
    """For people on this device: which field and why. Stays here."""


def check_send(uploads: Mapping[str, UploadStream], stream: str, fields: Mapping[str, object]) -> Outgoing:
    """Return the frame that a send makes, refused unless the manifest declares all of it."""
    declared = uploads.get(stream)
    if declared is None:
        known = ", ".join(uploads) or "none"
        message = f"stream {stream[:64]!r} is not declared by the manifest; it declares: {known}"
        return Outgoing("", b"", "STREAM_UNDECLARED", message)
    try:
        payload = declared.encode(fields)
    except Invalid as error:
        return Outgoing(stream, b"", error.reason, error.message)
    if len(payload) > MAX_FRAME_BYTES:
        message = f"stream {stream!r}: a frame of {len(payload)} bytes, more than {MAX_FRAME_BYTES}"
        return Outgoing(stream, b"", "FRAME_TOO_LARGE", message)
    return Outgoing(stream, payload)

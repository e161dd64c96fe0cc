"""What may leave the device: the manifest's upload streams, where a run failed, and nothing else.

A frame is let through whole or refused whole. What is refused leaves a tombstone that carries the reason to
the cloud, and neither the value nor the name of the field: a name that a script made up is data too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from libs.common.errors import Invalid
from libs.task.uploads import UploadStream

# The tunnel's own limit on a payload.
MAX_FRAME_BYTES = 256 * 1024

# The VM's own words, or what a script said before it had seen any event.
_HARMLESS = frozenset({"TIMEOUT", "CRASH", "LOAD_ERROR"})
_FRAME = re.compile(r'  File "[a-z0-9-]+@[A-Za-z0-9._-]+/([\w./-]+)", line (\d+), in (\w+)')
_CLASS = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?::|$)", re.ASCII)


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


def reportable(reason: str, message: str) -> str:
    """Return what the cloud may be told of a failed run: the kind of error and where in the script.

    An error's own text may quote an event ("could not convert 'Alice'"), so it stays on the device, in the
    result and the log.
    """
    if reason in _HARMLESS:
        return message
    places: list[str] = []
    kind = ""
    after_frame = False
    for line in message.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            places.append(f"{frame[1]}, line {frame[2]}, in {frame[3]}")
            after_frame = True
        elif after_frame and not line.startswith(" "):
            name = _CLASS.match(line)
            kind, after_frame = name[1] if name is not None else "", False
    where = f" ({places[-1]})" if places else ""
    return f"{kind or reason}{where}; its text stays on the device, see its results and log"

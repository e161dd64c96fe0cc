"""Recorded events as a simulation gets them: every line is checked before the first one is replayed."""

from collections.abc import Mapping
from pathlib import Path

from libs.common.errors import Invalid
from services.device_agent.replay import Lines
from services.device_agent.simulator.verdict import line_key
from services.device_agent.store.events import FilePosition

MAX_BYTES = 16 * 1024 * 1024
MAX_EVENTS = 10_000
_BLOCK_BYTES = 256 * 1024
_SHOWN = 3


def read_lines(path: Path) -> Mapping[object, int]:
    """Return a recording's lines by `line_key` of their events.

    Raises:
        Invalid: when a line is no event (naming the first few), there is none, or there are too many.
    """
    lines, count = Lines(FilePosition(0, 0, 0)), 0
    found: dict[object, int] = {}
    faults: list[str] = []
    with path.open("rb") as file:
        final = False
        while not final:
            block = file.read(_BLOCK_BYTES)
            final = not block
            for chunk in lines.feed(block, final=final):
                faults += chunk.faults
                count += len(chunk.events)
                for event, end in zip(chunk.events, chunk.ends, strict=True):
                    found.setdefault(line_key(event), end.line)
            if len(faults) >= _SHOWN:
                break
            if count > MAX_EVENTS:
                raise _invalid(
                    f"has more than {MAX_EVENTS:,} events; give a shorter recording", "TOO_MANY_EVENTS"
                )
    if faults:
        raise _invalid("; ".join(faults[:_SHOWN]), "BAD_EVENTS")
    if not count:
        raise _invalid("holds no event; give one JSON object a line, or no recording", "NO_EVENTS")
    return found


def _invalid(what: str, reason: str) -> Invalid:
    return Invalid(f"events: {what}", reason=reason, metadata={"field": "events"})

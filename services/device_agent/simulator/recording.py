"""Recorded events as a simulation gets them: every line is checked before the first one is replayed."""

from dataclasses import dataclass
from pathlib import Path

from libs.common.errors import Invalid
from libs.task.event import MAX_RECORDING_EVENTS, Event
from services.device_agent.replay import Lines
from services.device_agent.store.events import FilePosition

_BLOCK_BYTES = 256 * 1024
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Recording:
    """Where each event of a recording stands."""

    lines: tuple[tuple[Event, int], ...]
    """The events with their lines, from 1 on, without those that repeat an earlier one's id."""

    def line_of(self, event: Event, sequence: int) -> int | None:
        """Return the line of an event that was stored as number `sequence`; None when there is no such event.

        Of events that are alike in everything it is the first one's where the number doesn't say.
        """
        if 0 < sequence <= len(self.lines):
            there, line = self.lines[sequence - 1]
            if there == event:
                return line
        return next((line for there, line in self.lines if there == event), None)


def read_recording(path: Path) -> Recording:
    """Read a recording.

    Raises:
        Invalid: when a line is no event (naming the first few), there is none, or there are too many.
    """
    lines, found, ids = Lines(FilePosition(0, 0, 0)), list[tuple[Event, int]](), set[str]()
    faults: list[str] = []
    count, final = 0, False
    with path.open("rb") as file:
        while not final and len(faults) < _SHOWN:
            block = file.read(_BLOCK_BYTES)
            final = not block
            for chunk in lines.feed(block, final=final):
                faults += chunk.faults
                count += len(chunk.events)
                for event, end in zip(chunk.events, chunk.ends, strict=True):
                    if not event.event_id or event.event_id not in ids:
                        found.append((event, end.line))
                        ids.add(event.event_id)
            if count > MAX_RECORDING_EVENTS:
                raise _invalid(
                    f"has more than {MAX_RECORDING_EVENTS:,} events; give a shorter recording",
                    "TOO_MANY_EVENTS",
                )
    if faults:
        raise _invalid("; ".join(faults[:_SHOWN]), "BAD_EVENTS")
    if not found:
        raise _invalid("holds no event; give one JSON object a line, or no recording", "NO_EVENTS")
    return Recording(tuple(found))


def _invalid(what: str, reason: str) -> Invalid:
    return Invalid(f"events: {what}", reason=reason, metadata={"field": "events"})

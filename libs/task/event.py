"""Events: what an application feeds the device agent, and what triggers and pipelines look at."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from libs.task import jsontext
from libs.task.jsontext import check_text, child, fault, show

MAX_BYTES = 64 * 1024
MAX_FIELDS = 64
MAX_RECORDING_BYTES = 16 * 1024 * 1024
"""Of a recording that versions are tried over, JSON Lines."""
MAX_RECORDING_EVENTS = 10_000
"""Of the same."""
MAX_LIST = 1024
MAX_NAME_LENGTH = 128
MAX_TIME_S = 253_402_300_800.0  # the year 10000: a time in milliseconds is refused rather than believed
ANY = "*"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to one user at one moment."""

    event_id: str
    """The application's, for de-duplication; empty when it gives none."""
    type: str
    page: str
    """The page or screen it happened on; may be empty."""
    user: str
    """Whose event it is; sequences and windows are per user. May be empty on a device with one user."""
    time_s: float
    """Event time in Unix seconds, by the device's clock."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """JSON scalars, or lists of scalars, by name."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON object that `event_from_json` reads back."""
        return {
            "event_id": self.event_id,
            "type": self.type,
            "page": self.page,
            "user": self.user,
            "time_s": self.time_s,
            "fields": dict(self.fields),
        }


def event_from_json(source: str | bytes | Mapping[str, object]) -> Event:
    """Read an event from JSON text or from an object already read.

    `type` and `time_s` are required. Raises Invalid for an unknown key or a value outside `check_event`'s
    limits.
    """
    if isinstance(source, str | bytes):
        value = jsontext.load(source, what="event", max_bytes=MAX_BYTES)
        with jsontext.positions(source, what="event"):
            return _event(value)
    return _event(dict(source))


def _event(value: object) -> Event:
    known = ("event_id", "page", "user", "fields")
    keys = jsontext.check_object(value, "$", required=("type", "time_s"), optional=known)
    time_s = keys["time_s"]
    if isinstance(time_s, bool) or not isinstance(time_s, int | float):
        raise fault("$.time_s", f"must be a number of Unix seconds, not {show(time_s)}")
    fields = keys.get("fields", {})
    if not isinstance(fields, dict):
        raise fault("$.fields", f"must be an object, not {show(fields)}")
    texts: dict[str, str] = {}
    for name in ("event_id", "type", "page", "user"):
        text = keys.get(name, "")
        if not isinstance(text, str):
            raise fault(child("$", name), f"must be a string, not {show(text)}")
        texts[name] = text
    # Beyond this an integer overflows float(); check_event refuses the bound itself.
    seconds = float(max(min(time_s, MAX_TIME_S), -1))
    return check_event(Event(**texts, time_s=seconds, fields=fields))


def check_event(event: Event) -> Event:
    """Return `event` if it keeps the limits; raise Invalid naming the member at fault.

    Names have 1 to 128 characters, at most 64 fields, lists at most 1,024 elements, integers 64 bits, the
    whole at most 64 KiB as JSON. The type `*` is a trigger's wildcard and no event's.
    """
    check_text(event.type, "$.type", most=MAX_NAME_LENGTH)
    if event.type == ANY:
        raise fault("$.type", 'the type "*" is a trigger\'s wildcard; name the event')
    for name in ("event_id", "page", "user"):
        check_text(getattr(event, name), child("$", name), least=0, most=256)
    if not (math.isfinite(event.time_s) and 0 <= event.time_s < MAX_TIME_S):
        raise fault("$.time_s", f"must be Unix seconds from 0 to the year 9999, not {event.time_s}")
    if len(event.fields) > MAX_FIELDS:
        raise fault("$.fields", f"has {len(event.fields)} fields, more than {MAX_FIELDS}")
    for name, value in event.fields.items():
        path = child("$.fields", name)
        check_text(name, path, most=MAX_NAME_LENGTH)
        if isinstance(value, list | tuple):
            if len(value) > MAX_LIST:
                raise fault(path, f"has {len(value)} elements, more than {MAX_LIST}")
            for index, item in enumerate(value):
                _check_scalar(item, child(path, index))
        else:
            _check_scalar(value, path)
    size = len(jsontext.canonical(event.to_json()).encode())
    if size > MAX_BYTES:
        raise fault("$", f"event has {size} bytes as JSON, more than {MAX_BYTES}", reason="TOO_LARGE")
    return event


def _check_scalar(value: object, path: str) -> None:
    match value:
        case None | bool():
            return
        case str():
            jsontext.check_encodable(value, path)
        case int():
            if not -(2**63) <= value < 2**63:
                raise fault(path, f"integer {show(value)} does not fit 64 bits")
        case float():
            if not math.isfinite(value):
                raise fault(path, "must be a finite number")
        case _:
            raise fault(path, f"must be a JSON scalar or a list of scalars, not {show(value)}")

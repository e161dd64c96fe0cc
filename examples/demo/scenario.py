"""What the demo's task computes, and the same computed again by other code from the raw events."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.demo.data import Log
from examples.demo.devices import Result
from examples.demo.report import Report
from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from libs.task.event import Event

TASKS = Path(__file__).resolve().parent.parent / "tasks"
_WINDOW_S = 30 * 86400.0
_WINDOW_EVENTS = 200

Value = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A log, a task that fits it, a version of that task which fails, and what right results are."""

    log: Log
    task: str
    good: Path
    """Folder of version 1.0.0."""
    bad: Path
    """Folder of version 1.1.0, which fails on every run."""
    declared: frozenset[str]
    """Fields that the manifest lets leave the device."""
    expected: Callable[[Iterable[Event]], dict[str, Value]]
    """From a device's events in the order they were fed: the right result by the id of its last event."""
    agrees: Callable[[Value, Value], bool]
    """Whether a device's result is the expected one."""
    judge: Callable[[list[Result], Report], None] = lambda results, report: None
    """Adds what else there is to say about the good results."""


def value_profile(log: Log, scratch: Path, event: str | None, field: str | None) -> Scenario:
    """Return the scenario of any log: how often each value of a field was seen lately.

    Args:
        log: the events.
        scratch: folder for the task, made from its template.
        event: event type to look at; None takes the commonest.
        field: field to look at; None takes the commonest one of text or lists among those events.

    Raises:
        Invalid: when the log holds no such event or field.
    """
    types = Counter(each.type for events in log.users.values() for each in events)
    chosen = event or types.most_common(1)[0][0]
    if chosen not in types:
        raise Invalid(f"--event: no {chosen!r} in the log{did_you_mean(chosen, types)}")
    fields = Counter(
        name
        for events in log.users.values()
        for each in events
        if each.type == chosen
        for name, value in each.fields.items()
        if isinstance(value, str | list)
    )
    if not fields or (field and field not in fields):
        hint = did_you_mean(field, fields) if field else ""
        raise Invalid(f"--field: {chosen!r} events have no field {field or 'of text or lists'}{hint}")
    name = field or fields.most_common(1)[0][0]
    folders = []
    for template in (TASKS / "value-profile", TASKS / "value-profile-bad"):
        folder = scratch / template.name
        folder.mkdir(parents=True)
        for file in template.iterdir():
            if file.is_file():
                text = file.read_text(encoding="utf-8")
                if file.suffix == ".json":
                    text = text.replace("@EVENT", chosen).replace("@FIELD", name)
                (folder / file.name).write_text(text, encoding="utf-8")
        folders.append(folder)
    declared = frozenset({"total", "profile"})
    return Scenario(
        log,
        "value-profile",
        folders[0],
        folders[1],
        declared,
        lambda events: _counts(events, chosen, name),
        _agrees,
    )


def _windows(events: Iterable[Event], event_type: str, field: str) -> Iterator[tuple[Event, list[Event]]]:
    """Yield each event of the type that has the field, with its user's window of such events up to it."""
    seen: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.type == event_type and field in event.fields:
            history = seen[event.user]
            history.append(event)
            window = [old for old in history if event.time_s - _WINDOW_S < old.time_s <= event.time_s]
            # The latest stay; equal times are ordered by event id.
            yield event, sorted(window, key=lambda old: (old.time_s, old.event_id))[-_WINDOW_EVENTS:]


def _counts(events: Iterable[Event], event_type: str, field: str) -> dict[str, Value]:
    return {
        event.event_id: {
            "total": len(window),
            "profile": Counter(value for old in window for value in _values(old.fields[field])),
        }
        for event, window in _windows(events, event_type, field)
    }


def _values(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def _agrees(value: Value, expected: Value) -> bool:
    """Tell whether a device's result is the expected one."""
    return all(value[name] == wanted for name, wanted in expected.items())

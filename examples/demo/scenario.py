"""What the demo's task computes, and the same computed again by other code from the raw events."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
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
_RECORDED = 60

Value = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A log, a task that fits it, versions of that task which fail, and what right results are."""

    log: Log
    task: str
    good: Path
    """Folder of version 1.0.0."""
    broken: Path
    """Folder of version 1.1.0, which fails on every run."""
    bad: Path
    """Folder of version 1.2.0, which does well over what was recorded and fails on what `dooms`."""
    recorded: Sequence[Event]
    """What versions are tried over before they are published."""
    dooms: Callable[[Iterable[Event]], list[tuple[int, bool]]]
    """From a device's events in the order they were fed: of each one that triggers, its position and whether
    the bad version fails on it."""
    declared: frozenset[str]
    """Fields that the manifest lets leave the device."""
    expected: Callable[[Iterable[Event], Container[str]], dict[str, Value]]
    """From a device's events in the order they were fed, and the ids of those that results are there for: the
    right result by the id of its last event."""
    agrees: Callable[[Value, Value], bool]
    """Whether a device's result is the expected one."""
    endpoint: str = ""
    """The model in the cloud that devices ask; empty for none."""
    judge: Callable[[Sequence[Result], Report], None] = lambda results, report: None
    """Adds what else there is to say about the good results."""
    facts: Callable[[Sequence[Result]], Mapping[str, str]] = lambda results: {}
    """What can be said of the results so far, while they come."""


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

    def matches(each: Event) -> bool:
        return each.type == chosen and name in each.fields

    of_all = (each for events in log.users.values() for each in events if matches(each))
    recorded = sorted(of_all, key=lambda each: each.time_s)[:_RECORDED]
    until_s = recorded[-1].time_s
    if not any(each.time_s > until_s for events in log.users.values() for each in events if matches(each)):
        raise Invalid(
            f"{log.title}: all {chosen!r} events with {name!r} are among the first {_RECORDED}; "
            "use a longer log, or another --event or --field"
        )
    good = _fill(scratch, "value-profile", chosen, name)
    bad = _fill(scratch, "value-profile", chosen, name, "value-profile-late")
    replace_text(bad / "task.json", '"version": "1.0.0"', '"version": "1.2.0"')
    # A fault that nothing recorded shows: a date written into it, as in a table that ends.
    append_text(
        bad / "profile.py",
        f"""

LAST_S = {until_s!r}
_profile = profile


def profile(context: Context) -> dict[str, object]:
    \"\"\"Fail on events that are later than the last one known when this was written.\"\"\"
    if context.events[-1].time_s > LAST_S:
        raise ValueError("no table for this day")
    return _profile(context)
""",
    )
    return Scenario(
        log=log,
        task="value-profile",
        good=good,
        broken=_fill(scratch, "value-profile-bad", chosen, name),
        bad=bad,
        recorded=recorded,
        dooms=lambda events: [
            (number, each.time_s > until_s) for number, each in enumerate(events) if matches(each)
        ],
        declared=frozenset({"total", "profile"}),
        expected=lambda events, _: _counts(events, chosen, name),
        agrees=_agrees,
    )


def _fill(scratch: Path, template: str, event: str, field: str, folder: str = "") -> Path:
    """Return a task's folder, made from its template."""
    made = scratch / (folder or template)
    made.mkdir(parents=True)
    for file in (TASKS / template).iterdir():
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            if file.suffix == ".json":
                text = text.replace("@EVENT", event).replace("@FIELD", field)
            (made / file.name).write_text(text, encoding="utf-8")
    return made


def replace_text(file: Path, old: str, new: str) -> None:
    """Put a text in the place of another, which must be there."""
    text = file.read_text("utf-8")
    assert old in text, f"{file}: no {old}"
    file.write_text(text.replace(old, new), "utf-8")


def append_text(file: Path, text: str) -> None:
    """Add to a text file."""
    with file.open("a", encoding="utf-8") as out:
        out.write(text)


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

"""The demo's events: anybody's own log, and how events are dealt to devices."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from libs.common.errors import Invalid
from libs.task.event import Event, event_from_json

_MAX_LOG_EVENTS = 2_000_000


@dataclass(frozen=True, slots=True)
class Log:
    """Events by user, in order of time."""

    title: str
    """What it is, for the table."""
    users: dict[str, list[Event]]


def own_log(path: Path) -> Log:
    """Return the events of a JSON Lines (`.jsonl`, `.json`) or CSV file.

    JSON Lines: an event a line, as docs/task-format.md has them. CSV: the columns `user`, `type` and `time`
    (Unix seconds or ISO 8601) must be there, `page` and `event_id` may be; every other column becomes a
    field, as a number where it is one and as a list where it holds "|".

    Raises:
        Invalid: naming the line and what is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"--data {path}: {error}", reason="NO_DATA") from error
    events = _csv_events(text) if path.suffix.lower() == ".csv" else _json_events(text)
    users: dict[str, list[Event]] = {}
    count = 0
    for event in events:
        count += 1
        if count > _MAX_LOG_EVENTS:
            raise Invalid(f"--data {path}: more than {_MAX_LOG_EVENTS:,} events", reason="NO_DATA")
        users.setdefault(event.user, []).append(event)
    if not users:
        raise Invalid(f"--data {path}: no events in there", reason="NO_DATA")
    for found in users.values():
        found.sort(key=lambda event: (event.time_s, event.event_id))
    return Log(f"{path.name}: {count:,} events of {len(users)} users", users)


def _json_events(text: str) -> Iterator[Event]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield _named(event_from_json(line), number)
        except Invalid as error:
            raise Invalid(f"line {number}: {error.message}", reason=error.reason) from error


def _csv_events(text: str) -> Iterator[Event]:
    rows = csv.DictReader(io.StringIO(text))
    missing = {"user", "type", "time"} - set(rows.fieldnames or ())
    if missing:
        raise Invalid(
            f"line 1: the column {sorted(missing)[0]!r} is missing; a log needs user, type and time"
        )
    for number, row in enumerate(rows, start=2):
        if None in row:
            raise Invalid(f"line {number}: more cells than columns")
        fields = {
            name: _cell(value)
            for name, value in row.items()
            if value and name not in ("user", "type", "time", "page", "event_id")
        }
        try:
            event = {
                "event_id": row.get("event_id") or "",
                "type": row["type"],
                "page": row.get("page") or "",
                "user": row["user"],
                "time_s": _time(row["time"]),
                "fields": fields,
            }
            yield _named(event_from_json(json.dumps(event)), number)
        except Invalid as error:
            raise Invalid(f"line {number}: {error.message}", reason=error.reason) from error


def _named(event: Event, number: int) -> Event:
    """Return the event with an id, so that sending it twice is harmless."""
    if event.event_id:
        return event
    return Event(f"line-{number}", event.type, event.page, event.user, event.time_s, event.fields)


def _time(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        try:
            return datetime.fromisoformat(text or "").timestamp()
        except ValueError:
            raise Invalid(f"time: {text!r} is neither Unix seconds nor ISO 8601") from None


def _cell(text: str) -> object:
    if "|" in text:
        return [part for part in text.split("|") if part]
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def deal(log: Log, hands: int, events_each: int) -> list[list[Event]]:
    """Deal whole users to `hands` devices until each has `events_each` events; return them in replay order.

    On a device the users' events are merged by the order in which each user produced them, so that all its
    users are active at once.
    """
    dealt: list[list[str]] = [[] for _ in range(hands)]
    totals = [0] * hands
    for user, events in log.users.items():
        poorest = min(range(hands), key=lambda hand: (totals[hand], hand))
        if totals[poorest] >= events_each:
            break
        dealt[poorest].append(user)
        totals[poorest] += len(events)
    return [_merge(log, users) for users in dealt]


def _merge(log: Log, users: Iterable[str]) -> list[Event]:
    ranked = [(rank, user, event) for user in users for rank, event in enumerate(log.users[user])]
    # Three events at a time: what MovieLens has for each rating.
    ranked.sort(key=lambda entry: (entry[0] // 3, entry[1], entry[0]))
    return [event for _, _, event in ranked]

"""Triggers: the sequence of events that makes a task run.

    {"sequence": [{"event": "page_enter", "page": "item", "where": {"gt": ["price", 10]}},
                  {"followed_by": {"event": "click"}}],
     "within": "30s"}

Elements follow one another in one user's events. A plain element must be the very next event of that user
(strict contiguity, in the terms of Flink CEP); a `followed_by` element may come after a gap (relaxed
contiguity). The event `*` matches any; `page` and `where`, when left out, too. `within` bounds the event
time from first to last event.
"""

from dataclasses import dataclass

from libs.task import jsontext
from libs.task.duration import format_duration, parse_duration
from libs.task.event import ANY, Event
from libs.task.expression import Expression, parse_expression
from libs.task.jsontext import check_text, child, fault

MAX_STEPS = 32
MAX_NAME_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Step:
    """One element of a sequence. Hashable, equal by meaning: a trie may share equal steps."""

    event: str
    """An event type, or `*` for any."""
    page: str | None = None
    where: Expression | None = None
    contiguous: bool = True
    """Whether the event must be the very next one; always True for the first step, where it says nothing."""

    def matches(self, event: Event) -> bool:
        """Tell whether `event` alone satisfies this step, contiguity aside."""
        return (
            self.event in (ANY, event.type)
            and self.page in (None, event.page)
            and (self.where is None or self.where.matches(event.fields))
        )

    def to_json(self) -> dict[str, object]:
        """Return the JSON object of this step."""
        inner: dict[str, object] = {"event": self.event}
        if self.page is not None:
            inner["page"] = self.page
        if self.where is not None:
            inner["where"] = self.where.to_json()
        return inner if self.contiguous else {"followed_by": inner}


@dataclass(frozen=True, slots=True)
class Trigger:
    """A parsed trigger."""

    steps: tuple[Step, ...]
    within_s: float | None = None
    """Longest event time from first to last event, inclusive, in seconds; None for no bound."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON object that `trigger_from_value` reads back as this trigger."""
        value: dict[str, object] = {"sequence": [step.to_json() for step in self.steps]}
        return value if self.within_s is None else {**value, "within": format_duration(self.within_s)}


def parse_trigger(text: str | bytes) -> Trigger:
    """Parse a trigger's JSON text, at most 64 KiB.

    Raises Invalid with line and column, and for a fault of meaning the JSON path too.
    """
    value = jsontext.load(text, what="trigger")
    with jsontext.positions(text, what="trigger"):
        return trigger_from_value(value)


def trigger_from_value(value: object, path: str = "$") -> Trigger:
    """Parse a trigger from a JSON value at `path` of its document; raise Invalid with the path."""
    keys = jsontext.check_object(value, path, required=("sequence",), optional=("within",))
    at = child(path, "sequence")
    elements = jsontext.check_list(keys["sequence"], at, least=1, most=MAX_STEPS)
    steps = tuple(_element(element, child(at, i), first=i == 0) for i, element in enumerate(elements))
    within = parse_duration(keys["within"], child(path, "within")) if "within" in keys else None
    return Trigger(steps, within)


def _element(value: object, path: str, *, first: bool) -> Step:
    if isinstance(value, dict) and "followed_by" in value:
        at = child(path, "followed_by")
        if first:
            raise fault(at, "the first element follows nothing; write the event itself", at_key=True)
        jsontext.check_object(value, path, required=("followed_by",))
        return parse_step(value["followed_by"], at, contiguous=False)
    if isinstance(value, dict) and "event" not in value:
        # Both forms are possible here, so that a misspelt `followed_by` is suggested too.
        jsontext.check_object(value, path, optional=("event", "page", "where", "followed_by"))
    return parse_step(value, path, contiguous=True)


def parse_step(value: object, path: str, *, contiguous: bool = True) -> Step:
    """Parse `{"event": …, "page": …, "where": …}`, a sequence's element or a stream's source."""
    keys = jsontext.check_object(value, path, required=("event",), optional=("page", "where"))
    event = check_text(keys["event"], child(path, "event"), most=MAX_NAME_LENGTH)
    page = None
    if "page" in keys:
        page = check_text(keys["page"], child(path, "page"), least=0, most=256)
        if page == ANY:
            raise fault(child(path, "page"), 'leave "page" out to match any page')
    where = parse_expression(keys["where"], child(path, "where")) if "where" in keys else None
    return Step(event, page, where, contiguous)

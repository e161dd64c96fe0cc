"""Stream pipelines: features computed on the device, over a window of events, when a trigger fires.

    {"genres": {"source": {"event": "rate", "where": {"ge": ["rating", 4]}},
                "key_by": "user_id",
                "ops": [{"filter": {"exists": "genres"}},
                        {"map": {"kind": "genres"}},
                        {"window": {"size": "30d", "max_events": 500}},
                        {"reduce": {"counts": {"fn": "count", "by": "kind"}}}]}}

A record starts as an event's fields and runs through `ops` in order:

* `filter` keeps the records for which an expression holds;
* `map` makes a record of the named fields only: `{"out": "field"}`; a missing field stays missing;
* `window`, exactly one: of the records so far, the latest `max_events` (1,000 unless given, at most 10,000)
  with event time in (now - size, now];
* `reduce`, exactly one and last: one value for each named output. `count` counts records, or with `field`
  those that have it; `sum`, `mean`, `min` and `max` look at numbers and skip anything else (a sum too large
  for a float stays at the largest); `last` is the latest value; `collect` is the list of values, oldest
  first. With `by` the value is an object with one member for each value of that field; a list-valued field
  counts once for each element. At most 4,096 groups; the oldest win.

Of nothing, `count` and `sum` are 0, `collect` is an empty list, the others are null. Equal events give an
equal result in whatever order they come: records are put in order of event time, then event id, then
content.
"""

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from libs.common.suggest import did_you_mean
from libs.task import jsontext
from libs.task.duration import format_duration, parse_duration
from libs.task.event import Event
from libs.task.expression import Expression, parse_expression
from libs.task.jsontext import check_text, child, fault, show
from libs.task.trigger import Step, parse_step

MAX_FEATURES = 32
MAX_OPS = 16
MAX_OUTPUTS = 32
MAX_GROUPS = 4096
MAX_WINDOW_EVENTS = 10_000
DEFAULT_WINDOW_EVENTS = 1000

Record = Mapping[str, object]

_SCALE = 2.0**64
_FUNCTIONS = ("count", "sum", "mean", "min", "max", "last", "collect")


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep the records for which an expression holds."""

    where: Expression

    def apply(self, record: Record) -> Record | None:
        """Return the record, or None when it is dropped."""
        return record if self.where.matches(record) else None

    def to_json(self) -> dict[str, object]:
        """Return the JSON object of this operator."""
        return {"filter": self.where.to_json()}


@dataclass(frozen=True, slots=True)
class Map:
    """Make a record of named fields only."""

    outputs: tuple[tuple[str, str], ...]
    """Pairs of the new name and the field it takes."""

    def apply(self, record: Record) -> Record | None:
        """Return the new record."""
        return {out: record[source] for out, source in self.outputs if source in record}

    def to_json(self) -> dict[str, object]:
        """Return the JSON object of this operator."""
        return {"map": dict(self.outputs)}


@dataclass(frozen=True, slots=True)
class Reduction:
    """One output of the final `reduce`."""

    out: str
    function: str
    field: str | None
    by: str | None

    def to_json(self) -> dict[str, object]:
        """Return the JSON object of this output, without its name."""
        members = {"fn": self.function, "field": self.field, "by": self.by}
        return {key: value for key, value in members.items() if value is not None}

    def reduce(self, records: list[Record]) -> object:
        """Reduce records, oldest first, to this output's value."""
        aggregate = _AGGREGATES[self.function]
        if self.by is None:
            return aggregate(self._values(records))
        groups: dict[str, list[Record]] = {}
        for record in records:
            key = record.get(self.by)
            for member in key if isinstance(key, list | tuple) else [key]:
                if member is None:
                    continue
                name = member if isinstance(member, str) else jsontext.canonical(member)
                if name in groups:
                    groups[name].append(record)
                elif len(groups) < MAX_GROUPS:
                    groups[name] = [record]
        return {name: aggregate(self._values(groups[name])) for name in sorted(groups)}

    def _values(self, records: list[Record]) -> list[object]:
        if self.field is None:
            return list(records)
        return [value for record in records if (value := record.get(self.field)) is not None]


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature: pure, so that the agent, the simulator and a test compute the same."""

    name: str
    source: Step
    key_by: str | None
    """The field whose value partitions the events; None for the event's user."""
    before: tuple[Filter | Map, ...]
    """Operators ahead of the window."""
    window_s: float
    max_events: int
    after: tuple[Filter | Map, ...]
    """Operators between window and reduce."""
    reductions: tuple[Reduction, ...]

    def key_of(self, event: Event) -> object:
        """Return the key of `event`: its user, or the value of the `key_by` field (None if absent)."""
        return event.user if self.key_by is None else event.fields.get(self.key_by)

    def selects(self, event: Event) -> bool:
        """Tell whether `event` takes a place in the window, its time and key aside.

        A store that reads newest first may stop once it has `max_events` events for which this holds.
        """
        return self.source.matches(event) and _run(self.before, event.fields) is not None

    def evaluate(self, events: Iterable[Event], now_s: float) -> dict[str, object]:
        """Compute the feature over `events` of one key, in any order, at `now_s` (Unix seconds).

        Events outside the window, or that the source doesn't match, are ignored. Raises nothing for valid
        events.
        """
        start_s = now_s - self.window_s
        inside = [event for event in events if start_s < event.time_s <= now_s and self.source.matches(event)]
        placed = [
            record for event in _in_order(inside) if (record := _run(self.before, event.fields)) is not None
        ]
        window = placed[-self.max_events :]
        records = [record for before in window if (record := _run(self.after, before)) is not None]
        return {reduction.out: reduction.reduce(records) for reduction in self.reductions}

    def to_json(self) -> dict[str, object]:
        """Return the JSON object of this feature, without its name."""
        window = {"size": format_duration(self.window_s), "max_events": self.max_events}
        reduce = {reduction.out: reduction.to_json() for reduction in self.reductions}
        ops: list[object] = [op.to_json() for op in self.before]
        ops += [{"window": window}, *(op.to_json() for op in self.after), {"reduce": reduce}]
        key_by = {} if self.key_by is None else {"key_by": self.key_by}
        return {"source": self.source.to_json(), **key_by, "ops": ops}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A task's features, by name in the order written."""

    features: tuple[Feature, ...] = ()

    @property
    def horizon_s(self) -> float:
        """How far back any feature looks, in seconds; 0 without features."""
        return max((feature.window_s for feature in self.features), default=0.0)

    def to_json(self) -> dict[str, object]:
        """Return the JSON object that `pipeline_from_value` reads back as this pipeline."""
        return {feature.name: feature.to_json() for feature in self.features}


def parse_pipeline(text: str | bytes) -> Pipeline:
    """Parse a pipeline's JSON text, at most 64 KiB; raise Invalid with line, column and JSON path."""
    value = jsontext.load(text, what="pipeline")
    with jsontext.positions(text, what="pipeline"):
        return pipeline_from_value(value)


def pipeline_from_value(value: object, path: str = "$") -> Pipeline:
    """Parse a pipeline from a JSON value at `path` of its document; raise Invalid with the path."""
    if not isinstance(value, dict):
        raise fault(path, f"must be an object from feature names to features, not {show(value)}")
    if len(value) > MAX_FEATURES:
        raise fault(path, f"has {len(value)} features, more than {MAX_FEATURES}")
    features = []
    for name, feature in value.items():
        at = child(path, name)
        check_text(name, at)
        features.append(_feature(name, feature, at))
    return Pipeline(tuple(features))


def _feature(name: str, value: object, path: str) -> Feature:
    keys = jsontext.check_object(value, path, required=("source", "ops"), optional=("key_by",))
    source = parse_step(keys["source"], child(path, "source"))
    key_by = check_text(keys["key_by"], child(path, "key_by")) if "key_by" in keys else None
    at = child(path, "ops")
    ops = jsontext.check_list(keys["ops"], at, least=2, most=MAX_OPS)
    stages: list[list[Filter | Map]] = [[]]
    window: tuple[float, int] | None = None
    reductions: tuple[Reduction, ...] = ()
    for index, op in enumerate(ops):
        here = child(at, index)
        kind, operand = _operator(op, here)
        here = child(here, kind)
        if kind == "reduce" and index < len(ops) - 1:
            raise fault(here, '"reduce" must be the last of "ops"', at_key=True)
        match kind:
            case "filter":
                stages[-1].append(Filter(parse_expression(operand, here)))
            case "map":
                stages[-1].append(_map(operand, here))
            case "window":
                if window is not None:
                    raise fault(here, 'a feature has one "window"', at_key=True)
                window = _window(operand, here)
                stages.append([])
            case "reduce":
                reductions = _reductions(operand, here)
    if window is None:
        raise fault(at, 'a "window" is missing, such as {"window": {"size": "30d", "max_events": 500}}')
    if not reductions:
        raise fault(at, 'a "reduce" is missing at the end')
    return Feature(name, source, key_by, tuple(stages[0]), *window, tuple(stages[1]), reductions)


def _operator(value: object, path: str) -> tuple[str, object]:
    known = ("filter", "map", "window", "reduce")
    if not isinstance(value, dict) or len(value) != 1:
        raise fault(path, f"must be an object with one of {', '.join(known)}; not {show(value)}")
    ((kind, operand),) = value.items()
    if kind not in known:
        hint = did_you_mean(str(kind), known)
        message = f"unknown operator {show(kind)}; allowed: {', '.join(known)}{hint}"
        raise fault(child(path, str(kind)), message, at_key=True)
    return kind, operand


def _outputs(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict) or not 1 <= len(value) <= MAX_OUTPUTS:
        raise fault(path, f"must be an object with 1 to {MAX_OUTPUTS} named outputs, not {show(value)}")
    for name in value:
        check_text(name, child(path, name))
    return value


def _map(value: object, path: str) -> Map:
    outputs = _outputs(value, path)
    return Map(tuple((out, check_text(source, child(path, out))) for out, source in outputs.items()))


def _window(value: object, path: str) -> tuple[float, int]:
    keys = jsontext.check_object(value, path, required=("size",), optional=("max_events",))
    size_s = parse_duration(keys["size"], child(path, "size"))
    most = keys.get("max_events", DEFAULT_WINDOW_EVENTS)
    return size_s, jsontext.check_int(most, child(path, "max_events"), least=1, most=MAX_WINDOW_EVENTS)


def _reductions(value: object, path: str) -> tuple[Reduction, ...]:
    return tuple(_reduction(out, member, child(path, out)) for out, member in _outputs(value, path).items())


def _reduction(out: str, value: object, path: str) -> Reduction:
    keys = jsontext.check_object(value, path, required=("fn",), optional=("field", "by"))
    function = keys["fn"]
    if not isinstance(function, str) or function not in _FUNCTIONS:
        hint = did_you_mean(function, _FUNCTIONS) if isinstance(function, str) else ""
        message = f"unknown function {show(function)}; allowed: {', '.join(_FUNCTIONS)}{hint}"
        raise fault(child(path, "fn"), message)
    if function != "count" and "field" not in keys:
        raise fault(path, f'"{function}" needs "field"')
    field = check_text(keys["field"], child(path, "field")) if "field" in keys else None
    by = check_text(keys["by"], child(path, "by")) if "by" in keys else None
    return Reduction(out, function, field, by)


def _in_order(events: list[Event]) -> list[Event]:
    def moment(event: Event) -> tuple[float, str]:
        return event.time_s, event.event_id

    events.sort(key=moment)
    if any(moment(one) == moment(other) for one, other in itertools.pairwise(events)):
        # Content settles ties between events that the application gave no id; it costs too much to do always.
        events.sort(key=lambda event: (*moment(event), jsontext.canonical(event.to_json())))
    return events


def _run(ops: tuple[Filter | Map, ...], record: Record) -> Record | None:
    current: Record | None = record
    for op in ops:
        if current is None:
            return None
        current = op.apply(current)
    return current


def _numbers(values: list[object]) -> list[int | float]:
    return [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]


def _sum(values: list[object]) -> int | float:
    numbers = _numbers(values)
    if all(isinstance(number, int) for number in numbers):
        return sum(numbers)
    try:
        return math.fsum(numbers)
    except OverflowError:
        # JSON has no infinity: saturate.
        scaled = math.fsum(number / _SCALE for number in numbers)
        most = sys.float_info.max / _SCALE
        return max(-most, min(most, scaled)) * _SCALE


def _mean(values: list[object]) -> float | None:
    numbers = _numbers(values)
    if not numbers:
        return None
    try:
        return math.fsum(numbers) / len(numbers)
    except OverflowError:
        return math.fsum(number / len(numbers) for number in numbers)


_AGGREGATES: dict[str, Callable[[list[object]], object]] = {
    "count": len,
    "sum": _sum,
    "mean": _mean,
    "min": lambda values: min(_numbers(values), default=None),
    "max": lambda values: max(_numbers(values), default=None),
    "last": lambda values: values[-1] if values else None,
    "collect": list,
}

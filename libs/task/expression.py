"""The whitelisted expression tree: a trigger's `where`, stream filters, release policies over attributes.

    {"eq": [field, literal]}   also ne, lt, le, gt, ge
    {"in": [field, [literal, ...]]}
    {"exists": field}
    {"and": [expression, ...]}   {"or": [expression, ...]}   {"not": expression}

Literals are strings, numbers and booleans; lt, le, gt and ge take strings (ordered by code point) and
numbers. A comparison, `ne` included, is false when the field is missing, null, a list, or of another type
than the literal; true and false are no numbers. `in` is true when the field, or an element of a list-valued
field, is one of the literals. `exists` is true when the field is there and not null. Nothing is evaluated
as code.

A tree is compiled to closures once, when it is parsed.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from libs.common.suggest import did_you_mean
from libs.task import jsontext
from libs.task.jsontext import child, fault, show

MAX_DEPTH = 16
MAX_NODES = 256
MAX_LITERALS = 1000
MAX_BYTES = 64 * 1024
MAX_FIELD_LENGTH = 128

Fields = Mapping[str, object]
Matcher = Callable[[Fields], bool]

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
OPERATORS = (*_COMPARISONS, "in", "exists", "and", "or", "not")

_NUMBER = frozenset({int, float})
_TYPES = {str: frozenset({str}), bool: frozenset({bool}), int: _NUMBER, float: _NUMBER}


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression. Equal expressions have equal `text`, the canonical JSON."""

    text: str
    fields: frozenset[str] = field(compare=False)
    matches: Matcher = field(compare=False, repr=False)
    """Whether the expression holds over a mapping of field names to JSON values; raises nothing."""

    def to_json(self) -> object:
        """Return the JSON value that `parse_expression` reads back as this expression."""
        return jsontext.load(self.text, what="expression", max_bytes=MAX_BYTES)

    def __reduce__(self) -> tuple[Callable[[object], "Expression"], tuple[object]]:
        # Closures don't pickle; the text does.
        return parse_expression, (self.to_json(),)


def parse_expression(value: object, path: str = "$") -> Expression:
    """Parse the JSON value of an expression; `path` is where it stands in its document.

    Raises Invalid, with the JSON path of the offending part in the message and in `metadata["path"]`, when
    the value is no expression or exceeds 16 levels, 256 operators, 1,000 literals or 64 KiB.
    """
    parser = _Parser(path)
    matcher = parser.expression(value, path, 1)
    text = jsontext.canonical(value)
    if len(text.encode()) > MAX_BYTES:
        raise fault(path, f"expression is longer than {MAX_BYTES} bytes", reason="TOO_LARGE")
    return Expression(text, frozenset(parser.fields), matcher)


def read_expression(text: str | bytes, *, what: str = "expression") -> Expression:
    """Parse an expression's JSON text, at most 64 KiB, such as a release's policy over device attributes.

    Raises Invalid with line and column, and for a fault of meaning the JSON path too; `what` names the text.
    """
    value = jsontext.load(text, what=what, max_bytes=MAX_BYTES)
    with jsontext.positions(text, what=what):
        return parse_expression(value)


class _Parser:
    """One parse: counts against the limits, collects the fields, and compiles on the way up."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.fields: set[str] = set()
        self.nodes = 0
        self.literals = 0

    def expression(self, value: object, path: str, depth: int) -> Matcher:
        self.nodes += 1
        if depth > MAX_DEPTH:
            raise fault(path, f"expression is nested deeper than {MAX_DEPTH}", reason="TOO_DEEP")
        if self.nodes > MAX_NODES:
            raise fault(self.root, f"expression has more than {MAX_NODES} operators", reason="TOO_LARGE")
        if not isinstance(value, dict) or len(value) != 1:
            example = '{"eq": ["page", "item"]}'
            raise fault(path, f"must be an object with one operator, such as {example}; not {show(value)}")
        ((name, operand),) = value.items()
        at = child(path, str(name))
        if name in _COMPARISONS:
            return self._comparison(name, operand, at)
        match name:
            case "in":
                return self._in(operand, at)
            case "exists":
                return _exists(self._field(operand, at))
            case "not":
                return _not(self.expression(operand, at, depth + 1))
            case "and" | "or":
                parts = jsontext.check_list(operand, at, least=1, most=MAX_NODES)
                matchers = [self.expression(part, child(at, i), depth + 1) for i, part in enumerate(parts)]
                return _and(tuple(matchers)) if name == "and" else _or(tuple(matchers))
        hint = did_you_mean(str(name), OPERATORS)
        raise fault(at, f"unknown operator {show(name)}; allowed: {', '.join(OPERATORS)}{hint}", at_key=True)

    def _comparison(self, name: str, operand: object, path: str) -> Matcher:
        if not isinstance(operand, list) or len(operand) != 2:
            raise fault(path, f'"{name}" takes [field, literal], not {show(operand)}')
        field_name = self._field(operand[0], child(path, 0))
        literal = self._literal(operand[1], child(path, 1))
        if isinstance(literal, bool) and name not in ("eq", "ne"):
            raise fault(child(path, 1), f'"{name}" compares strings or numbers, not {show(literal)}')
        return _compare(field_name, _COMPARISONS[name], literal)

    def _in(self, operand: object, path: str) -> Matcher:
        if not isinstance(operand, list) or len(operand) != 2:
            raise fault(path, f'"in" takes [field, [literal, ...]], not {show(operand)}')
        field_name = self._field(operand[0], child(path, 0))
        at = child(path, 1)
        values = jsontext.check_list(operand[1], at, least=1, most=MAX_LITERALS)
        return _in(field_name, [self._literal(value, child(at, i)) for i, value in enumerate(values)])

    def _field(self, value: object, path: str) -> str:
        name = jsontext.check_text(value, path, most=MAX_FIELD_LENGTH)
        self.fields.add(name)
        return name

    def _literal(self, value: object, path: str) -> str | bool | int | float:
        self.literals += 1
        if self.literals > MAX_LITERALS:
            raise fault(self.root, f"expression has more than {MAX_LITERALS} literals", reason="TOO_LARGE")
        if value is None:
            raise fault(
                path, 'null is no literal; write {"not": {"exists": field}} for a field that is absent'
            )
        if not isinstance(value, str | bool | int | float):
            raise fault(path, f"must be a string, a number, true or false; not {show(value)}")
        if isinstance(value, float) and value - value != 0:
            raise fault(path, "must be a finite number")
        return jsontext.check_encodable(value, path) if isinstance(value, str) else value


def _compare(name: str, holds: Callable[[object, object], bool], literal: object) -> Matcher:
    types = _TYPES[type(literal)]

    def matches(fields: Fields) -> bool:
        value = fields.get(name)
        return type(value) in types and holds(value, literal)

    return matches


def _in(name: str, literals: list[str | bool | int | float]) -> Matcher:
    # One set per type: True == 1 in Python, and isn't here.
    numbers = frozenset(value for value in literals if type(value) in _NUMBER)
    sets: dict[type, frozenset[object]] = {
        str: frozenset(value for value in literals if isinstance(value, str)),
        bool: frozenset(value for value in literals if isinstance(value, bool)),
        int: numbers,
        float: numbers,
    }
    nothing: frozenset[object] = frozenset()

    def matches(fields: Fields) -> bool:
        value = fields.get(name)
        if isinstance(value, list | tuple):
            # `sets` is asked first: an element that isn't a scalar may not be hashable.
            return any(type(item) in sets and item in sets[type(item)] for item in value)
        known = sets.get(type(value), nothing)
        return bool(known) and value in known

    return matches


def _exists(name: str) -> Matcher:
    return lambda fields: fields.get(name) is not None


def _not(inner: Matcher) -> Matcher:
    return lambda fields: not inner(fields)


def _and(parts: tuple[Matcher, ...]) -> Matcher:
    def matches(fields: Fields) -> bool:
        for part in parts:  # a loop: `all` over a generator costs twice as much  # noqa: SIM110
            if not part(fields):
                return False
        return True

    return matches


def _or(parts: tuple[Matcher, ...]) -> Matcher:
    def matches(fields: Fields) -> bool:
        for part in parts:  # noqa: SIM110
            if part(fields):
                return True
        return False

    return matches

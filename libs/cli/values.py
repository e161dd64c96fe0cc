"""Types of flags: durations, percentages, attributes, names."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import click

from libs.common.errors import Invalid
from libs.common.names import TenantName, VersionName, shown
from libs.task.duration import parse_duration


class Duration(click.ParamType[float]):
    """A duration such as 250ms, 30s, 5m, 12h or 30d; the value is in seconds. With `zero`, 0 is one, too.

    `least` and `most` are what the service takes, as people write them.
    """

    name = "duration"

    def __init__(self, *, zero: bool = False, least: str = "", most: str = "") -> None:
        self._zero = zero
        self._least = least
        self._most = most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds, or fail naming the value and the forms allowed."""
        if isinstance(value, int | float):
            return float(value)
        if self._zero and _NOTHING.fullmatch(str(value)):
            return 0.0
        try:
            found = parse_duration(str(value), "duration")
        except Invalid as error:
            self.fail(error.message, param, ctx)
        if self._most and found > parse_duration(self._most, "most"):
            self.fail(f"{value} is too long; it may be {self._most} at most", param, ctx)
        if self._least and found < parse_duration(self._least, "least"):
            self.fail(f"{value} is too short; it must be {self._least} at least", param, ctx)
        return found


class Percentages(click.ParamType[tuple[float, ...]]):
    """Ascending percentages such as 10%,50%,100%; the value is a tuple of floats."""

    name = "percentages"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Return the percentages; whether they ascend is checked by the deployer."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part.strip().removesuffix("%")) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r}: write percentages such as 10%,50%,100%", param, ctx)


class Size(click.ParamType[int]):
    """A size such as 512MiB, 2GiB or 1.5GB; the value is in bytes."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return bytes, or fail naming the value and the forms allowed."""
        if isinstance(value, int):
            return value
        try:
            return parse_size(str(value))
        except Invalid as error:
            self.fail(error.message, param, ctx)


class Cpus(click.ParamType[int]):
    """A number of cores such as 2 or 0.5; the value is in thousandths of one."""

    name = "cores"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return thousandths of a core, or fail naming the value."""
        if isinstance(value, int):
            return value
        if not _CPUS.fullmatch(str(value)):
            self.fail(f"{shown(str(value))}: write cores such as 2, 0.5 or 0.25", param, ctx)
        return round(float(str(value)) * 1000)


class Number(click.FloatRange):
    """A number within bounds, and a finite one: to click "nan" is within all of them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail naming the value."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{shown(str(value))} is not a finite number", param, ctx)
        return found


class Bounds(click.ParamType[tuple[str, int, int]]):
    """Bounds of a dimension such as batch=1..64, or its size, batch=8; the value is name, least and most."""

    name = "bounds"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int, int]:
        """Return name, least and most; or fail naming the value."""
        if isinstance(value, tuple):
            return value
        match = _BOUNDS.fullmatch(str(value))
        if match is None:
            self.fail(
                f"{shown(str(value))}: write NAME=LEAST..MOST, such as batch=1..64, or NAME=SIZE", param, ctx
            )
        least = int(match[2])
        most = int(match[3]) if match[3] else least
        if max(least, most) > _MOST_BOUND:
            self.fail(f"{shown(str(value))}: the largest size allowed is {_MOST_BOUND}", param, ctx)
        if not 0 < least <= most:
            self.fail(f"{shown(str(value))}: from {least} to {most} is no range of sizes", param, ctx)
        return match[1], least, most


class NamedSize(click.ParamType[tuple[str, int]]):
    """The size of a dimension such as batch=8; the value is its name and the size."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return name and size; or fail naming the value."""
        if isinstance(value, tuple):
            return value
        match = _NAMED_SIZE.fullmatch(str(value))
        if match is None:
            self.fail(f"{shown(str(value))}: write NAME=SIZE, such as batch=8", param, ctx)
        if int(match[2]) > _MOST_SIZE:
            self.fail(f"{shown(str(value))}: the largest size allowed is {_MOST_SIZE}", param, ctx)
        return match[1], int(match[2])


class Vary(click.ParamType[tuple[str, tuple[float, ...]]]):
    """What may vary, such as max_batch_rows=1,4,16; the value is its name and its values, ascending."""

    name = "values"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[float, ...]]:
        """Return name and values; whether they may be tried the tuner says."""
        if isinstance(value, tuple):
            return value
        name, equals, rest = str(value).partition("=")
        found = [_finite(part.strip()) for part in rest.split(",")] if equals and name else [None]
        values = [each for each in found if each is not None]
        if len(values) != len(found):
            self.fail(
                f"{shown(str(value))}: write NAME=VALUE,VALUE,..., such as max_batch_rows=1,4,16", param, ctx
            )
        return name, tuple(sorted(values))


class Limits(click.ParamType[tuple[str, float]]):
    """A bound on a metric, such as p99_ms=60; the value is the metric's name and the largest value."""

    name = "limit"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """Return name and largest value; which metrics there are the tuner says."""
        if isinstance(value, tuple):
            return value
        name, equals, rest = str(value).partition("=")
        found = _finite(rest.strip())
        if not equals or not name or found is None:
            self.fail(f"{shown(str(value))}: write METRIC=VALUE, such as p99_ms=60", param, ctx)
        return name, found


def _finite(text: str) -> float | None:
    """Return a number, or None for a text that is none."""
    return float(text) if _NUMBER.fullmatch(text) else None


DURATION = Duration()
DELAY = Duration(zero=True)
PERCENTAGES = Percentages()
SIZE = Size()
CPUS = Cpus()
BOUNDS = Bounds()
NAMED_SIZE = NamedSize()
VARY = Vary()
LIMITS = Limits()

_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([KMGT]i?)?B?", re.ASCII)
_UNITS: dict[str, int] = {
    "": 1,
    **{f"{unit}i": 1 << 10 * power for power, unit in enumerate("KMGT", 1)},
    **{unit: int(1000**power) for power, unit in enumerate("KMGT", 1)},
}
_CPUS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,3})?", re.ASCII)
_NOTHING = re.compile(r"0(?:ms|s|m|h|d)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(?:\.[0-9]{1,9})?", re.ASCII)
_NAMED_SIZE = re.compile(r"([^=\s]{1,128})=([0-9]{1,100})", re.ASCII)
_BOUNDS = re.compile(r"([^=\s]{1,128})=([0-9]{1,100})(?:\.\.([0-9]{1,100}))?", re.ASCII)
_MOST_BOUND = 2**31 - 1
"""Of a dimension, as the engine takes it."""
_MOST_SIZE = 10**18


def parse_size(text: str) -> int:
    """Return the bytes of a size: a number and B, KiB, MiB, GiB, TiB, or KB, MB, GB, TB, the B optional.

    Raises:
        Invalid: for another form.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise Invalid(
            f"{shown(text)} is no size; write bytes or a number with a unit, such as 512MiB or 2GiB",
            reason="BAD_SIZE",
        )
    unit = _UNITS[match[2] or ""]
    return round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def version_name(tenant: TenantName, text: str) -> VersionName:
    """Return the resource name of `task@version`, or of a version's full name.

    Another tenant's full name is left as it is: whose it is the service says.

    Raises:
        Invalid: when it is neither, or a part isn't well formed.
    """
    if "/" in text:
        return VersionName.parse(text)
    task, at, version = text.partition("@")
    if not at:
        raise Invalid(
            f"{text!r}: write TASK@VERSION, or {tenant}/tasks/TASK/versions/VERSION", reason="BAD_VERSION"
        )
    return VersionName(tenant.tenant, task, version)


def parse_attributes(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return `KEY=VALUE` pairs as a dictionary.

    Raises:
        click.BadParameter: for a pair without "=" or a key given twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r}: write KEY=VALUE")
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice")
        found[name] = value
    return found


def policy_json(where: str | None, attributes: tuple[str, ...]) -> str:
    """Return a release policy: the expression `where` as it is, or all `attributes` joined by "and"."""
    if where:
        return where
    terms = [{"eq": [name, value]} for name, value in parse_attributes(attributes).items()]
    if not terms:
        return ""
    return json.dumps(terms[0] if len(terms) == 1 else {"and": terms})

"""Types of flags: durations, percentages, attributes, names."""

from __future__ import annotations

import json

import click

from libs.common.errors import Invalid
from libs.common.names import TenantName, VersionName
from libs.task.duration import parse_duration


class Duration(click.ParamType[float]):
    """A duration such as 250ms, 30s, 5m, 12h or 30d; the value is in seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds, or fail naming the value and the forms allowed."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(str(value), "duration")
        except Invalid as error:
            self.fail(error.message, param, ctx)


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


DURATION = Duration()
PERCENTAGES = Percentages()


def version_name(tenant: TenantName, text: str) -> VersionName:
    """Return the resource name of `task@version`.

    Raises:
        Invalid: when there is no "@", or a part isn't well formed.
    """
    task, at, version = text.partition("@")
    if not at:
        raise Invalid(f"{text!r}: write TASK@VERSION", reason="BAD_VERSION")
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

"""Versions of agents and Pythons, as manifests and devices write them."""

import re
from collections.abc import Mapping

from libs.task.jsontext import fault, show

_AGENT_VERSION = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_PYTHON_VERSION = re.compile(r"(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})")


def parse_agent_version(text: str, where: str) -> tuple[int, int, int]:
    """Return the three numbers of `MAJOR.MINOR.PATCH`; raise Invalid naming `where`."""
    match = _AGENT_VERSION.fullmatch(text)
    if match is None:
        raise fault(where, f'must be "MAJOR.MINOR.PATCH", such as "0.1.0", not {show(text)}')
    return int(match[1]), int(match[2]), int(match[3])


def check_oldest_agent(text: str, *lacks: Mapping[str, str]) -> tuple[int, int, int]:
    """Return a manifest's `min_agent_version` as numbers, (0, 0, 0) for any.

    Raises Invalid unless it is at least each version of `lacks`, which say what older agents can't do.
    """
    where = "min_agent_version"
    oldest = parse_agent_version(text, where) if text else (0, 0, 0)
    for needed, lack in (each for part in lacks for each in part.items()):
        if oldest < parse_agent_version(needed, where):
            raise fault(where, f"must be {needed} or newer: older agents {lack}")
    return oldest


def check_python_version(value: object, where: str) -> str:
    """Return `value` if it is `MAJOR.MINOR`; raise Invalid naming `where`."""
    if not isinstance(value, str) or not _PYTHON_VERSION.fullmatch(value):
        raise fault(where, f'must be "MAJOR.MINOR", such as "3.11", not {show(value)}')
    return value

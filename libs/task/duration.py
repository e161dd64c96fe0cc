"""Durations as people write them: `250ms`, `30s`, `5m`, `12h`, `30d`."""

import re

from libs.task.jsontext import fault, show

MAX_SECONDS = 3660 * 86400.0

_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_DURATION = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)")


def parse_duration(text: object, path: str = "$") -> float:
    """Return the seconds of a duration: a positive integer and one unit of ms, s, m, h, d; at most 3660d.

    Raises Invalid naming `path`.
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        allowed = 'a string of a whole number and a unit: "250ms", "30s", "5m", "12h", "30d"'
        raise fault(path, f"must be {allowed}; not {show(text)}")
    seconds = int(match[1]) * _UNITS[match[2]] / 1000
    if not 0 < seconds <= MAX_SECONDS:
        raise fault(path, f'must be more than zero and at most "3660d", not {show(text)}')
    return seconds


def format_duration(seconds: float) -> str:
    """Return the shortest text that `parse_duration` reads back as `seconds`, to the millisecond."""
    milliseconds = round(seconds * 1000)
    for unit, size in _UNITS.items():
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    raise AssertionError("a millisecond divides every whole number of them")

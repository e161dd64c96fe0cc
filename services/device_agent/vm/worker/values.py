"""Checks that a value is plain JSON within bounds, and says where it isn't."""

import math

MAX_DEPTH = 32


class BadValue(Exception):
    """A value isn't JSON or is too large; the message names the place and the value."""


def check_object(value: object, name: str, max_bytes: int) -> dict[str, object]:
    """Return `value`; raise BadValue unless it is a dict of JSON values of at most about `max_bytes` as JSON.

    The size is counted from below while walking, so that a huge value is refused before it is encoded.
    """
    if not isinstance(value, dict):
        raise BadValue(f"{name} is {_kind(value)}; it must be a dict")
    _check(value, name, [max_bytes, max_bytes], 1)
    return value


def _check(value: object, path: str, room: list[int], depth: int) -> None:
    if isinstance(value, str):
        room[0] -= len(value) + 2
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise BadValue(f"{path} holds a lone surrogate, which is no text") from None
    elif value is None or isinstance(value, bool | int):
        room[0] -= 1
    elif isinstance(value, float):
        room[0] -= 3
        if not math.isfinite(value):
            raise BadValue(f"{path} is {value}; JSON has only finite numbers")
    elif isinstance(value, dict | list | tuple):
        if depth > MAX_DEPTH:
            raise BadValue(f"{path} is nested deeper than {MAX_DEPTH} levels")
        room[0] -= max(2, 1 + len(value))
        _room(path, room)
        if isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise BadValue(f"{path} has the key {_show(key)}; keys must be text")
                _check(key, f"a key of {path}", room, depth + 1)
                _check(item, f"{path}[{_show(key)}]", room, depth + 1)
        else:
            for index, item in enumerate(value):
                _check(item, f"{path}[{index}]", room, depth + 1)
    else:
        raise BadValue(f"{path} is {_kind(value)}; convert it to dict, list, str, int, float, bool or None")
    _room(path, room)


def _room(path: str, room: list[int]) -> None:
    if room[0] < 0:
        raise BadValue(f"the result is larger than {room[1]} bytes as JSON, counted up to {path[:200]}")


def _kind(value: object) -> str:
    if value is None:
        return "None"
    kind = type(value)
    place = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"of type {place}{kind.__name__}"


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

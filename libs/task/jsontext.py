"""Read JSON strictly, and say where in the text a fault lies.

Reading is `json.loads` with what it lets through refused: duplicate keys, NaN and infinities, lone
surrogates, texts too long or too deep. A check that fails later knows only the JSON path of the offending
value, such as `$.sequence[1].where.eq[0]`; `positions` finds that path in the text again and adds line and
column. So a text without faults is never scanned twice.
"""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from json.decoder import scanstring  # type: ignore[attr-defined]  # the decoder's own, absent from typeshed

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean

MAX_BYTES = 64 * 1024
MAX_DEPTH = 64
MAX_SHOWN_PATH = 200

_PLAIN_KEY = re.compile(r"[A-Za-z_@][A-Za-z0-9_@-]*")
_PATH_PART = re.compile(r'\.([A-Za-z_@][A-Za-z0-9_@-]*)|\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]')
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def child(path: str, key: str | int) -> str:
    """Return the path of the member `key` of the value at `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if _PLAIN_KEY.fullmatch(key) else f"{path}[{json.dumps(key)}]"


def show(value: object, limit: int = 80) -> str:
    """Return `value` as JSON for a message, cut to `limit` characters."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=lambda odd: f"<{type(odd).__name__}>")
    except (ValueError, TypeError, RecursionError):
        text = f"<{type(value).__name__}>"
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class MalformedError(Invalid):
    """An Invalid that remembers where: what `positions` needs, and too long for an answer's metadata."""

    path = ""
    at_key = False


def fault(path: str, message: str, *, reason: str = "MALFORMED", at_key: bool = False) -> Invalid:
    """Build the error for the value at `path`; `at_key` when its key rather than its value is at fault."""
    # A key of 64 KiB makes a path of 64 KiB; an error must fit a response's trailers.
    short = path if len(path) <= MAX_SHOWN_PATH else f"{path[: MAX_SHOWN_PATH - 1]}…"
    error = MalformedError(f"{short}: {message}", reason=reason, metadata={"path": short})
    error.path, error.at_key = path, at_key
    return error


def check_object(
    value: object, path: str, *, required: Collection[str] = (), optional: Collection[str] = ()
) -> dict[str, object]:
    """Return `value` if it is an object with all `required` keys and no key but those and the `optional`.

    Raises Invalid, with a suggestion for a misspelt key.
    """
    known = [*required, *optional]
    if not isinstance(value, dict):
        raise fault(path, f"must be an object with {_keys(known)}, not {show(value)}")
    for key in value:
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise fault(
                child(path, str(key)), f"unknown key {show(key)}; allowed: {_keys(known)}{hint}", at_key=True
            )
    for key in required:
        if key not in value:
            raise fault(path, f"key {show(key)} is missing")
    return value


def check_list(value: object, path: str, *, least: int = 0, most: int) -> list[object]:
    """Return `value` if it is an array of `least` to `most` elements; raise Invalid else."""
    if not isinstance(value, list):
        raise fault(path, f"must be an array, not {show(value)}")
    if not least <= len(value) <= most:
        raise fault(path, f"must have {least} to {most} elements, has {len(value)}")
    return value


def check_text(value: object, path: str, *, least: int = 1, most: int = 128) -> str:
    """Return `value` if it is a string of `least` to `most` characters without control characters."""
    if not isinstance(value, str):
        raise fault(path, f"must be a string, not {show(value)}")
    if not least <= len(value) <= most:
        raise fault(path, f"must have {least} to {most} characters, has {len(value)}: {show(value)}")
    if not value.isprintable():
        raise fault(path, f"must not contain control or unprintable characters: {json.dumps(value)[:80]}")
    return value


def check_int(value: object, path: str, *, least: int, most: int) -> int:
    """Return `value` if it is an integer from `least` to `most`; raise Invalid else."""
    if type(value) is not int or not least <= value <= most:
        raise fault(path, f"must be an integer from {least} to {most}, not {show(value)}")
    return value


def check_encodable(value: str, path: str) -> str:
    """Return `value` if UTF-8 can hold it; half of a surrogate pair can't be stored or sent."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise fault(path, "contains half of a surrogate pair") from None
    return value


def _keys(keys: Collection[str]) -> str:
    return ", ".join(f'"{key}"' for key in keys) or "no keys"


class _RefusedError(ValueError):
    """A value that `json.loads` would accept and we don't."""


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise _RefusedError(f"key {show(key)} appears twice in one object")
        result[key] = value
    return result


def _constant(name: str) -> object:
    raise _RefusedError(f"{name} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RefusedError(f"number {text[:40]} is too large")
    return value


def _int(text: str) -> int:
    if len(text) > 400:
        raise _RefusedError(f"number {text[:20]}… of {len(text)} digits is too large")
    return int(text)


def load(text: str | bytes, *, what: str, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> object:
    """Read one JSON value; `what` names the text in messages ("trigger").

    Raises Invalid, with line and column for a syntax error, when the text is longer than `max_bytes` as
    UTF-8, isn't UTF-8 or JSON, or nests deeper than `max_depth`.
    """
    if len(text) > max_bytes:
        raise Invalid(f"{what} is longer than {max_bytes} bytes", reason="TOO_LARGE")
    try:
        text = text.decode() if isinstance(text, bytes) else text
        if len(text.encode()) > max_bytes:
            raise Invalid(f"{what} is longer than {max_bytes} bytes", reason="TOO_LARGE")
        value: object = json.loads(
            text, object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float, parse_int=_int
        )
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        message = error.msg[:1].lower() + error.msg[1:]
        where = {"line": str(error.lineno), "column": str(error.colno)}
        raise Invalid(
            f"{what}: line {error.lineno}, column {error.colno}: {message}", reason="SYNTAX", metadata=where
        ) from None
    except UnicodeDecodeError as error:
        raise Invalid(f"{what} is not UTF-8 at byte {error.start}", reason="SYNTAX") from None
    except UnicodeEncodeError:
        raise Invalid(f"{what} contains half of a surrogate pair", reason="SYNTAX") from None
    except _RefusedError as error:
        raise Invalid(f"{what}: {error}", reason="SYNTAX") from None
    except RecursionError:
        raise Invalid(f"{what} is nested deeper than {max_depth}", reason="TOO_DEEP") from None
    if is_deeper(value, max_depth):
        raise Invalid(f"{what} is nested deeper than {max_depth}", reason="TOO_DEEP")
    return value


def is_deeper(value: object, depth: int) -> bool:
    """Tell whether objects and arrays nest deeper than `depth` levels; looks no deeper than that."""
    if isinstance(value, dict | list):
        members = value.values() if isinstance(value, dict) else value
        return depth <= 0 or any(is_deeper(member, depth - 1) for member in members)
    return False


def canonical(value: object) -> str:
    """Return the one compact text of a JSON value: keys sorted, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


@contextmanager
def positions(text: str | bytes, *, what: str) -> Iterator[None]:
    """Add `what`, line and column to an Invalid raised inside by a check that knew only its path."""
    try:
        yield
    except MalformedError as error:
        plain = text if isinstance(text, str) else text.decode()
        place = locate(plain, error.path, key=error.at_key)
        if place is None:
            raise
        line, column = place
        metadata: Mapping[str, str] = {**error.metadata, "line": str(line), "column": str(column)}
        raise Invalid(
            f"{what}: line {line}, column {column}: {error.message}", reason=error.reason, metadata=metadata
        ) from None


def locate(text: str, path: str, *, key: bool = False) -> tuple[int, int] | None:
    """Return line and column, both from 1, of the value at `path` (or of its key) in a valid JSON `text`.

    Returns None when the text has no such path.
    """
    parts: list[str | int] = []
    for plain, index, quoted in _PATH_PART.findall(path.removeprefix("$")):
        parts.append(int(index) if index else json.loads(quoted) if quoted else plain)
    try:
        here = start = _skip(text, 0)
        for part in parts:
            found = _member(text, here, part)
            if found is None:
                return None
            start, here = found
    except (ValueError, IndexError, RecursionError):
        return None
    offset = start if key else here
    line_start = text.rfind("\n", 0, offset) + 1
    return text.count("\n", 0, offset) + 1, offset - line_start + 1


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _member(text: str, at: int, part: str | int) -> tuple[int, int] | None:
    """Find a member of the object or array that starts at `at`: offsets of its key and its value."""
    wants_key = isinstance(part, str)
    if text[at] != ("{" if wants_key else "["):
        return None
    at, index = _skip(text, at + 1), 0
    while text[at] not in "}]":
        start, name = at, index
        if wants_key:
            name, at = scanstring(text, at + 1, True)
            at = _skip(text, _skip(text, at) + 1)  # over the colon
        if name == part:
            return start, at
        _, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
        index += 1
    return None

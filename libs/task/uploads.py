"""Uploads: the only data that may leave a device, as the signed manifest declares it.

A frame is checked whole: one undeclared, mistyped or oversized field refuses all of it.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from libs.task import jsontext

FIELD_TYPES = ("number", "string", "bool", "number_list", "number_map")
DEFAULT_FIELD_BYTES = 1024
MAX_FIELD_BYTES = 64 * 1024

_FIELD_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class UploadField:
    """A field that may leave: its type is one of `FIELD_TYPES`; `max_bytes` bounds its JSON form."""

    name: str
    type: str
    max_bytes: int = DEFAULT_FIELD_BYTES


@dataclass(frozen=True, slots=True)
class UploadStream:
    """A named stream and the fields that each of its frames may hold; a frame may leave some out."""

    stream: str
    fields: Mapping[str, UploadField]

    def encode(self, fields: Mapping[str, object]) -> bytes:
        """Return a frame's payload: its fields as compact JSON, keys sorted, UTF-8.

        Raises Invalid naming the stream and the field, never its value, with reason FIELD_UNDECLARED,
        FIELD_TYPE or FIELD_TOO_LARGE.
        """
        for name, value in fields.items():
            field = self.fields.get(name)
            if field is None:
                hint = did_you_mean(str(name), self.fields)
                known = ", ".join(self.fields)[:400]
                text = f"is not declared by the manifest; it declares: {known}{hint}"
                raise self._refuse("FIELD_UNDECLARED", name, text)
            if not _is(field.type, value):
                raise self._refuse("FIELD_TYPE", name, f"must be a {field.type}")
            try:
                size = len(jsontext.canonical(value).encode())
            except UnicodeEncodeError:
                raise self._refuse("FIELD_TYPE", name, "contains half of a surrogate pair") from None
            if size > field.max_bytes:
                text = f"has {size} bytes as JSON, more than the declared {field.max_bytes}"
                raise self._refuse("FIELD_TOO_LARGE", name, text)
        return jsontext.canonical(dict(fields)).encode()

    def _refuse(self, reason: str, name: object, text: str) -> Invalid:
        field = str(name)[:64]
        metadata = {"stream": self.stream, "field": field}
        return Invalid(f"stream {self.stream!r}: field {field!r} {text}", reason=reason, metadata=metadata)


def check_field_name(value: str, where: str) -> str:
    """Return `value` if it can name an upload's field; raise Invalid naming `where`."""
    if not _FIELD_NAME.fullmatch(value):
        raise jsontext.fault(
            where, f"must be 1 to 63 of a-z, 0-9 and '_', a letter first; not {jsontext.show(value)}"
        )
    return value


def _is(kind: str, value: object) -> bool:
    match kind:
        case "number":
            return _is_number(value)
        case "string":
            return isinstance(value, str)
        case "bool":
            return isinstance(value, bool)
        case "number_list":
            return isinstance(value, list | tuple) and all(_is_number(item) for item in value)
        case "number_map":
            return isinstance(value, Mapping) and all(
                isinstance(key, str) and _is_number(item) for key, item in value.items()
            )
    return False


def _is_number(value: object) -> bool:
    if isinstance(value, bool):
        return False
    # The bound keeps a number of a million digits out: its JSON would be made before it is measured.
    return (isinstance(value, int) and -(2**63) <= value < 2**63) or (
        isinstance(value, float) and math.isfinite(value)
    )

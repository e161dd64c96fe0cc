"""Texts that people and devices send along, to be kept and shown."""

from libs.common.errors import Invalid


def check_text(value: str, field: str, most_bytes: int) -> str:
    """Return `value`; raise Invalid naming `field` when it is too long or holds a NUL."""
    size = len(value.encode())
    if size > most_bytes:
        raise Invalid(
            f"{field}: has {size} bytes; at most {most_bytes} are kept",
            reason="TOO_LARGE",
            metadata={"field": field},
        )
    if "\0" in value:
        raise Invalid(
            f"{field}: holds a NUL character; leave it out", reason="BAD_TEXT", metadata={"field": field}
        )
    return value

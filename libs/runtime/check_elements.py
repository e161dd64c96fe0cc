"""Says whether bytes are elements of a type, and a str is text."""

from libs.runtime.elements import NARROW_BITS
from libs.runtime.faults import bad_plan
from libs.runtime.plan import DataType

_ALLOWED = {
    DataType.BOOL: bytes(range(2)),
    **{type_: bytes(range(1 << bits)) for type_, bits in NARROW_BITS.items()},
}
"""The bytes that elements may be, where those aren't all."""


def check_elements(type_: DataType, data: bytes, where: str) -> None:
    """Raise Invalid (BAD_PLAN) naming `where` for a byte that no element of a type has."""
    allowed = _ALLOWED.get(type_)
    if allowed is None or not data.translate(None, allowed):
        return
    if type_ is DataType.BOOL:
        raise bad_plan(where, "has a BOOL that is neither 0 nor 1")
    raise bad_plan(where, f"has a byte that is no {type_.name}")


def is_text(text: str) -> bool:
    """Tell whether a str is made of characters: halves of surrogate pairs can't be written as UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

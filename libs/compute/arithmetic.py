"""Operators that a few atomic ones make up, on values of one type; what they give is of that type.

Where numpy warns and gives something, a number divided by 0 as an integer is refused here, as in plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from libs.compute.backend import Backend, Value
from libs.compute.promotion import FLOATS, UNSIGNED, name_of
from libs.runtime.elements import ITEM_BYTES
from libs.runtime.plan import DataType

Rule = Callable[[Backend, Value, Value], Value]


def is_nan(b: Backend, x: Value) -> Value:
    """Tell where there is no number: only that isn't equal to itself."""
    return b.elementwise("not", b.elementwise("eq", x, x))


def is_inf(b: Backend, x: Value) -> Value:
    """Tell where numbers are infinite."""
    return b.elementwise("eq", b.elementwise("abs", x), b.scalar(math.inf, b.type(x)))


def ceil(b: Backend, x: Value) -> Value:
    """Round floats up."""
    return b.elementwise("neg", b.elementwise("floor", b.elementwise("neg", x)))


def trunc(b: Backend, x: Value) -> Value:
    """Round floats towards 0."""
    size = b.elementwise("floor", b.elementwise("abs", x))
    return b.where(negative(b, x), b.elementwise("neg", size), size)


def negative(b: Backend, x: Value) -> Value:
    """Tell where numbers are below 0."""
    return b.elementwise("lt", x, b.scalar(0, b.type(x)))


def sign(b: Backend, x: Value) -> Value:
    """Return -1, 0 or 1; NaN stays."""
    type_ = b.type(x)
    above = b.cast(b.elementwise("lt", b.scalar(0, type_), x), type_)
    if type_ in UNSIGNED:
        return above
    result = b.elementwise("sub", above, b.cast(negative(b, x), type_))
    return b.where(is_nan(b, x), x, result) if type_ in FLOATS else result


def floor_divide(b: Backend, x: Value, y: Value) -> Value:
    """Divide and round down."""
    type_ = b.type(x)
    if type_ in UNSIGNED:
        return b.elementwise("div", x, y)
    apart = b.elementwise("xor", negative(b, x), negative(b, y))
    if type_ not in FLOATS:
        over = b.elementwise("lt", b.scalar(0, type_), b.elementwise("abs", b.elementwise("mod", x, y)))
        return b.elementwise(
            "sub", b.elementwise("div", x, y), b.cast(b.elementwise("and", over, apart), type_)
        )
    # What the remainder leaves is a multiple but for rounding.
    size, divisor = b.elementwise("abs", x), b.elementwise("abs", y)
    rest = b.elementwise("mod", size, divisor)
    whole = b.elementwise("round", b.elementwise("div", b.elementwise("sub", size, rest), divisor))
    over = b.cast(b.elementwise("not", b.elementwise("eq", rest, b.scalar(0, type_))), type_)
    result = b.where(apart, b.elementwise("neg", b.elementwise("add", whole, over)), whole)
    by_zero = b.elementwise("eq", y, b.scalar(0, type_))
    return b.where(by_zero, b.elementwise("div", x, y), result)


def fmod(b: Backend, x: Value, y: Value) -> Value:
    """Return the remainder with the sign of x, as C's fmod and the % of its integers."""
    type_ = b.type(x)
    if type_ in UNSIGNED:
        return b.elementwise("mod", x, y)
    if type_ not in FLOATS:
        return b.elementwise("sub", x, b.elementwise("mul", b.elementwise("div", x, y), y))
    rest = b.elementwise("mod", b.elementwise("abs", x), b.elementwise("abs", y))
    # −0.0 is no less than 0, but equal to what is left of it.
    kept = b.where(b.elementwise("eq", rest, x), x, rest)
    return b.where(negative(b, x), b.elementwise("neg", rest), kept)


def shift_left(b: Backend, x: Value, count: Value) -> Value:
    """Multiply integers by 2^count; all bits go where that is their number or more."""
    type_ = b.type(x)
    bits = b.scalar(8 * ITEM_BYTES[type_], type_)
    inside = _within(b, count, bits)
    power = b.elementwise("pow", b.scalar(2, type_), b.where(inside, count, b.scalar(0, type_)))
    return b.where(inside, b.elementwise("mul", x, power), b.scalar(0, type_))


def shift_right(b: Backend, x: Value, count: Value) -> Value:
    """Divide integers by 2^count, rounding down; the sign stays where all other bits go."""
    type_ = b.type(x)
    bits = 8 * ITEM_BYTES[type_]
    count = b.where(_within(b, count, b.scalar(bits, type_)), count, b.scalar(bits, type_))
    # The largest power of 2 that a signed type has is one of two bits less than its own.
    most = b.scalar(bits - 2, type_)
    for _ in range(2):
        step = b.elementwise("min", count, most)
        x = floor_divide(b, x, b.elementwise("pow", b.scalar(2, type_), step))
        count = b.elementwise("sub", count, step)
    return x


def _within(b: Backend, count: Value, bits: Value) -> Value:
    below = b.elementwise("lt", count, bits)
    if b.type(count) in UNSIGNED:
        return below
    return b.elementwise("and", below, b.elementwise("le", b.scalar(0, b.type(count)), count))


def lowest(type_: DataType) -> float:
    """Return the smallest number of a type, −∞ for floats."""
    return -math.inf if type_ in FLOATS else int(np.iinfo(name_of(type_)).min)


def highest(type_: DataType) -> float:
    """Return the largest number of a type, ∞ for floats."""
    return math.inf if type_ in FLOATS else int(np.iinfo(name_of(type_)).max)


def _atom(name: str) -> Rule:
    return lambda b, x, y: b.elementwise(name, x, y)


BINARY: Mapping[str, tuple[Rule, str]] = {
    # By name: the rule, and what becomes of booleans: another atom, "int8" as numpy has it, or "" for none.
    "add": (_atom("add"), "or"),
    "subtract": (_atom("sub"), ""),
    "multiply": (_atom("mul"), "and"),
    "divide": (_atom("div"), "float"),
    "floor_divide": (floor_divide, "int8"),
    "remainder": (_atom("mod"), "int8"),
    "fmod": (fmod, "int8"),
    "power": (_atom("pow"), "int8"),
    "maximum": (_atom("max"), "or"),
    "minimum": (_atom("min"), "and"),
    "bitwise_and": (_atom("and"), "and"),
    "bitwise_or": (_atom("or"), "or"),
    "bitwise_xor": (_atom("xor"), "xor"),
    "left_shift": (shift_left, "int8"),
    "right_shift": (shift_right, "int8"),
}
OF_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")


COMPARISONS: Mapping[str, tuple[str, bool, bool]] = {
    # By name: an atom, whether its operands change places, whether the result is turned round.
    "equal": ("eq", False, False),
    "not_equal": ("eq", False, True),
    "less": ("lt", False, False),
    "less_equal": ("le", False, False),
    "greater": ("lt", True, False),
    "greater_equal": ("le", True, False),
}

"""Arithmetic, logic and comparison, element by element."""

from __future__ import annotations

import math
from functools import partial, reduce

import numpy as np

from libs.runtime.elements import ITEM_BYTES
from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.values import FLOATS, INTEGERS, UNSIGNED, Value


def _unary(atomic: str, call: Call) -> Value:
    return call.builder.unary(atomic, call.input(0))


def _binary(atomic: str, call: Call) -> Value:
    return call.builder.binary(atomic, call.input(0), call.input(1))


def _swapped(atomic: str, call: Call) -> Value:
    return call.builder.binary(atomic, call.input(1), call.input(0))


def _variadic(atomic: str, call: Call) -> Value:
    values = [call.input(index) for index in range(call.count)]
    return reduce(partial(call.builder.binary, atomic), values)


def _mean(call: Call) -> Value:
    total = _variadic("add", call)
    return call.builder.binary("div", total, call.builder.scalar(call.count, call.floats(total).type))


def _modulo(call: Call) -> Value:
    x, y, b = call.input(0), call.input(1), call.builder
    return b.fmod(x, y) if call.flag("fmod") else b.binary("mod", x, y)


def _power(call: Call) -> Value:
    base, exponent, b = call.input(0), call.input(1), call.builder
    if exponent.known is not None and exponent.known.size == 1 and exponent.rank <= base.rank:
        power = float(exponent.known.reshape(-1)[0])
        if power == 2:
            return b.binary("mul", base, base)
        if power == 3:
            return b.binary("mul", b.binary("mul", base, base), base)
    type_ = _power_type(base.type, exponent)
    return b.cast(b.binary("pow", b.cast(base, type_), b.cast(exponent, type_)), base.type)


_EXACT = 1 << 24
"""Up to here float32 has every integer."""


def _power_type(base: DataType, exponent: Value) -> DataType:
    """Return in what type powers are exact, or as near as the base has them."""
    if base in FLOATS:
        long = exponent.type in INTEGERS and ITEM_BYTES[exponent.type] >= 4
        if exponent.known is not None and long:
            long = bool((np.abs(exponent.known.astype(np.float64)) > _EXACT).any())
        return DataType.FLOAT64 if long else base
    if exponent.type in FLOATS:
        return DataType.FLOAT64
    if base is exponent.type:
        return base
    # Products modulo 2^64 are products modulo all smaller ones.
    return DataType.UINT64 if DataType.UINT64 in (base, exponent.type) else DataType.INT64


def _reciprocal(call: Call) -> Value:
    x = call.floats(call.input(0))
    return call.builder.binary("div", call.builder.scalar(1, x.type), x)


def _where(call: Call) -> Value:
    return call.builder.where(call.input(0), call.input(1), call.input(2))


def _is_inf(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    positive, negative = call.flag("detect_positive", True), call.flag("detect_negative", True)
    if positive and negative:
        return b.is_inf(x)
    if not positive and not negative:
        return b.broadcast(b.constant(np.array(False)), x.shape, fold=False)
    return b.binary("eq", x, b.scalar(np.inf if positive else -np.inf, x.type))


def _ceil(call: Call) -> Value:
    return call.builder.ceil(call.floats(call.input(0)))


def _is_nan(call: Call) -> Value:
    return call.builder.is_nan(call.floats(call.input(0)))


def _sign(call: Call) -> Value:
    return call.builder.sign(call.input(0))


def _asin(call: Call) -> Value:
    """2 · atan(x / (1 + √(1 − x²))), which loses nothing near ±1."""
    x, b = call.floats(call.input(0)), call.builder
    one = b.scalar(1, x.type)
    left = b.unary("sqrt", b.binary("mul", b.binary("sub", one, x), b.binary("add", one, x)))
    angle = b.unary("atan", b.binary("div", x, b.binary("add", one, left)))
    return b.binary("mul", angle, b.scalar(2, x.type))


def _acos(call: Call) -> Value:
    """2 · atan(√((1 − x) / (1 + x))): of −1 the ratio is infinite, and the result π."""
    x, b = call.floats(call.input(0)), call.builder
    one = b.scalar(1, x.type)
    ratio = b.binary("div", b.binary("sub", one, x), b.binary("add", one, x))
    return b.binary("mul", b.unary("atan", b.unary("sqrt", ratio)), b.scalar(2, x.type))


def _bit_shift(call: Call) -> Value:
    """Shifts are products with, and divisions by, powers of two; all bits go from the type's width on.

    Bits that come in on the left are those of the sign: a negative number is turned round before and after.
    """
    x, y, b = call.input(0), call.input(1), call.builder
    if x.type not in INTEGERS or y.type is not x.type:
        call.fail(f"{x} and {y} are not integers of one type")
    left = call.text("direction", "", ("LEFT", "RIGHT")) == "LEFT"
    if x.type in UNSIGNED:
        return _shifted(b, x, y, left)
    unsigned = DataType[f"U{x.type.name}"]
    bits, steps = b.bit_cast(x, unsigned), b.bit_cast(y, unsigned)
    if left:
        return b.bit_cast(_shifted(b, bits, steps, left), x.type)
    negative = b.binary("lt", x, b.scalar(0, x.type))
    turned = b.where(negative, b.unary("not", bits), bits)
    shifted = _shifted(b, turned, steps, left)
    return b.bit_cast(b.where(negative, b.unary("not", shifted), shifted), x.type)


def _shifted(b: Builder, x: Value, y: Value, left: bool) -> Value:
    stays = b.binary("lt", y, b.scalar(ITEM_BYTES[x.type] * 8, x.type))
    zero = b.scalar(0, x.type)
    power = b.binary("pow", b.scalar(2, x.type), b.where(stays, y, zero))
    return b.where(stays, b.binary("mul" if left else "div", x, power), zero)


def _tan(call: Call) -> Value:
    x, b = call.input(0), call.builder
    return b.binary("div", b.unary("sin", x), b.unary("cos", x))


def _cosh(call: Call) -> Value:
    return _exponentials(call.builder, call.floats(call.input(0)), "add")


def _exponentials(b: Builder, x: Value, atomic: str) -> Value:
    """Return (exp x ± exp −x) / 2, by the roots of these: they are finite as long as the result is."""
    half = b.binary("mul", x, b.scalar(0.5, x.type))
    up, down = b.unary("exp", half), b.unary("exp", b.unary("neg", half))
    scaled = [b.binary("mul", b.binary("mul", root, b.scalar(0.5, x.type)), root) for root in (up, down)]
    return b.binary(atomic, *scaled)


def _sinh(call: Call) -> Value:
    """2t / (1 − t²) of t = tanh(x / 2) where the exponentials nearly cancel."""
    x, b = call.floats(call.input(0)), call.builder
    one = b.scalar(1, x.type)
    root = b.unary("tanh", b.binary("mul", x, b.scalar(0.5, x.type)))
    rest = b.binary("mul", b.binary("sub", one, root), b.binary("add", one, root))
    near = b.binary("div", b.binary("add", root, root), rest)
    return b.where(b.binary("lt", b.unary("abs", x), one), near, _exponentials(b, x, "sub"))


def log_of_1_and(b: Builder, x: Value) -> Value:
    """Return log(1 + x), exact for small x too: what rounding adds to 1 + x is taken out as a ratio.

    `x` is finite. W. Kahan, in "HP-15C advanced functions handbook" (1982).
    """
    one = b.scalar(1, x.type)
    total = b.binary("add", one, x)
    added = b.binary("sub", total, one)
    ratio = b.binary("mul", b.binary("div", b.unary("log", total), added), x)
    return b.where(b.binary("eq", added, b.scalar(0, x.type)), x, ratio)


def _asinh(call: Call) -> Value:
    """sign(x) · log(1 + |x| + x² / (1 + √(x² + 1))); from where x² counts alone, log|x| + log 2."""
    x, b = call.floats(call.input(0)), call.builder
    size, one = b.unary("abs", x), b.scalar(1, x.type)
    small, large = _split(b, size)
    square = b.binary("mul", small, small)
    root = b.unary("sqrt", b.binary("add", square, one))
    near = log_of_1_and(b, b.binary("add", small, b.binary("div", square, b.binary("add", one, root))))
    result = b.where(large, _log_of_double(b, size), near)
    return _odd(b, x, result)


def _acosh(call: Call) -> Value:
    """log(1 + t + √t·√(2 + t)) of t = x − 1; from where x² counts alone, log x + log 2."""
    x, b = call.floats(call.input(0)), call.builder
    away = b.binary("sub", x, b.scalar(1, x.type))
    small, large = _split(b, away)
    roots = (b.unary("sqrt", side) for side in (small, b.binary("add", small, b.scalar(2, x.type))))
    root = b.binary("mul", *roots)
    return b.where(large, _log_of_double(b, x), log_of_1_and(b, b.binary("add", small, root)))


_LARGE = {DataType.FLOAT16: 100.0, DataType.FLOAT32: 1e8, DataType.FLOAT64: 1e16}
"""From here on 1 is nothing beside a square, and the square is still finite."""


def _split(b: Builder, x: Value) -> tuple[Value, Value]:
    """Return x where it isn't large, else 0; and where it is."""
    large = b.binary("lt", b.scalar(_LARGE[x.type], x.type), x)
    return b.where(large, b.scalar(0, x.type), x), large


def _log_of_double(b: Builder, x: Value) -> Value:
    return b.binary("add", b.unary("log", x), b.scalar(math.log(2), x.type))


def _odd(b: Builder, x: Value, result: Value) -> Value:
    """Return what a function makes of |x| as what it makes of x, with the sign of that; 0 is kept."""
    zero = b.scalar(0, x.type)
    signed = b.where(b.binary("lt", x, zero), b.unary("neg", result), result)
    return b.where(b.binary("eq", x, zero), x, signed)


def _atanh(call: Call) -> Value:
    """sign(x) · log(1 + 2|x| / (1 − |x|)) / 2."""
    x, b = call.floats(call.input(0)), call.builder
    size = b.unary("abs", x)
    ratio = b.binary("div", b.binary("add", size, size), b.binary("sub", b.scalar(1, x.type), size))
    log = b.where(b.is_inf(ratio), ratio, log_of_1_and(b, ratio))
    return _odd(b, x, b.binary("mul", log, b.scalar(0.5, x.type)))


_UNARY = {
    "Abs": "abs",
    "Atan": "atan",
    "Cos": "cos",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "Log": "log",
    "Neg": "neg",
    "Not": "not",
    "Round": "round",
    "Sin": "sin",
    "Sqrt": "sqrt",
    "Tanh": "tanh",
}
_BINARY = {
    "Add": "add",
    "And": "and",
    "Div": "div",
    "Equal": "eq",
    "Less": "lt",
    "LessOrEqual": "le",
    "Mul": "mul",
    "Or": "or",
    "Sub": "sub",
    "Xor": "xor",
}
_SINCE = {"Erf": 9, "Round": 11, "LessOrEqual": 12}

OPERATORS = (
    *(Operator(name, "atomic", partial(_unary, atom), _SINCE.get(name, 7)) for name, atom in _UNARY.items()),
    *(
        Operator(name, "atomic", partial(_binary, atom), _SINCE.get(name, 7))
        for name, atom in _BINARY.items()
    ),
    Operator("Acos", "composite", _acos),
    Operator("Asin", "composite", _asin),
    Operator("BitwiseAnd", "atomic", partial(_binary, "and"), 18),
    Operator("BitwiseNot", "atomic", partial(_unary, "not"), 18),
    Operator("BitwiseOr", "atomic", partial(_binary, "or"), 18),
    Operator("BitwiseXor", "atomic", partial(_binary, "xor"), 18),
    Operator("BitShift", "composite", _bit_shift, 11),
    Operator("Acosh", "composite", _acosh, 9),
    Operator("Asinh", "composite", _asinh, 9),
    Operator("Atanh", "composite", _atanh, 9),
    Operator("Ceil", "composite", _ceil),
    Operator("Cosh", "composite", _cosh, 9),
    Operator("Greater", "atomic", partial(_swapped, "lt")),
    Operator("GreaterOrEqual", "atomic", partial(_swapped, "le"), 12),
    Operator("IsInf", "composite", _is_inf, 10),
    Operator("IsNaN", "composite", _is_nan, 9),
    Operator("Max", "atomic", partial(_variadic, "max")),
    Operator("Mean", "composite", _mean),
    Operator("Min", "atomic", partial(_variadic, "min")),
    Operator("Mod", "atomic", _modulo, 10),
    Operator("Pow", "atomic", _power),
    Operator("Reciprocal", "composite", _reciprocal),
    Operator("Sign", "composite", _sign, 9),
    Operator("Sinh", "composite", _sinh, 9),
    Operator("Sum", "atomic", partial(_variadic, "add")),
    Operator("Tan", "composite", _tan),
    Operator("Where", "atomic", _where, 9, keeps=True),
)

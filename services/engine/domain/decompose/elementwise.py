"""Arithmetic, logic and comparison, element by element."""

from __future__ import annotations

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
    if base.type in INTEGERS and exponent.type in FLOATS:
        return b.cast(b.binary("pow", b.cast(base, exponent.type), exponent), base.type)
    return b.binary("pow", base, b.cast(exponent, base.type))


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


def _hyperbolic(atomic: str, call: Call) -> Value:
    x, b = call.input(0), call.builder
    both = b.binary(atomic, b.unary("exp", x), b.unary("exp", b.unary("neg", x)))
    return b.binary("mul", both, b.scalar(0.5, x.type))


def _asinh(call: Call) -> Value:
    """sign(x) · log(|x| + √(x² + 1)): stable for negative x."""
    x, b = call.input(0), call.builder
    size = b.unary("abs", x)
    root = b.unary("sqrt", b.binary("add", b.binary("mul", x, x), b.scalar(1, x.type)))
    return b.binary("mul", b.sign(x), b.unary("log", b.binary("add", size, root)))


def _acosh(call: Call) -> Value:
    x, b = call.input(0), call.builder
    one = b.scalar(1, x.type)
    root = b.binary("mul", b.unary("sqrt", b.binary("sub", x, one)), b.unary("sqrt", b.binary("add", x, one)))
    return b.unary("log", b.binary("add", x, root))


def _atanh(call: Call) -> Value:
    x, b = call.input(0), call.builder
    one = b.scalar(1, x.type)
    ratio = b.binary("div", b.binary("add", one, x), b.binary("sub", one, x))
    return b.binary("mul", b.unary("log", ratio), b.scalar(0.5, x.type))


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
    Operator("Cosh", "composite", partial(_hyperbolic, "add"), 9),
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
    Operator("Sinh", "composite", partial(_hyperbolic, "sub"), 9),
    Operator("Sum", "atomic", partial(_variadic, "add")),
    Operator("Tan", "composite", _tan),
    Operator("Where", "atomic", _where, 9, keeps=True),
)

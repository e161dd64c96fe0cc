"""Powers and logarithms.

What no atomic operator computes is made up of those that there are, in 64 bits, whatever the type of the
elements; results are within a few units in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from libs.compute import arithmetic
from libs.compute.backend import Backend, Value
from libs.compute.promotion import FLOATS, floating
from libs.compute.tensor import Tensor, as_floating, asarray, together
from libs.runtime.plan import DataType

__all__ = [
    "cbrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "reciprocal",
    "sinc",
    "sqrt",
    "square",
]


def atomic(operator: str, x: Any) -> Tensor:
    """Apply an atomic operator to numbers as floats."""
    tensor = as_floating(x)
    return Tensor(tensor.backend, tensor.backend.elementwise(operator, tensor.value))


def precise(rule: Callable[[Backend, Value], Value], x: Any) -> Tensor:
    """Apply a rule for float64 to numbers, and give floats as numpy does."""
    tensor = as_floating(x)
    b = tensor.backend
    return Tensor(b, b.cast(rule(b, b.cast(tensor.value, DataType.FLOAT64)), tensor.type))


def precise_pair(rule: Callable[[Backend, Value, Value], Value], x: Any, y: Any) -> Tensor:
    """Apply a rule for two float64 to numbers that broadcast, and give floats as numpy does."""
    b, values, type_ = together(x, y)
    wide = [b.cast(value, DataType.FLOAT64) for value in values]
    return Tensor(b, b.cast(rule(b, *wide), floating(type_)))


def number(b: Backend, value: float) -> Value:
    """Return a float64."""
    return b.scalar(value, DataType.FLOAT64)


def exp(x: Any, /) -> Tensor:
    """Return e to the power of each number."""
    return atomic("exp", x)


def log(x: Any, /) -> Tensor:
    """Return natural logarithms."""
    return atomic("log", x)


def sqrt(x: Any, /) -> Tensor:
    """Return square roots."""
    return atomic("sqrt", x)


def square(x: Any, /) -> Tensor:
    """Return squares."""
    tensor = asarray(x)
    if tensor.type is DataType.BOOL:
        tensor = tensor.astype(DataType.INT8)
    return tensor * tensor


def reciprocal(x: Any, /) -> Tensor:
    """Return 1 / x; of integers without the fraction."""
    tensor = asarray(x)
    if tensor.type is DataType.BOOL:
        tensor = tensor.astype(DataType.INT8)
    if tensor.type in FLOATS:
        return 1 / tensor
    b = tensor.backend
    return Tensor(b, b.elementwise("div", b.scalar(1, tensor.type), tensor.value))


def log1p_of(b: Backend, x: Value) -> Value:
    """Return log(1 + x) of float64 (Kahan): what 1 + x has lost is made good."""
    one = number(b, 1)
    total = b.elementwise("add", x, one)
    lost = b.elementwise("sub", total, one)
    divisor = b.where(b.elementwise("eq", lost, number(b, 0)), one, lost)
    result = b.elementwise("mul", b.elementwise("log", total), b.elementwise("div", x, divisor))
    result = b.where(b.elementwise("eq", total, one), x, result)
    return b.where(b.elementwise("eq", total, number(b, math.inf)), total, result)


def expm1_of(b: Backend, x: Value) -> Value:
    """Return e to the power of x, less 1, of float64 (Kahan)."""
    one = number(b, 1)
    power = b.elementwise("exp", x)
    less = b.elementwise("sub", power, one)
    logarithm = b.elementwise("log", power)
    divisor = b.where(b.elementwise("eq", logarithm, number(b, 0)), one, logarithm)
    exact = b.elementwise("mul", less, b.elementwise("div", x, divisor))
    near = b.elementwise("lt", b.elementwise("abs", x), number(b, 1))
    result = b.where(near, exact, less)
    return b.where(b.elementwise("eq", power, one), x, result)


def log1p(x: Any, /) -> Tensor:
    """Return log(1 + x), exact near 0."""
    return precise(log1p_of, x)


def expm1(x: Any, /) -> Tensor:
    """Return e to the power of x, less 1, exact near 0."""
    return precise(expm1_of, x)


def exp2(x: Any, /) -> Tensor:
    """Return 2 to the power of each number."""
    return precise(lambda b, value: b.elementwise("pow", number(b, 2), value), x)


def _logarithm(b: Backend, x: Value, base: float) -> Value:
    """Return logarithms; those of whole powers are whole."""
    found = b.elementwise("div", b.elementwise("log", x), number(b, math.log(base)))
    whole = b.elementwise("round", found)
    power = b.elementwise("pow", number(b, base), whole)
    exact = b.elementwise("and", b.elementwise("eq", power, x), b.elementwise("lt", number(b, 0), x))
    return b.where(exact, whole, found)


def log2(x: Any, /) -> Tensor:
    """Return logarithms to the base 2."""
    return precise(lambda b, value: _logarithm(b, value, 2), x)


def log10(x: Any, /) -> Tensor:
    """Return logarithms to the base 10."""
    return precise(lambda b, value: _logarithm(b, value, 10), x)


def cbrt(x: Any, /) -> Tensor:
    """Return cube roots, with the sign of the number."""

    def rule(b: Backend, value: Value) -> Value:
        size = b.elementwise("abs", value)
        root = b.elementwise("pow", size, number(b, 1 / 3))
        # One step of Newton's makes good what 1/3 isn't.
        square_ = b.elementwise("mul", root, root)
        plain = b.elementwise("and", b.elementwise("lt", number(b, 0), size), _finite(b, size))
        divisor = b.where(plain, square_, number(b, 1))
        better = b.elementwise("add", b.elementwise("add", root, root), b.elementwise("div", size, divisor))
        root = b.where(plain, b.elementwise("div", better, number(b, 3)), root)
        return b.where(arithmetic.negative(b, value), b.elementwise("neg", root), root)

    return precise(rule, x)


def _finite(b: Backend, x: Value) -> Value:
    return b.elementwise("lt", b.elementwise("abs", x), number(b, math.inf))


def logaddexp(x1: Any, x2: Any, /) -> Tensor:
    """Return log(exp(x1) + exp(x2)) without leaving the range of numbers."""
    return precise_pair(lambda b, x, y: _log_sum(b, x, y, math.e), x1, x2)


def logaddexp2(x1: Any, x2: Any, /) -> Tensor:
    """Return the logarithm to the base 2 of 2**x1 + 2**x2."""
    return precise_pair(lambda b, x, y: _log_sum(b, x, y, 2.0), x1, x2)


def _log_sum(b: Backend, x: Value, y: Value, base: float) -> Value:
    # Two equal infinities have no difference.
    gap = b.where(b.elementwise("eq", x, y), number(b, 0), b.elementwise("sub", x, y))
    scale = number(b, math.log(base))
    power = b.elementwise("exp", b.elementwise("neg", b.elementwise("mul", b.elementwise("abs", gap), scale)))
    more = b.elementwise("div", log1p_of(b, power), scale)
    return b.elementwise("add", b.elementwise("max", x, y), more)


def sinc(x: Any) -> Tensor:
    """Return sin(πx) / πx, 1 at 0."""

    def rule(b: Backend, value: Value) -> Value:
        zero = b.elementwise("eq", value, number(b, 0))
        angle = b.elementwise("mul", b.where(zero, number(b, 1.0e-20), value), number(b, math.pi))
        return b.elementwise("div", b.elementwise("sin", angle), angle)

    tensor = asarray(x)
    return precise(rule, tensor if tensor.type in FLOATS else tensor.astype(DataType.FLOAT64))

"""Arithmetic, element by element, as numpy's functions of those names; arguments broadcast.

An integer divided by 0 is refused. So are negative powers of integers where they are known, as numpy refuses
them; where they aren't until a plan runs, it refuses those of 0, and others are 0 but for those of 1 and -1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute import arithmetic
from libs.compute.matrix.trigonometry import sign_bit
from libs.compute.promotion import FLOATS, INTEGERS, floating, name_of
from libs.compute.tensor import Tensor, as_floating, asarray, binary, tensors_of, together
from libs.runtime.plan import DataType

__all__ = [
    "abs",
    "absolute",
    "add",
    "clip",
    "copysign",
    "divide",
    "divmod",
    "fabs",
    "float_power",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "gcd",
    "heaviside",
    "lcm",
    "ldexp",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "nan_to_num",
    "negative",
    "positive",
    "pow",
    "power",
    "remainder",
    "sign",
    "signbit",
    "subtract",
    "true_divide",
]


def add(x1: Any, x2: Any, /) -> Tensor:
    """Return x1 + x2; of booleans, whether either is true."""
    return binary("add", x1, x2)


def subtract(x1: Any, x2: Any, /) -> Tensor:
    """Return x1 - x2."""
    return binary("subtract", x1, x2)


def multiply(x1: Any, x2: Any, /) -> Tensor:
    """Return x1 · x2; of booleans, whether both are true."""
    return binary("multiply", x1, x2)


def divide(x1: Any, x2: Any, /) -> Tensor:
    """Return x1 / x2 as floats."""
    return binary("divide", x1, x2)


def floor_divide(x1: Any, x2: Any, /) -> Tensor:
    """Return x1 / x2, rounded down."""
    return binary("floor_divide", x1, x2)


def remainder(x1: Any, x2: Any, /) -> Tensor:
    """Return what x1 / x2, rounded down, leaves: it has the sign of x2."""
    return binary("remainder", x1, x2)


def fmod(x1: Any, x2: Any, /) -> Tensor:
    """Return what x1 / x2, rounded towards 0, leaves: it has the sign of x1."""
    return binary("fmod", x1, x2)


def divmod(x1: Any, x2: Any, /) -> tuple[Tensor, Tensor]:
    """Return x1 / x2, rounded down, and what that leaves."""
    return floor_divide(x1, x2), remainder(x1, x2)


def power(x1: Any, x2: Any, /) -> Tensor:
    """Return x1 to the power of x2."""
    return binary("power", x1, x2)


def float_power(x1: Any, x2: Any, /) -> Tensor:
    """Return x1 to the power of x2, both as float64."""
    return power(asarray(x1).astype(DataType.FLOAT64), asarray(x2).astype(DataType.FLOAT64))


def maximum(x1: Any, x2: Any, /) -> Tensor:
    """Return the larger of two; NaN where either is."""
    return binary("maximum", x1, x2)


def minimum(x1: Any, x2: Any, /) -> Tensor:
    """Return the smaller of two; NaN where either is."""
    return binary("minimum", x1, x2)


def fmax(x1: Any, x2: Any, /) -> Tensor:
    """Return the larger of two; where one is NaN, the other."""
    return _numbers_first("maximum", x1, x2)


def fmin(x1: Any, x2: Any, /) -> Tensor:
    """Return the smaller of two; where one is NaN, the other."""
    return _numbers_first("minimum", x1, x2)


def _numbers_first(name: str, x1: Any, x2: Any) -> Tensor:
    b, (x, y), type_ = together(x1, x2)
    if type_ not in FLOATS:
        return binary(name, x1, x2)
    first = b.where(arithmetic.is_nan(b, x), y, x)
    second = b.where(arithmetic.is_nan(b, y), x, y)
    return binary(name, Tensor(b, first), Tensor(b, second))


def negative(x: Any, /) -> Tensor:
    """Return -x."""
    return -asarray(x)


def positive(x: Any, /) -> Tensor:
    """Return x."""
    tensor = asarray(x)
    if tensor.type is DataType.BOOL:
        raise Invalid("positive doesn't take booleans")
    return tensor


def absolute(x: Any, /) -> Tensor:
    """Return numbers without their sign."""
    return asarray(x).__abs__()


def fabs(x: Any, /) -> Tensor:
    """Return numbers without their sign, as floats."""
    return as_floating(x).__abs__()


def sign(x: Any, /) -> Tensor:
    """Return -1, 0 or 1; NaN stays."""
    tensor = asarray(x)
    if tensor.type is DataType.BOOL:
        raise Invalid("sign doesn't take booleans")
    return Tensor(tensor.backend, arithmetic.sign(tensor.backend, tensor.value))


def signbit(x: Any, /) -> Tensor:
    """Tell which numbers have a minus, -0.0 among them."""
    tensor = as_floating(x)
    return Tensor(tensor.backend, sign_bit(tensor.backend, tensor.value))


def copysign(x1: Any, x2: Any, /) -> Tensor:
    """Return x1 with the sign of x2."""
    b, (x, y), type_ = together(x1, x2)
    type_ = floating(type_)
    size = b.elementwise("abs", b.cast(x, type_))
    return Tensor(b, b.where(sign_bit(b, b.cast(y, type_)), b.elementwise("neg", size), size))


def heaviside(x1: Any, x2: Any, /) -> Tensor:
    """Return 0 below 0, 1 above, x2 at 0."""
    b, (x, y), type_ = together(x1, x2)
    type_ = floating(type_)
    x, y = b.cast(x, type_), b.cast(y, type_)
    zero, one = b.scalar(0, type_), b.scalar(1, type_)
    step = b.where(b.elementwise("eq", x, zero), y, b.where(arithmetic.negative(b, x), zero, one))
    return Tensor(b, b.where(arithmetic.is_nan(b, x), x, step))


def clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Tensor:
    """Return numbers moved into a range, of which either end may be left out."""
    low = a_min if a_min is not None else min
    high = a_max if a_max is not None else max
    result = asarray(a)
    if low is not None:
        result = maximum(result, low)
    return result if high is None else minimum(result, high)


def ldexp(x1: Any, x2: Any, /) -> Tensor:
    """Return x1 · 2 to the power of x2, whole numbers."""
    exponent, tensor = asarray(x2), as_floating(x1)
    if exponent.type not in INTEGERS:
        raise Invalid(f"ldexp: its powers are {exponent.dtype}, not integers")
    tensor, exponent = tensors_of(tensor, clip(exponent.astype(DataType.INT64), -4000, 4000))
    # In steps: a power of 2 may be out of reach where the result isn't.
    step, result = exponent // 4, tensor.astype(DataType.FLOAT64)
    b = tensor.backend
    for part in (step, step, step, exponent - 3 * step):
        wide = b.cast(part.value, DataType.FLOAT64)
        result = result * Tensor(b, b.elementwise("pow", b.scalar(2, DataType.FLOAT64), wide))
    return result.astype(tensor.type)


def gcd(x1: Any, x2: Any, /) -> Tensor:
    """Return the greatest common divisor of integers, 0 of two zeros (Euclid)."""
    b, (x, y), type_ = together(x1, x2)
    if type_ not in INTEGERS:
        raise Invalid(f"gcd takes integers, not {name_of(type_)}")
    shape = b.common_shape(b.shape(x), b.shape(y))
    x, y = (b.elementwise("abs", b.broadcast(value, shape)) for value in (x, y))
    zero, one = b.scalar(0, type_), b.scalar(1, type_)

    def divide_on(_: Any, state: list[Any]) -> tuple[Any, list[Any]]:
        larger, smaller = state
        done = b.elementwise("eq", smaller, zero)
        rest = b.elementwise("mod", larger, b.where(done, one, smaller))
        after = [b.where(done, larger, smaller), b.where(done, zero, rest)]
        left = b.cast(b.elementwise("not", b.elementwise("eq", after[1], zero)), DataType.INT64)
        total = b.reduce("reduce_sum", left, tuple(range(len(shape))), keep=False)
        return b.elementwise("lt", b.scalar(0, DataType.INT64), total), after

    # Fibonacci's numbers take longest: so many lie below 2 to the 64th.
    divisor, _ = b.loop(96, [x, y], divide_on)
    return Tensor(b, divisor)


def lcm(x1: Any, x2: Any, /) -> Tensor:
    """Return the least common multiple of integers, 0 where one is 0."""
    divisor = gcd(x1, x2)
    b, (x, y, both), type_ = together(x1, x2, divisor)
    zero = b.elementwise("eq", both, b.scalar(0, type_))
    x, y = b.elementwise("abs", x), b.elementwise("abs", y)
    parts = b.elementwise("div", x, b.where(zero, b.scalar(1, type_), both))
    return Tensor(b, b.elementwise("mul", parts, y))


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Tensor:
    """Return floats with NaN and infinities replaced: by 0 and the type's largest numbers.

    The result is another array, whatever `copy` says.
    """
    tensor = asarray(x)
    if tensor.type not in FLOATS:
        return tensor
    b, type_ = tensor.backend, tensor.type
    limit = float(np.finfo(tensor.dtype).max)
    value = tensor.value
    for found, given, default in (
        (arithmetic.is_nan(b, value), nan, 0.0),
        (b.elementwise("eq", value, b.scalar(math.inf, type_)), posinf, limit),
        (b.elementwise("eq", value, b.scalar(-math.inf, type_)), neginf, -limit),
    ):
        (new,) = [each.value for each in tensors_of(default if given is None else given, tensor)[:1]]
        value = b.where(found, b.cast(new, type_), value)
    return Tensor(b, value)


abs, mod, pow, true_divide = absolute, remainder, power, divide

"""Angles, in radians.

As in `exponential`: what no atomic operator computes is made up in 64 bits.
"""

from __future__ import annotations

import math
from typing import Any

from libs.compute import arithmetic
from libs.compute.axes import axis_of, number_of
from libs.compute.backend import Backend, Value
from libs.compute.matrix.exponential import (
    atomic,
    expm1_of,
    log1p_of,
    number,
    precise,
    precise_pair,
)
from libs.compute.matrix.joining import concatenate
from libs.compute.promotion import FLOATS
from libs.compute.tensor import Tensor, as_floating, asarray
from libs.runtime.plan import DataType

__all__ = [
    "acos",
    "acosh",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cos",
    "cosh",
    "deg2rad",
    "degrees",
    "hypot",
    "rad2deg",
    "radians",
    "sin",
    "sinh",
    "tan",
    "tanh",
    "unwrap",
]


def sin(x: Any, /) -> Tensor:
    """Return sines."""
    return atomic("sin", x)


def cos(x: Any, /) -> Tensor:
    """Return cosines."""
    return atomic("cos", x)


def tan(x: Any, /) -> Tensor:
    """Return tangents."""
    return precise(lambda b, a: b.elementwise("div", b.elementwise("sin", a), b.elementwise("cos", a)), x)


def tanh(x: Any, /) -> Tensor:
    """Return hyperbolic tangents."""
    return atomic("tanh", x)


def arctan(x: Any, /) -> Tensor:
    """Return angles from tangents, between -π/2 and π/2."""
    return atomic("atan", x)


def _signed(b: Backend, x: Value, size: Value) -> Value:
    """Return a size with the sign of a number."""
    return b.where(arithmetic.negative(b, x), b.elementwise("neg", size), size)


def arcsin(x: Any, /) -> Tensor:
    """Return angles from sines, between -π/2 and π/2; NaN beyond -1 and 1."""

    def rule(b: Backend, a: Value) -> Value:
        one = number(b, 1)
        rest = b.elementwise("mul", b.elementwise("sub", one, a), b.elementwise("add", one, a))
        return b.elementwise("atan", b.elementwise("div", a, b.elementwise("sqrt", rest)))

    return precise(rule, x)


def arccos(x: Any, /) -> Tensor:
    """Return angles from cosines, between 0 and π; NaN beyond -1 and 1."""

    def rule(b: Backend, a: Value) -> Value:
        one = number(b, 1)
        square = b.elementwise("div", b.elementwise("sub", one, a), b.elementwise("add", one, a))
        half = b.elementwise("atan", b.elementwise("sqrt", square))
        return b.elementwise("add", half, half)

    return precise(rule, x)


def sign_bit(b: Backend, x: Value) -> Value:
    """Tell which floats have a minus, -0.0 among them."""
    whole = {DataType.FLOAT16: DataType.INT16, DataType.FLOAT32: DataType.INT32}
    return arithmetic.negative(b, b.bit_cast(x, whole.get(b.type(x), DataType.INT64)))


def _angle(b: Backend, y: Value, x: Value) -> Value:
    zero, height, width = number(b, 0), b.elementwise("abs", y), b.elementwise("abs", x)
    # 0 / 0 is 0 here, ∞ / ∞ is 1.
    equal = b.elementwise("eq", height, width)
    slope = b.where(
        equal,
        b.where(b.elementwise("eq", height, zero), zero, number(b, 1)),
        b.elementwise("div", height, width),
    )
    angle = b.elementwise("atan", slope)
    angle = b.where(sign_bit(b, x), b.elementwise("sub", number(b, math.pi), angle), angle)
    angle = b.where(sign_bit(b, y), b.elementwise("neg", angle), angle)
    nothing = b.elementwise("or", arithmetic.is_nan(b, x), arithmetic.is_nan(b, y))
    return b.where(nothing, number(b, math.nan), angle)


def arctan2(x1: Any, x2: Any, /) -> Tensor:
    """Return the angle of the point (x2, x1), between -π and π."""
    return precise_pair(_angle, x1, x2)


def hypot(x1: Any, x2: Any, /) -> Tensor:
    """Return √(x1² + x2²) without leaving the range of numbers."""

    def rule(b: Backend, x: Value, y: Value) -> Value:
        a, c = b.elementwise("abs", x), b.elementwise("abs", y)
        large, small = b.elementwise("max", a, c), b.elementwise("min", a, c)
        zero = b.elementwise("eq", large, number(b, 0))
        ratio = b.elementwise("div", small, b.where(zero, number(b, 1), large))
        root = b.elementwise("sqrt", b.elementwise("add", number(b, 1), b.elementwise("mul", ratio, ratio)))
        found = b.elementwise("mul", large, root)
        infinite = b.elementwise("or", arithmetic.is_inf(b, x), arithmetic.is_inf(b, y))
        return b.where(infinite, number(b, math.inf), found)

    return precise_pair(rule, x1, x2)


def _halves(b: Backend, size: Value) -> tuple[Value, Value]:
    """Return e^|x| / 2 and e^-|x| / 2, of which the first is finite for as long as it can be."""
    half, root = number(b, 0.5), b.elementwise("exp", b.elementwise("mul", size, number(b, 0.5)))
    large = b.elementwise("mul", b.elementwise("mul", half, root), root)
    return large, b.elementwise("mul", half, b.elementwise("exp", b.elementwise("neg", size)))


def cosh(x: Any, /) -> Tensor:
    """Return hyperbolic cosines."""
    return precise(lambda b, a: b.elementwise("add", *_halves(b, b.elementwise("abs", a))), x)


def sinh(x: Any, /) -> Tensor:
    """Return hyperbolic sines."""

    def rule(b: Backend, a: Value) -> Value:
        size = b.elementwise("abs", a)
        less = expm1_of(b, size)
        more = b.elementwise("div", less, b.elementwise("add", less, number(b, 1)))
        near = b.elementwise("mul", b.elementwise("add", less, more), number(b, 0.5))
        far = b.elementwise("sub", *_halves(b, size))
        return _signed(b, a, b.where(b.elementwise("lt", size, number(b, 1)), near, far))

    return precise(rule, x)


_LARGE = 1.0e8
"""From here on, √(x² ± 1) is x in 64 bits."""


def arcsinh(x: Any, /) -> Tensor:
    """Return what has these hyperbolic sines."""

    def rule(b: Backend, a: Value) -> Value:
        size, one = b.elementwise("abs", a), number(b, 1)
        square = b.elementwise("mul", size, size)
        root = b.elementwise("add", one, b.elementwise("sqrt", b.elementwise("add", one, square)))
        near = log1p_of(b, b.elementwise("add", size, b.elementwise("div", square, root)))
        far = b.elementwise("add", b.elementwise("log", size), number(b, math.log(2)))
        return _signed(b, a, b.where(b.elementwise("lt", size, number(b, _LARGE)), near, far))

    return precise(rule, x)


def arccosh(x: Any, /) -> Tensor:
    """Return what has these hyperbolic cosines, from 0 on; NaN below 1."""

    def rule(b: Backend, a: Value) -> Value:
        one = number(b, 1)
        over = b.elementwise("sub", a, one)
        square = b.elementwise("mul", over, b.elementwise("add", over, number(b, 2)))
        near = log1p_of(b, b.elementwise("add", over, b.elementwise("sqrt", square)))
        far = b.elementwise("add", b.elementwise("log", a), number(b, math.log(2)))
        found = b.where(b.elementwise("lt", a, number(b, _LARGE)), near, far)
        return b.where(b.elementwise("lt", a, one), number(b, math.nan), found)

    return precise(rule, x)


def arctanh(x: Any, /) -> Tensor:
    """Return what has these hyperbolic tangents; NaN beyond -1 and 1."""

    def rule(b: Backend, a: Value) -> Value:
        size = b.elementwise("abs", a)
        double = b.elementwise("add", size, size)
        ratio = b.elementwise("div", double, b.elementwise("sub", number(b, 1), size))
        return _signed(b, a, b.elementwise("mul", log1p_of(b, ratio), number(b, 0.5)))

    return precise(rule, x)


def degrees(x: Any, /) -> Tensor:
    """Return angles in degrees."""
    return as_floating(x) * (180.0 / math.pi)


def radians(x: Any, /) -> Tensor:
    """Return angles given in degrees in radians."""
    return as_floating(x) * (math.pi / 180.0)


rad2deg, deg2rad = degrees, radians
asin, acos, atan, atan2 = arcsin, arccos, arctan, arctan2
asinh, acosh, atanh = arcsinh, arccosh, arctanh


def unwrap(p: Any, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi) -> Tensor:
    """Return angles along an axis without jumps of more than half a period: whole periods are taken off."""
    tensor = asarray(p)
    whole = tensor.type not in FLOATS and isinstance(period, int)
    period = period if whole else number_of(period, "unwrap", "period")
    discont = discont if discont is None else number_of(discont, "unwrap", "discont")
    tensor = tensor if tensor.type in FLOATS or whole else tensor.astype(DataType.FLOAT64)
    place = axis_of(axis, tensor.ndim, "unwrap")
    b = tensor.backend
    lead = (slice(None),) * place
    later, earlier = tensor[(*lead, slice(1, None))], tensor[(*lead, slice(None, -1))]
    gap = later - earlier
    half = period // 2 if whole else period / 2
    near = (gap + half) % period - half
    if not whole or period % 2 == 0:
        turned = Tensor(b, b.elementwise("and", (near == -half).value, (gap > 0).value))
        near = Tensor(b, b.where(turned.value, b.scalar(half, near.type), near.value))
    limit = half if discont is None else max(discont, half)
    small = abs(gap) < limit
    change = Tensor(b, b.where(small.value, b.scalar(0, near.type), (near - gap).value))
    moved = later + Tensor(b, b.cumulative_sum(change.value, place))
    return concatenate([tensor[(*lead, slice(None, 1))], moved], place)

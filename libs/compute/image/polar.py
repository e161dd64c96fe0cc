"""Functions of real numbers, element by element, and between lengths with angles and pairs of coordinates."""

from __future__ import annotations

import math
from typing import Any

from libs.compute.image.pixels import (
    PIXELS,
    REAL,
    apply,
    constant,
    flag,
    image,
    real,
    same_shape,
    saturate,
    where,
)
from libs.compute.tensor import Tensor, tensors_of

__all__ = ["cartToPolar", "exp", "log", "magnitude", "phase", "polarToCart", "pow", "sqrt"]


def _pair(call: str, first: tuple[str, Any], second: tuple[str, Any]) -> tuple[Tensor, Tensor]:
    one = image(call, *first, REAL)
    one, other = tensors_of(one, image(call, *second, (one.dtype,)))
    same_shape(call, **{first[0]: one, second[0]: other})
    return one, other


def magnitude(x: Any, y: Any) -> Tensor:
    """Return √(x² + y²) of float32 or float64.

    OpenCV: 1e-6.
    """
    across, down = _pair("magnitude", ("x", x), ("y", y))
    return apply("sqrt", across * across + down * down)


def phase(x: Any, y: Any, angleInDegrees: bool = False) -> Tensor:
    """Return the angle of (x, y), from 0 to 2π, or to 360 degrees; 0 of (0, 0).

    OpenCV: 0.02 degrees (it has the angle from a polynomial).
    """
    degrees = flag("phase", "angleInDegrees", angleInDegrees)
    return _angle(*_pair("phase", ("x", x), ("y", y)), degrees)


def _angle(x: Tensor, y: Tensor, degrees: bool) -> Tensor:
    turn = 360.0 if degrees else 2 * math.pi
    none = x == 0
    at = apply("atan", y / where(none, constant(x, 1), x)) * (turn / (2 * math.pi))
    upright = where(y < 0, constant(x, turn * 3 / 4), constant(x, turn / 4))
    angle = where(none, where(y == 0, constant(x, 0), upright), where(x < 0, at + turn / 2, at))
    return where(angle < 0, angle + turn, angle)


def cartToPolar(x: Any, y: Any, angleInDegrees: bool = False) -> tuple[Tensor, Tensor]:
    """Return `magnitude` and `phase`.

    OpenCV: 1e-6, and 0.02 degrees.
    """
    degrees = flag("cartToPolar", "angleInDegrees", angleInDegrees)
    across, down = _pair("cartToPolar", ("x", x), ("y", y))
    return apply("sqrt", across * across + down * down), _angle(across, down, degrees)


def polarToCart(magnitude: Any, angle: Any, angleInDegrees: bool = False) -> tuple[Tensor, Tensor]:
    """Return x and y of lengths and angles.

    OpenCV: 1e-5.
    """
    length, turn = _pair("polarToCart", ("magnitude", magnitude), ("angle", angle))
    turn = turn * (math.pi / 180) if flag("polarToCart", "angleInDegrees", angleInDegrees) else turn
    return length * apply("cos", turn), length * apply("sin", turn)


def sqrt(src: Any) -> Tensor:
    """Return the square root of float32 or float64.

    OpenCV: exact.
    """
    return apply("sqrt", image("sqrt", "src", src, REAL))


def exp(src: Any) -> Tensor:
    """Return e to the power of float32 or float64.

    OpenCV: 1e-6.
    """
    return apply("exp", image("exp", "src", src, REAL))


def log(src: Any) -> Tensor:
    """Return the natural logarithm of float32 or float64.

    OpenCV: 1e-6.
    """
    return apply("log", image("log", "src", src, REAL))


def pow(src: Any, power: float) -> Tensor:
    """Return src to a power; of integers to a whole one, saturated. For a broken power: of |src|.

    OpenCV: exact for uint8 and whole powers of 0 or more, else 1e-5 (of wider integers, it wraps powers).
    """
    call = "pow"
    tensor = image(call, "src", src, PIXELS)
    exponent = real(call, "power", power)
    if tensor.dtype in REAL:
        base = tensor if exponent == int(exponent) else apply("abs", tensor)
        return apply("pow", base, constant(base, exponent))
    base = tensor.astype("float64")
    base = base if exponent == int(exponent) else apply("abs", base)
    return saturate(apply("pow", base, constant(base, exponent)), tensor.dtype)

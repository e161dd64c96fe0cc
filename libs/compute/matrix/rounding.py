"""Numbers without some of their digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from libs.compute import arithmetic
from libs.compute.axes import whole_of
from libs.compute.backend import Backend, Value
from libs.compute.promotion import FLOATS
from libs.compute.tensor import Tensor, as_floating, asarray
from libs.runtime.plan import DataType

__all__ = ["around", "ceil", "fix", "floor", "modf", "rint", "round", "trunc"]


def _of_floats(x: Any, rule: Callable[[Backend, Value], Value]) -> Tensor:
    """Apply a rule to floats; whole numbers are what they are."""
    tensor = asarray(x)
    if tensor.type not in FLOATS:
        return tensor
    return Tensor(tensor.backend, rule(tensor.backend, tensor.value))


def floor(x: Any, /) -> Tensor:
    """Round down."""
    return _of_floats(x, lambda b, value: b.elementwise("floor", value))


def ceil(x: Any, /) -> Tensor:
    """Round up."""
    return _of_floats(x, arithmetic.ceil)


def trunc(x: Any, /) -> Tensor:
    """Round towards 0."""
    return _of_floats(x, arithmetic.trunc)


def fix(x: Any) -> Tensor:
    """Round towards 0."""
    return trunc(x)


def rint(x: Any, /) -> Tensor:
    """Round to the nearest integer, of two as near to the even one."""
    return _of_floats(as_floating(x), lambda b, value: b.elementwise("round", value))


def round(a: Any, decimals: int = 0) -> Tensor:
    """Round to so many decimals, of two as near to the even one; below 0: to tens and so on."""
    tensor, digits = asarray(a), whole_of(decimals, "round", "decimals", -300, 300)
    if tensor.type is DataType.BOOL:
        return tensor.astype(DataType.FLOAT16)
    if tensor.type not in FLOATS:
        if digits >= 0:
            return tensor
        power = 10.0 ** min(-digits, 300)
        return (rint(tensor.astype(DataType.FLOAT64) / power) * power).astype(tensor.type)
    if digits == 0:
        return rint(tensor)
    power = 10.0 ** abs(digits)
    scaled: Tensor = rint(tensor * power) / power if digits > 0 else rint(tensor / power) * power
    return scaled


around = round


def modf(x: Any, /) -> tuple[Tensor, Tensor]:
    """Return the fractions and the whole parts of numbers, both with their sign."""
    tensor = as_floating(x)
    whole = trunc(tensor)
    b = tensor.backend
    infinite = arithmetic.is_inf(b, tensor.value)
    fraction = b.where(infinite, b.scalar(0, tensor.type), (tensor - whole).value)
    return Tensor(b, fraction), whole

"""Truth, comparison, and choice by it."""

from __future__ import annotations

import math
from typing import Any

from libs.common.errors import Invalid
from libs.compute import arithmetic
from libs.compute.axes import axes_of, flag_of
from libs.compute.indexing import nonzero
from libs.compute.promotion import FLOATS
from libs.compute.tensor import Tensor, as_floating, asarray, compare, tensors_of, together
from libs.runtime.plan import DataType

__all__ = [
    "all",
    "allclose",
    "any",
    "array_equal",
    "array_equiv",
    "equal",
    "greater",
    "greater_equal",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
    "where",
]


def equal(x1: Any, x2: Any, /) -> Tensor:
    """Tell where x1 = x2."""
    return compare("equal", x1, x2)


def not_equal(x1: Any, x2: Any, /) -> Tensor:
    """Tell where x1 ≠ x2."""
    return compare("not_equal", x1, x2)


def less(x1: Any, x2: Any, /) -> Tensor:
    """Tell where x1 < x2."""
    return compare("less", x1, x2)


def less_equal(x1: Any, x2: Any, /) -> Tensor:
    """Tell where x1 ≤ x2."""
    return compare("less_equal", x1, x2)


def greater(x1: Any, x2: Any, /) -> Tensor:
    """Tell where x1 > x2."""
    return compare("greater", x1, x2)


def greater_equal(x1: Any, x2: Any, /) -> Tensor:
    """Tell where x1 ≥ x2."""
    return compare("greater_equal", x1, x2)


def _bools(operator: str, *things: Any) -> Tensor:
    tensors = tensors_of(*things)
    b = tensors[0].backend
    return Tensor(b, b.elementwise(operator, *(b.cast(each.value, DataType.BOOL) for each in tensors)))


def logical_and(x1: Any, x2: Any, /) -> Tensor:
    """Tell where both are true."""
    return _bools("and", x1, x2)


def logical_or(x1: Any, x2: Any, /) -> Tensor:
    """Tell where either is true."""
    return _bools("or", x1, x2)


def logical_xor(x1: Any, x2: Any, /) -> Tensor:
    """Tell where one of two is true."""
    return _bools("xor", x1, x2)


def logical_not(x: Any, /) -> Tensor:
    """Tell where it isn't true."""
    return _bools("not", x)


def isnan(x: Any, /) -> Tensor:
    """Tell where there is no number."""
    tensor = as_floating(x)
    return Tensor(tensor.backend, arithmetic.is_nan(tensor.backend, tensor.value))


def isinf(x: Any, /) -> Tensor:
    """Tell where numbers are infinite."""
    tensor = as_floating(x)
    return Tensor(tensor.backend, arithmetic.is_inf(tensor.backend, tensor.value))


def isfinite(x: Any, /) -> Tensor:
    """Tell where numbers are neither infinite nor NaN."""
    return abs(as_floating(x)) < math.inf


def isposinf(x: Any) -> Tensor:
    """Tell where numbers are ∞."""
    return compare("equal", as_floating(x), math.inf)


def isneginf(x: Any) -> Tensor:
    """Tell where numbers are -∞."""
    return compare("equal", as_floating(x), -math.inf)


def isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Tensor:
    """Tell where |a - b| ≤ atol + rtol · |b|; equal infinities are close."""
    equal_nan = flag_of(equal_nan, "isclose", "equal_nan")
    backend, values, type_ = together(a, b)
    wide = type_ if type_ in FLOATS else DataType.FLOAT64
    x, y = (Tensor(backend, backend.cast(value, wide)) for value in values)
    near = logical_and(abs(x - y) <= atol + rtol * abs(y), isfinite(y))
    result = logical_or(near, x == y)
    return logical_or(result, logical_and(isnan(x), isnan(y))) if equal_nan else result


def allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Tensor:
    """Tell whether all are close; see `isclose`."""
    return all(isclose(a, b, rtol, atol, flag_of(equal_nan, "allclose", "equal_nan")))


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Tensor:
    """Tell whether two arrays have the same shape and elements."""
    first, second = tensors_of(a1, a2)
    equal_nan = flag_of(equal_nan, "array_equal", "equal_nan")
    if first.shape != second.shape:
        return asarray(False)
    same = first == second
    if equal_nan and first.type in FLOATS and second.type in FLOATS:
        same = logical_or(same, logical_and(isnan(first), isnan(second)))
    return all(same)


def array_equiv(a1: Any, a2: Any) -> Tensor:
    """Tell whether two arrays have the same elements once they broadcast."""
    first, second = tensors_of(a1, a2)
    try:
        return all(first == second)
    except Invalid:
        return asarray(False)


def all(a: Any, axis: Any = None, keepdims: bool = False, *, where: Any = True) -> Tensor:
    """Tell whether all are true along axes; None: all axes."""
    keepdims = flag_of(keepdims, "all", "keepdims")
    return _quantified("reduce_min", a, axis, keepdims, where, empty=True)


def any(a: Any, axis: Any = None, keepdims: bool = False, *, where: Any = True) -> Tensor:
    """Tell whether any is true along axes; None: all axes."""
    keepdims = flag_of(keepdims, "any", "keepdims")
    return _quantified("reduce_max", a, axis, keepdims, where, empty=False)


def _quantified(operator: str, a: Any, axis: Any, keepdims: bool, where: Any, *, empty: bool) -> Tensor:
    tensor, chosen = tensors_of(a, where)
    b = tensor.backend
    value = b.cast(tensor.value, DataType.BOOL)
    if where is not True:
        value = b.where(chosen.value, value, b.scalar(empty, DataType.BOOL))
    axes = axes_of(axis, len(b.shape(value)))
    # As 0 and 1 (the highest uint8 of nothing is true as well, its lowest false).
    found = b.reduce(operator, b.cast(value, DataType.UINT8), axes, keep=keepdims)
    return Tensor(b, b.cast(found, DataType.BOOL))


def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """Return x where the condition holds, y elsewhere; without those, the places where it holds."""
    if (x is None) != (y is None):
        raise Invalid("where takes a condition alone, or with both x and y")
    if x is None:
        tensor = asarray(condition)
        found = nonzero(tensor.backend, tensor.value)
        return tuple(Tensor(tensor.backend, each) for each in found)
    b, values, _ = together(x, y)
    chosen, *others = tensors_of(condition, *(Tensor(b, value) for value in values))
    b = chosen.backend
    return Tensor(b, b.where(b.cast(chosen.value, DataType.BOOL), *(each.value for each in others)))

"""Arithmetic on integers that depend on dimensions: what shape computations of a model come to.

Models compute shapes with ordinary operators (Shape, Gather, Mul, Concat, Reshape). Their elements are
extents here, in numpy arrays of objects, so that movement works on them as on numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from libs.common.errors import Invalid
from services.engine.domain import extents
from services.engine.domain.bounds import Bounds
from services.engine.domain.extents import Extent

Elements = npt.NDArray[np.object_]
"""An array whose elements are extents."""

MOST_ELEMENTS = 256
"""Of an array of extents; more are computed at run time."""
LONGEST_FORMULA = 2000
"""Characters of an extent: repeated multiplication would let it grow without bound."""


def check_size(extent: Extent) -> None:
    """Raise Invalid when a size's formula is too long or its numbers too large to keep."""
    if _is_large(extent):
        raise Invalid("a size of the model exceeds 63 bits, or a product of 16 dimensions")
    if _is_long(extent):
        raise Invalid(f"a size of the model is a formula of more than {LONGEST_FORMULA} characters")


def _is_large(extent: Extent) -> bool:
    return any(abs(coefficient) >> 63 or len(monomial) > 16 for monomial, coefficient in extent.terms)


def _is_long(extent: Extent) -> bool:
    return len(extent.terms) > 64 or (extent.constant is None and len(str(extent)) > LONGEST_FORMULA)


def minimum(a: Extent, b: Extent, bounds: Bounds) -> Extent:
    """Return the smaller; decided now where the bounds tell."""
    if bounds.at_least(b, a):
        return a
    return b if bounds.at_least(a, b) else extents.minimum(a, b)


def maximum(a: Extent, b: Extent, bounds: Bounds) -> Extent:
    """Return the larger; decided now where the bounds tell."""
    if bounds.at_least(a, b):
        return a
    return b if bounds.at_least(b, a) else extents.maximum(a, b)


def ceil_divide(a: Extent, b: int) -> Extent:
    """Return ⌈a / b⌉ for b > 0."""
    return -((-a) // b) if a.exact_quotient(b) is None else a // b


def clamp(value: Extent, low: Extent, high: Extent, bounds: Bounds) -> Extent:
    """Return `value` moved into low … high."""
    return maximum(minimum(value, high, bounds), low, bounds)


def _truncated_quotient(a: Extent, b: Extent, bounds: Bounds) -> Extent | None:
    if b.constant == 0:
        raise Invalid("an integer is divided by 0")
    if (exact := a.exact_quotient(b)) is not None:
        return exact
    return a // b if bounds.at_least(a, 0) and bounds.positive(b) else None


def _modulo(a: Extent, b: Extent, bounds: Bounds) -> Extent | None:
    return a % b if bounds.positive(b) else None


def _power(a: Extent, b: Extent, bounds: Bounds) -> Extent | None:
    if b.constant is None or not 0 <= b.constant <= 8:
        return None
    return extents.product([a] * b.constant)


def _equal(a: Extent, b: Extent, bounds: Bounds) -> bool | None:
    if a == b:
        return True
    low, high = bounds.range(a - b)
    return False if low > 0 or high < 0 else None


def _less(a: Extent, b: Extent, bounds: Bounds) -> bool | None:
    low, high = bounds.range(a - b)
    return True if high < 0 else False if low >= 0 else None


def _less_or_equal(a: Extent, b: Extent, bounds: Bounds) -> bool | None:
    low, high = bounds.range(a - b)
    return True if high <= 0 else False if low > 0 else None


def _absolute(a: Extent, bounds: Bounds) -> Extent | None:
    return a if bounds.at_least(a, 0) else -a if bounds.at_least(-a, 0) else None


_RULES: Mapping[str, Callable[..., Extent | None]] = {
    "neg": lambda a, bounds: -a,
    "abs": _absolute,
    "add": lambda a, b, bounds: a + b,
    "sub": lambda a, b, bounds: a - b,
    "mul": lambda a, b, bounds: a * b,
    "div": _truncated_quotient,
    "mod": _modulo,
    "pow": _power,
    "max": maximum,
    "min": minimum,
}


def sign(array: Elements, bounds: Bounds) -> Elements | None:
    """Return the signs of an array of extents; None where some can't be told."""
    told: list[Extent | int] = []
    for extent in array.reshape(-1):
        low, high = bounds.range(extent)
        if low > 0 or high < 0 or low == high == 0:
            told.append((low > 0) - (high < 0))
        else:
            return None
    return elements_of(told, array.shape)


_COMPARISONS: Mapping[str, Callable[[Extent, Extent, Bounds], bool | None]] = {
    "eq": _equal,
    "lt": _less,
    "le": _less_or_equal,
}


def elementwise(operator: str, inputs: Sequence[Elements], bounds: Bounds) -> Elements | None:
    """Return what an elementwise operator makes of arrays of extents, whose shapes broadcast.

    None where some element can't be told now, or its formula is too long to keep: it is computed in each
    call. Raises Invalid for a division by 0.
    """
    if operator not in _RULES:
        return None
    arrays = np.broadcast_arrays(*inputs)
    results: list[Extent] = []
    for parts in zip(*(array.reshape(-1).tolist() for array in arrays), strict=True):
        found = _RULES[operator](*parts, bounds)
        if found is None or _is_large(found) or _is_long(found):
            return None
        results.append(found)
    return elements_of(results, arrays[0].shape)


def compare(operator: str, inputs: Sequence[Elements], bounds: Bounds) -> npt.NDArray[np.bool_] | None:
    """Return what "eq", "lt" or "le" says of two arrays of extents; None where some element can't be told."""
    a, b = np.broadcast_arrays(*inputs)
    told = [_COMPARISONS[operator](*pair, bounds) for pair in zip(a.reshape(-1), b.reshape(-1), strict=True)]
    return None if None in told else np.array(told, np.bool_).reshape(a.shape)


_FOLDS: Mapping[str, tuple[Callable[[Extent, Extent], Extent], int]] = {
    "reduce_sum": (lambda a, b: a + b, 0),
    "reduce_prod": (lambda a, b: a * b, 1),
}


def reduce(operator: str, array: Elements, axes: tuple[int, ...]) -> Elements | None:
    """Return the sum or product of extents along axes; None for another operator, or too long formulas."""
    if operator not in _FOLDS:
        return None
    function, start = _FOLDS[operator]
    kept = [axis for axis in range(array.ndim) if axis not in axes]
    shape = tuple(array.shape[axis] for axis in kept)
    rows = array.transpose(*kept, *axes).reshape(int(np.prod(shape)), -1)
    results = []
    for row in rows:
        total = Extent.of(start)
        for element in row:
            total = function(total, element)
            if _is_large(total) or _is_long(total):
                return None
        results.append(total)
    return elements_of(results, shape)


def elements_of(values: Sequence[Extent | int], shape: tuple[int, ...]) -> Elements:
    """Return an array of extents."""
    array = np.empty(len(values), dtype=np.object_)
    array[:] = [Extent.of(value) for value in values]
    return array.reshape(shape)

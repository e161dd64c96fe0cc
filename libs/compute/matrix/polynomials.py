"""Polynomials, as vectors of coefficients from the highest power down."""

from __future__ import annotations

from typing import Any

from libs.common.errors import Invalid
from libs.compute.axes import number_of, whole_of
from libs.compute.backend import int_or_none
from libs.compute.matrix.joining import concatenate
from libs.compute.matrix.padding import pad
from libs.compute.matrix.running import convolved
from libs.compute.tensor import Tensor, asarray, tensors_of
from libs.runtime.plan import DataType

__all__ = ["polyadd", "polyder", "polyint", "polymul", "polysub", "polyval"]

_MOST_TIMES = 1 << 10
"""Derivatives or integrals, one of another."""


def polyval(p: Any, x: Any) -> Tensor:
    """Return a polynomial's values: its coefficients come from the highest power down (Horner)."""
    factors, places = tensors_of(p, x)
    count = int_or_none(factors.shape[0]) if factors.ndim == 1 else None
    if count is None:
        raise Invalid("polyval: the coefficients are a vector whose length is known")
    total = places * 0
    for place in range(count):
        total = total * places + factors[place]
    return total


def _coefficients(name: str, p: Any) -> tuple[Tensor, int]:
    tensor = asarray(p).reshape(-1)
    size = int_or_none(tensor.shape[0])
    if size is None:
        raise Invalid(f"{name}: the number of coefficients must be known when it is traced")
    return tensor, size


def polyadd(a1: Any, a2: Any) -> Tensor:
    """Return the coefficients of the sum of two polynomials."""
    first, second = _as_long("polyadd", a1, a2)
    return first + second


def polysub(a1: Any, a2: Any) -> Tensor:
    """Return the coefficients of the difference of two polynomials."""
    first, second = _as_long("polysub", a1, a2)
    return first - second


def _as_long(name: str, a1: Any, a2: Any) -> tuple[Tensor, Tensor]:
    (first, one), (second, other) = _coefficients(name, a1), _coefficients(name, a2)
    size = max(one, other)
    return pad(first, (size - one, 0)), pad(second, (size - other, 0))


def polymul(a1: Any, a2: Any) -> Tensor:
    """Return the coefficients of the product of two polynomials."""
    return convolved("polymul", a1, a2)


def polyder(p: Any, m: int = 1) -> Tensor:
    """Return the coefficients of a polynomial's m-th derivative."""
    tensor, size = _coefficients("polyder", p)
    times = whole_of(m, "polyder", "m", 0, _MOST_TIMES)
    for _ in range(min(times, size)):
        powers = asarray(list(range(size - 1, 0, -1)) or []).astype(DataType.INT64)
        tensor, size = tensor[: max(size - 1, 0)] * powers, max(size - 1, 0)
    return tensor


def polyint(p: Any, m: int = 1, k: float = 0) -> Tensor:
    """Return the coefficients of a polynomial's m-th integral, with the constant k each time."""
    tensor, size = _coefficients("polyint", p)
    constant = number_of(k, "polyint", "k")
    for _ in range(whole_of(m, "polyint", "m", 0, _MOST_TIMES)):
        tensor = concatenate([tensor / asarray(list(range(size, 0, -1)) or [1])[:size], asarray([constant])])
        size += 1
    return tensor

"""Numbers evenly spaced, and windows over them."""

from __future__ import annotations

import math
import operator as operators
from collections.abc import Callable
from typing import Any, SupportsIndex

import numpy as np

from libs.common.errors import Invalid
from libs.compute.axes import axis_of, flag_of, whole_of
from libs.compute.eager import EAGER
from libs.compute.matrix.creation import full_like, ones, zeros
from libs.compute.matrix.exponential import log10
from libs.compute.matrix.joining import concatenate
from libs.compute.matrix.rounding import floor
from libs.compute.matrix.trigonometry import cos
from libs.compute.promotion import FLOATS, common_type, type_named
from libs.compute.tensor import Tensor, asarray, together
from libs.runtime.plan import DataType

__all__ = [
    "arange",
    "bartlett",
    "blackman",
    "geomspace",
    "hamming",
    "hanning",
    "linspace",
    "logspace",
]

_MOST = 1 << 28
"""Numbers in a row."""


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: object = None) -> Tensor:
    """Return numbers from `start` to below `stop` by `step`; with one number, from 0 to below that.

    The numbers are Python's or numpy's; they are known when a function is traced.
    """
    if stop is None:
        start, stop = 0, start
    numbers = [_number("arange", each) for each in (start, stop, step)]
    first, last, by = numbers
    if by == 0:
        raise Invalid("arange: the step is 0")
    if not all(math.isfinite(each) for each in numbers):
        raise Invalid(f"arange: it can't count from {first} to {last} by {by}")
    whole = all(isinstance(each, int) for each in numbers)
    count = -((first - last) // by) if whole else math.ceil((last - first) / by)
    type_ = type_named(dtype) if dtype is not None else DataType.INT64 if whole else DataType.FLOAT64
    counted = Tensor(EAGER, EAGER.arange(max(count, 0)))
    if whole:
        return (counted * by + first).astype(type_)
    # As numpy does it: the step is the difference of the first two elements.
    start_, second = (asarray(float(each)).astype(type_) for each in (first, first + by))
    return (counted.astype(type_) * (second - start_) + start_).astype(type_)


def _number(name: str, thing: Any) -> int | float:
    if isinstance(thing, Tensor) and not thing.ndim:
        thing = thing.item()
    try:
        return operators.index(thing) if isinstance(thing, SupportsIndex) else float(thing)
    except (TypeError, ValueError):
        raise Invalid(f"{name}: {str(thing)[:40]!r} is no number") from None


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: object = None,
    axis: int = 0,
) -> Any:
    """Return `num` numbers evenly spaced from `start` to `stop`, along a new axis where those are arrays."""
    num = whole_of(num, "linspace", "num", 0, _MOST)
    endpoint, retstep = flag_of(endpoint, "linspace", "endpoint"), flag_of(retstep, "linspace", "retstep")
    parts = num - 1 if endpoint else num
    kind = type_named("float64") if dtype is None else type_named(dtype)
    # A Python number takes the type of the other one.
    types = [each if type(each) in (int, float, bool) else asarray(each).type for each in (start, stop)]
    type_ = common_type(*types, 1.0)
    b, (first, last), _ = together(asarray(start), asarray(stop), dtype=type_)
    low, high = Tensor(b, first), Tensor(b, last)
    gap = high - low
    rank = len(b.common_shape(low.shape, high.shape))
    places = asarray(np.arange(num)).astype(type_).reshape(num, *[1] * rank)
    # A step too small to be a number would lose the distance.
    spaced = places * (gap / parts) if parts > 0 else places * gap
    result = spaced + low
    if endpoint and num > 1:
        result = concatenate([result[:-1], (high + gap * 0).reshape(1, *result.shape[1:])])
    if kind not in FLOATS:
        result = floor(result)
    result = result.astype(kind if dtype is not None else type_)
    place = axis_of(axis, rank + 1, "linspace")
    if place:
        order = list(range(1, rank + 1))
        order.insert(place, 0)
        result = result.transpose(order)
    step = gap / parts if parts > 0 else full_like(gap, math.nan)
    return (result, step) if retstep else result


def logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: object = None
) -> Tensor:
    """Return numbers evenly spaced on a logarithmic scale: `base` to the powers from `start` to `stop`."""
    num = whole_of(num, "logspace", "num", 0, _MOST)
    powers = linspace(start, stop, num, endpoint)
    result: Tensor = asarray(base) ** powers
    return result if dtype is None else result.astype(dtype)


def geomspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: object = None) -> Tensor:
    """Return numbers from `start` to `stop`, each the same multiple of the one before it."""
    num = whole_of(num, "geomspace", "num", 0, _MOST)
    endpoint = flag_of(endpoint, "geomspace", "endpoint")
    low, high = asarray(start) + 0.0, asarray(stop) + 0.0
    for each in (low, high):
        known = each.backend.known(each.value)
        if known is not None and not known.all():
            raise Invalid("geomspace: it can't start or stop at 0")
    # Both below 0: what is between is, too.
    sign = full_like(low, 1.0) * _where_negative(low)
    result = sign * logspace(log10(low * sign), log10(high * sign), num, endpoint, 10.0)
    if num > 0:
        parts = [low.reshape(1, *low.shape) + 0 * result[:1], result[1:]]
        if endpoint and num > 1:
            parts = [parts[0], result[1:-1], high.reshape(1, *high.shape) + 0 * result[:1]]
        result = concatenate(parts)
    return result if dtype is None else result.astype(dtype)


def _where_negative(x: Tensor) -> Tensor:
    """Return -1 where numbers are below 0, 1 elsewhere."""
    return 1.0 - 2.0 * (x < 0).astype(x.type)


def _window(call: str, M: int, form: Callable[[Tensor], Tensor]) -> Tensor:  # noqa: N803
    number = _number(call, M)
    if not number <= _MOST:
        raise Invalid(f"{call}: M is {number}; it is at most {_MOST}")
    count = int(max(number, 0))
    if count < 1:
        return zeros((0,))
    return ones((1,)) if count == 1 else form(arange(1 - count, count, 2))


def hanning(M: int) -> Tensor:  # noqa: N803
    """Return the Hann window of M points."""
    return _cosines("hanning", M, 0.5, 0.5)


def hamming(M: int) -> Tensor:  # noqa: N803
    """Return the Hamming window of M points."""
    return _cosines("hamming", M, 0.54, 0.46)


def blackman(M: int) -> Tensor:  # noqa: N803
    """Return the Blackman window of M points."""
    return _cosines("blackman", M, 0.42, 0.5, 0.08)


def _cosines(call: str, M: int, *weights: float) -> Tensor:  # noqa: N803
    def form(n: Tensor) -> Tensor:
        angle = math.pi * n / (M - 1)
        parts = [weight * cos(place * angle) for place, weight in enumerate(weights)]
        return sum(parts[1:], parts[0])

    return _window(call, M, form)


def bartlett(M: int) -> Tensor:  # noqa: N803
    """Return the triangular window of M points that is 0 at its ends."""
    return _window("bartlett", M, lambda n: 1.0 - abs(n) / (M - 1))

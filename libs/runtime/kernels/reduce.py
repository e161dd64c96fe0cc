"""Operators that remove axes."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from libs.runtime.kernels.fault import Array, Kernel

_FEW = 16
_MANY = 8
"""Up to so many are combined by slices, into at least so many times as many outputs."""

_UFUNCS: Mapping[str, np.ufunc] = {
    "reduce_sum": np.add,
    "reduce_prod": np.multiply,
    "reduce_max": np.maximum,
    "reduce_min": np.minimum,
}


def build(name: str, value: Array, output: Array, axes: tuple[int, ...]) -> Kernel:
    """Return the kernel of a reduction.

    Nothing has the sum 0, the product 1, and the type's lowest or highest value as maximum or minimum. NaN
    wins. Sums of float16 are kept in float32 on the way.
    """
    if name == "arg_max":
        return partial(_find, value, output, axes[0])
    half_sum = output.dtype == np.float16 and name == "reduce_sum"
    parts = math.prod(value.shape[axis] for axis in axes)
    if 1 <= parts <= _FEW and output.size >= _MANY * parts and not half_sum:
        places = np.ndindex(*(value.shape[axis] for axis in axes))
        slices = [value[_at(axes, place, value.ndim)] for place in places]
        return partial(_fold, _UFUNCS[name], slices, output)
    # Integers stay in their type: numpy would widen small ones.
    accumulator = np.float32 if half_sum else output.dtype
    options: dict[str, Any] = {"axis": axes, "dtype": accumulator, "out": output}
    if value.size == 0 and name in ("reduce_max", "reduce_min"):
        options["initial"] = _worst(name, output.dtype)
    return partial(_UFUNCS[name].reduce, value, **options)


def _at(axes: tuple[int, ...], place: tuple[int, ...], rank: int) -> tuple[int | slice, ...]:
    fixed = dict(zip(axes, place, strict=True))
    return tuple(fixed.get(axis, slice(None)) for axis in range(rank))


def _fold(ufunc: np.ufunc, slices: list[Array], output: Array) -> None:
    """Combine whole slices: numpy's own reduction takes longest per element where few are combined."""
    np.copyto(output, slices[0])
    for part in slices[1:]:
        ufunc(output, part, out=output)


def _find(value: Array, output: Array, axis: int) -> None:
    output[...] = np.argmax(value, axis=axis)


def _worst(name: str, dtype: np.dtype[Any]) -> Any:
    sign = -1 if name == "reduce_max" else 1
    if dtype.kind == "f":
        return sign * np.inf
    limits = np.iinfo(dtype)
    return limits.min if sign < 0 else limits.max

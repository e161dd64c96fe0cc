"""Operators that remove axes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from libs.runtime.kernels.fault import Array, Kernel

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
    if name in ("arg_max", "arg_min"):
        find = np.argmax if name == "arg_max" else np.argmin
        return partial(_find, find, value, output, axes[0])
    # Integers stay in their type: numpy would widen small ones.
    accumulator = np.float32 if output.dtype == np.float16 and name == "reduce_sum" else output.dtype
    options: dict[str, Any] = {"axis": axes, "dtype": accumulator, "out": output}
    if value.size == 0 and name in ("reduce_max", "reduce_min"):
        options["initial"] = _worst(name, output.dtype)
    return partial(_UFUNCS[name].reduce, value, **options)


def _find(find: Any, value: Array, output: Array, axis: int) -> None:
    output[...] = find(value, axis=axis)


def _worst(name: str, dtype: np.dtype[Any]) -> Any:
    sign = -1 if name == "reduce_max" else 1
    if dtype.kind == "f":
        return sign * np.inf
    limits = np.iinfo(dtype)
    return limits.min if sign < 0 else limits.max

"""From one type of elements to another.

A number is rounded once: to the nearest that the type has, of two as near to the even one. What is beyond a
floating type becomes infinite, or NaN where the type has no infinity. From floating to integer, the fraction
is cut off, and what is beyond the type is undefined, NaN too; from integer to integer, higher bits go.

numpy does so for its own types. For those of the package ml_dtypes it goes from 64 bits through a float32,
which rounds twice, and knows nothing from one narrow type to another: both are made up for here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from libs.runtime.kernels.fault import Array, Kernel

_CHUNK = 16_384
"""Elements of one round of a conversion that needs scratch memory."""
_TAIL = 11
"""Bits by which an integer of 64 is longer than the significand of a float64."""


def build(value: Array, output: Array) -> Kernel:
    """Return the kernel that converts elements."""
    if _is_narrow(output.dtype) and (_is_narrow(value.dtype) or _is_long(value.dtype)):
        return partial(_in_chunks, value, output)
    return partial(np.copyto, output, value, casting="unsafe")


def converted(value: Array, dtype: np.dtype[Any]) -> Array:
    """Return elements as those of another type."""
    if value.dtype == dtype or not _is_narrow(dtype):
        return value.astype(dtype)
    if _is_narrow(value.dtype):
        # All that such types hold is exact in these.
        whole = value.dtype.name.startswith(("int", "uint"))
        return value.astype(np.int32 if whole else np.float32).astype(dtype)
    if not _is_long(value.dtype) or dtype.name.startswith(("int", "uint")):
        return value.astype(dtype)
    return _to_odd(value).astype(dtype)


def _is_narrow(dtype: np.dtype[Any]) -> bool:
    """Tell whether a type is one of ml_dtypes."""
    return dtype.isbuiltin == 2


def _is_long(dtype: np.dtype[Any]) -> bool:
    """Tell whether a type has numbers that float32 doesn't have."""
    return dtype.kind in "iuf" and dtype.itemsize >= 4 and dtype != np.float32


def _in_chunks(value: Array, output: Array) -> None:
    options: dict[str, Any] = {
        "flags": ["external_loop", "buffered", "zerosize_ok"],
        "op_flags": [["readonly"], ["writeonly"]],
        "buffersize": _CHUNK,
    }
    with np.nditer([value, output], **options) as rounds:
        for source, destination in rounds:
            destination[...] = converted(source, output.dtype)


def _to_odd(value: Array) -> Array:
    """Return numbers as float32, of the two neighbours of one that it doesn't have the odd one.

    What is rounded to fewer bits after that comes out as if it had been rounded once (Boldo and Melquiond,
    "When double rounding is odd", 2005).
    """
    if value.dtype.kind in "iu" and value.dtype.itemsize == 8:
        top, head = value >> 53, value >> _TAIL << _TAIL
        odd = head | ((value != head).astype(value.dtype) << _TAIL)
        value = np.where((top != 0) & (top != -1), odd, value)
    exact = value.astype(np.float64)
    near = exact.astype(np.float32)
    back = near.astype(np.float64)
    bits = near.view(np.int32)
    even = (back != exact) & (exact == exact) & (bits & 1 == 0)
    bits += even * np.where(np.abs(back) < np.abs(exact), 1, -1).astype(np.int32)
    return near

"""Bits of integers, as numpy's functions of those names."""

from __future__ import annotations

from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.axes import axis_of, one_of, whole_of
from libs.compute.matrix.padding import pad
from libs.compute.promotion import FLOATS, INTEGERS, SIGNED
from libs.compute.tensor import Tensor, asarray, binary, together
from libs.runtime.elements import ITEM_BYTES
from libs.runtime.plan import DataType

__all__ = [
    "bitwise_and",
    "bitwise_count",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "invert",
    "left_shift",
    "packbits",
    "right_shift",
    "unpackbits",
]


def bitwise_and(x1: Any, x2: Any, /) -> Tensor:
    """Return the bits that both have."""
    return binary("bitwise_and", x1, x2)


def bitwise_or(x1: Any, x2: Any, /) -> Tensor:
    """Return the bits that either has."""
    return binary("bitwise_or", x1, x2)


def bitwise_xor(x1: Any, x2: Any, /) -> Tensor:
    """Return the bits that one of two has."""
    return binary("bitwise_xor", x1, x2)


def invert(x: Any, /) -> Tensor:
    """Return the bits turned round."""
    return ~asarray(x)


def left_shift(x1: Any, x2: Any, /) -> Tensor:
    """Return the bits of x1 moved up by x2 places."""
    return binary("left_shift", x1, x2)


def right_shift(x1: Any, x2: Any, /) -> Tensor:
    """Return the bits of x1 moved down by x2 places; the sign stays."""
    return binary("right_shift", x1, x2)


def bitwise_count(x: Any, /) -> Tensor:
    """Return how many bits the size of a number has set, as uint8."""
    tensor = asarray(x)
    if tensor.type not in INTEGERS:
        raise Invalid(f"bitwise_count takes integers, not {tensor.dtype}")
    b = tensor.backend
    whole = {1: DataType.UINT8, 2: DataType.UINT16, 4: DataType.UINT32, 8: DataType.UINT64}
    type_ = whole[ITEM_BYTES[tensor.type]]
    size = b.elementwise("abs", tensor.value) if tensor.type in SIGNED else tensor.value
    rest = Tensor(b, b.bit_cast(size, type_))
    total = rest & 1
    for place in range(1, 8 * ITEM_BYTES[type_]):
        total = total + ((rest >> place) & 1)
    return total.astype(DataType.UINT8)


def packbits(a: Any, axis: int | None = None, bitorder: str = "big") -> Tensor:
    """Return what isn't 0 as bits of uint8, eight of an axis to one; missing ones are 0."""
    tensor, place = _along("packbits", a, axis)
    if tensor.type in FLOATS:
        raise Invalid(f"packbits takes integers and booleans, not {tensor.dtype}")
    bits = tensor.astype(DataType.BOOL).astype(DataType.UINT8)
    width = [(0, 0)] * bits.ndim
    width[place] = (0, -bits.shape[place] % 8)
    bits = pad(bits, width)
    shape = bits.shape
    split = bits.reshape(*shape[:place], shape[place] // 8, 8, *shape[place + 1 :])
    weights = asarray(_weights("packbits", bitorder)).reshape(8, *[1] * (bits.ndim - 1 - place))
    b, (value,), _ = together(split * weights)
    return Tensor(b, b.reduce("reduce_sum", value, (place + 1,), keep=False))


def unpackbits(a: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Tensor:
    """Return the bits of uint8 as eight elements each; `count`: only so many of them."""
    tensor, place = _along("unpackbits", a, axis)
    if tensor.type is not DataType.UINT8:
        raise Invalid(f"unpackbits takes uint8, not {tensor.dtype}")
    shape = tensor.shape
    weights = asarray(_weights("unpackbits", bitorder)).reshape(8, *[1] * (tensor.ndim - 1 - place))
    wide = tensor.reshape(*shape[: place + 1], 1, *shape[place + 1 :])
    bits = ((wide & weights) > 0).astype(DataType.UINT8)
    bits = bits.reshape(*shape[:place], shape[place] * 8, *shape[place + 1 :])
    if count is None:
        return bits
    count = whole_of(count, "unpackbits", "count")
    kept = bits[(slice(None),) * place + (slice(None, count),)]
    missing = count - bits.shape[place]
    if missing <= 0:
        return kept
    return pad(kept, [(0, missing if axis_ == place else 0) for axis_ in range(bits.ndim)])


def _along(call: str, a: Any, axis: int | None) -> tuple[Tensor, int]:
    tensor = asarray(a)
    return (tensor.reshape(-1), 0) if axis is None else (tensor, axis_of(axis, tensor.ndim, call))


def _weights(call: str, order: str) -> np.ndarray[Any, Any]:
    one_of(order, ("big", "little"), call, "bitorder")
    bits = 1 << np.arange(8, dtype=np.uint8)
    return bits[::-1] if order == "big" else bits


bitwise_invert = bitwise_not = invert
bitwise_left_shift, bitwise_right_shift = left_shift, right_shift

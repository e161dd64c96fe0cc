"""What image functions have in common: what they take, how they round, and plain names for the operators.

An image is [height, width] or [height, width, channels]; its sizes are known when the code runs or is traced.
Inside, functions compute in int32, int64, float32 or float64 and come back to the image's type by `saturate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.common.errors import Invalid
from libs.compute.backend import Move, contiguous_strides, int_or_none
from libs.compute.image.constants import DEPTHS
from libs.compute.tensor import Tensor, asarray, tensors_of

MOST_SIDE = 1 << 20
"""Pixels along a side."""
MOST_ELEMENTS = 1 << 28
"""Of one image."""
MOST_CHANNELS = 512
_LONG = 80
"""Characters of a value in a message."""
MOST_TAPS = 1 << 12
"""Elements of a window that is gone through one by one."""

WHOLE = ("uint8", "int8", "uint16", "int16", "int32")
REAL = ("float32", "float64")
PIXELS = (*WHOLE, *REAL)
_LIMITS = {name: (int(np.iinfo(name).min), int(np.iinfo(name).max)) for name in WHOLE}


# What is taken


def known(call: str, name: str, thing: Any, dtype: str = "float64") -> npt.NDArray[Any]:
    """Return numbers that must be known when the code runs or is traced, such as a kernel's.

    Raises Invalid where they aren't, or aren't finite.
    """
    try:
        tensor = asarray(thing)
    except Invalid as error:
        raise Invalid(f"{call}: {name} can't be read: {error}") from None
    found = tensor.backend.known(tensor.value)
    if found is None:
        raise Invalid(f"{call}: {name} must be known when the function is traced: give numbers, not a value")
    if found.dtype.name not in (*PIXELS, "int64", "bool"):
        raise Invalid(f"{call}: {name} is {describe(tensor)}, not numbers")
    if not np.isfinite(found).all():
        raise Invalid(f"{call}: {name} has elements that aren't finite")
    return found.astype(dtype)


def read(call: str, name: str, thing: Any) -> Tensor:
    """Return what a caller gave as a tensor; raises Invalid where it is none."""
    try:
        return asarray(thing)
    except Invalid as error:
        raise Invalid(f"{call}: {name} can't be read: {error}") from None


def image(
    call: str,
    name: str,
    thing: Any,
    types: Iterable[str] = PIXELS,
    channels: Sequence[int] = (),
) -> Tensor:
    """Return what a caller gave as an image.

    Raises Invalid where it isn't [height, width(, channels)], is empty or too large, is of a type that isn't
    among `types`, or has a number of channels that isn't among `channels` (none: any).
    """
    tensor = read(call, name, thing)
    if tensor.ndim not in (2, 3):
        raise Invalid(f"{call}: {name} is {describe(tensor)}; an image is [height, width(, channels)]")
    check_type(call, name, tensor, types)
    sizes = static(call, name, tensor)
    if 0 in sizes:
        raise Invalid(f"{call}: {name} is {describe(tensor)}: an image without pixels")
    if max(sizes[:2]) > MOST_SIDE or sizes[0] * sizes[1] * channels_of(tensor) > MOST_ELEMENTS:
        raise Invalid(f"{call}: {name} is {describe(tensor)}; an image has at most {MOST_ELEMENTS} elements")
    if channels_of(tensor) > MOST_CHANNELS or (channels and channels_of(tensor) not in channels):
        wanted = " or ".join(map(str, channels)) or f"at most {MOST_CHANNELS}"
        raise Invalid(f"{call}: {name} is {describe(tensor)}; it takes {wanted} channels")
    return tensor


def check_type(call: str, name: str, tensor: Tensor, types: Iterable[str]) -> None:
    """Raise Invalid where elements aren't of one of the types."""
    allowed = tuple(types)
    if tensor.dtype not in allowed:
        raise Invalid(
            f"{call}: {name} is {describe(tensor)}; it takes elements of {', '.join(allowed)}: "
            "convert it with astype"
        )


def static(call: str, name: str, tensor: Tensor) -> tuple[int, ...]:
    """Return sizes that must be known; raises Invalid for formulas of sizes that aren't."""
    sizes = []
    for axis, size in enumerate(tensor.shape):
        number = int_or_none(size)
        if number is None:
            raise Invalid(
                f"{call}: axis {axis} of {name} has size {size}, which isn't known yet; "
                "trace image functions for fixed sizes"
            )
        sizes.append(number)
    return tuple(sizes)


def same_shape(call: str, **tensors: Tensor) -> None:
    """Raise Invalid where images differ in shape."""
    (first, *others) = tensors.items()
    for name, tensor in others:
        if tuple(tensor.shape) != tuple(first[1].shape):
            raise Invalid(
                f"{call}: {first[0]} is {describe(first[1])} and {name} is {describe(tensor)}; "
                "their shapes must be equal"
            )


def describe(tensor: Tensor) -> str:
    """Return type and shape for messages."""
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def channels_of(tensor: Tensor) -> int:
    """Return how many channels an image has."""
    return int(tensor.shape[2]) if tensor.ndim == 3 else 1


def height_width(tensor: Tensor) -> tuple[int, int]:
    """Return the sizes of an image."""
    return int(tensor.shape[0]), int(tensor.shape[1])


def planes(tensor: Tensor) -> Tensor:
    """Return an image with an axis of channels."""
    return tensor if tensor.ndim == 3 else tensor.reshape((*tensor.shape, 1))


def restored(tensor: Tensor, like: Tensor) -> Tensor:
    """Return an image [height, width, channels] without that axis where `like` has none."""
    return tensor if like.ndim == 3 else tensor.reshape(tensor.shape[:2])


def depth(call: str, name: str, value: int, source: str) -> str:
    """Return the type that `ddepth` or `dtype` says; -1 is the source's."""
    number = int(value) if _is_whole(value) else None
    if number == -1:
        return source
    if number is None or number not in DEPTHS:
        depths = ", ".join(f"{number} ({type_})" for number, type_ in DEPTHS.items())
        raise Invalid(f"{call}: {name} is {_shown(value)}; it is -1 or one of {depths}")
    return DEPTHS[number]


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _shown(value: object) -> str:
    """Return a value for messages, cut short."""
    text = repr(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"


def flag(call: str, name: str, value: Any) -> bool:
    """Return a value that is true or false."""
    if not isinstance(value, (bool, np.bool_)) and not (_is_whole(value) and value in (0, 1)):
        raise Invalid(f"{call}: {name} is {_shown(value)}; it is True or False")
    return bool(value)


def listed(call: str, name: str, value: Any) -> list[Any]:
    """Return what must be a list or tuple, as a list."""
    if not isinstance(value, (list, tuple)):
        raise Invalid(f"{call}: {name} is {_shown(value)}; it is a list")
    return list(value)


def chosen(call: str, name: str, value: Any, options: Iterable[int]) -> int:
    """Return a constant that must be among some."""
    allowed = tuple(options)
    if not _is_whole(value) or value not in allowed:
        raise Invalid(f"{call}: {name} is {_shown(value)}; it is one of {', '.join(map(str, allowed))}")
    return int(value)


def whole(call: str, name: str, value: Any, low: int, high: int) -> int:
    """Return an integer that must be within limits."""
    if not _is_whole(value) or not low <= value <= high:
        raise Invalid(f"{call}: {name} is {_shown(value)}; it is an integer from {low} to {high}")
    return int(value)


def real(call: str, name: str, value: Any) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise Invalid(f"{call}: {name} is {_shown(value)}, not a number")
    if not np.isfinite(value):
        raise Invalid(f"{call}: {name} is {value!r}; it must be finite")
    return float(value)


def pair(call: str, name: str, value: Any, low: int, high: int) -> tuple[int, int]:
    """Return two integers, as a size (width, height) or a point (x, y)."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise Invalid(f"{call}: {name} is {_shown(value)}, not a pair of integers")
    return whole(call, name, value[0], low, high), whole(call, name, value[1], low, high)


def colour(call: str, name: str, value: Any, channels: int) -> tuple[float, ...]:
    """Return what to put in each channel: numbers that are left out are 0, as in OpenCV's scalars."""
    numbers = value if isinstance(value, (tuple, list)) else [value]
    given = [real(call, name, number) for number in numbers]
    if len(given) > max(4, channels):
        raise Invalid(f"{call}: {name} has {len(given)} numbers; there are {channels} channels")
    return tuple((given + [0.0] * channels)[:channels])


# Operators by plain names


def apply(operator: str, *tensors: Tensor) -> Tensor:
    """Apply an elementwise operator to tensors of one type, which broadcast."""
    backend = tensors[0].backend
    return Tensor(backend, backend.elementwise(operator, *(tensor.value for tensor in tensors)))


def floor(x: Tensor) -> Tensor:
    """Round down."""
    return apply("floor", x)


def rint(x: Tensor) -> Tensor:
    """Round to the nearest integer, of two as near to the even one, as OpenCV's cvRound."""
    return apply("round", x)


def sqrt(x: Tensor) -> Tensor:
    """Return the square root."""
    return apply("sqrt", x)


def absolute(x: Tensor) -> Tensor:
    """Return the absolute value."""
    return x if x.dtype in ("uint8", "uint16") else apply("abs", x)


def minimum(x: Tensor, y: Tensor) -> Tensor:
    """Return the smaller."""
    return apply("min", x, y)


def maximum(x: Tensor, y: Tensor) -> Tensor:
    """Return the larger."""
    return apply("max", x, y)


def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return x where the condition holds, y elsewhere."""
    return apply("where", condition, x, y)


def constant(like: Tensor, array: Any, dtype: str | None = None) -> Tensor:
    """Return an array that is known now, as a tensor of the backend of another, of its type unless given."""
    made = np.asarray(array).astype(dtype or like.dtype)
    return Tensor(like.backend, like.backend.constant(made))


def full(like: Tensor, shape: Sequence[int], number: float, dtype: str | None = None) -> Tensor:
    """Return a tensor of one number."""
    small = constant(like, np.array(number), dtype)
    return Tensor(like.backend, like.backend.broadcast(small.value, tuple(shape)))


def clip(x: Tensor, low: float, high: float) -> Tensor:
    """Return numbers put within limits."""
    return minimum(maximum(x, constant(x, low)), constant(x, high))


def saturate(x: Tensor, dtype: str) -> Tensor:
    """Convert as OpenCV's saturate_cast: to integers by `rint`, and what is beyond the type to its end."""
    if x.dtype == dtype:
        return x
    if dtype in REAL:
        return x.astype(dtype)
    if x.dtype == "bool":
        return x.astype(dtype)
    low, high = _LIMITS[dtype]
    if x.dtype in REAL:
        # float32 has no 2^31 - 1.
        number = x.astype("float64") if dtype == "int32" else x
        return clip(rint(number), low, high).astype(dtype)
    own_low, own_high = (int(np.iinfo(x.dtype).min), int(np.iinfo(x.dtype).max))
    if low > own_low:
        x = maximum(x, constant(x, low))
    if high < own_high:
        x = minimum(x, constant(x, high))
    return x.astype(dtype)


def take(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Replace an axis by the shape of integer indices."""
    return Tensor(x.backend, x.backend.gather(x.value, indices.value, axis))


def picked(x: Tensor, indices: Any, axis: int) -> Tensor:
    """Take along an axis at indices that are known now."""
    return take(x, constant(x, indices, "int32"), axis)


def reduced(operator: str, x: Tensor, axes: Sequence[int], *, keep: bool = False) -> Tensor:
    """Reduce by "reduce_sum", "_prod", "_max" or "_min"."""
    return Tensor(x.backend, x.backend.reduce(operator, x.value, tuple(axes), keep=keep))


def running_sum(x: Tensor, axis: int) -> Tensor:
    """Return the running sum along an axis."""
    return Tensor(x.backend, x.backend.cumulative_sum(x.value, axis))


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices."""
    return Tensor(a.backend, a.backend.matmul(a.value, b.value))


def transposed(x: Tensor, order: Sequence[int]) -> Tensor:
    """Return axes in another order."""
    return Tensor(x.backend, x.backend.transpose(x.value, tuple(order)))


def spread(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Repeat to a shape that it broadcasts to."""
    return Tensor(x.backend, x.backend.broadcast(x.value, tuple(shape)))


def part(x: Tensor, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int] = ()) -> Tensor:
    """Return a box of elements: so many along each axis, from a start, by a step that may be negative."""
    own = contiguous_strides(x.shape)
    offset = sum(start * stride for start, stride in zip(starts, own, strict=True))
    strides = own if not steps else tuple(step * stride for step, stride in zip(steps, own, strict=True))
    return Tensor(x.backend, x.backend.move(x.value, tuple(sizes), strides, offset))


def joined(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Join tensors of one type along an axis that they have."""
    if len(tensors) == 1:
        return tensors[0]
    first = tensors[0]
    shape = list(first.shape)
    shape[axis] = sum(int(tensor.shape[axis]) for tensor in tensors)
    strides = contiguous_strides(tuple(shape))
    moves, start = [], 0
    for tensor in tensors:
        own = contiguous_strides(tensor.shape)
        moves.append(Move(tensor.value, tuple(tensor.shape), own, 0, strides, start * strides[axis]))
        start += int(tensor.shape[axis])
    type_ = first.backend.type(first.value)
    return Tensor(first.backend, first.backend.raster(type_, tuple(shape), moves))


def stacked(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Join tensors of one shape along a new axis."""
    shape = list(tensors[0].shape)
    shape.insert(axis, 1)
    return joined([tensor.reshape(tuple(shape)) for tensor in tensors], axis)


def masked(call: str, mask: Any, tensor: Tensor) -> Tensor | None:
    """Return a mask, uint8 or bool [height, width], as booleans [height, width, 1]; None for none."""
    if mask is None:
        return None
    _, found = tensors_of(tensor, read(call, "mask", mask))
    check_type(call, "mask", found, ("uint8", "int8", "bool"))
    if found.ndim == 3 and int_or_none(found.shape[2]) == 1:
        found = found.reshape(found.shape[:2])
    if tuple(found.shape) != tuple(tensor.shape[:2]):
        raise Invalid(f"{call}: mask is {describe(found)}; the image is {describe(tensor)}")
    return found.reshape((*found.shape, 1)).astype("bool")

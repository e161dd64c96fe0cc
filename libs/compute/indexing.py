"""Reading an array by slices, integers, arrays of integers and masks, as numpy does."""

from __future__ import annotations

import operator as operators
from collections.abc import Sequence
from typing import Any, SupportsIndex

from libs.common.errors import Invalid
from libs.compute.backend import (
    Backend,
    Shape,
    Size,
    Value,
    ceil_divide,
    contiguous_strides,
    int_or_none,
    product,
)
from libs.compute.ordering import true_places
from libs.runtime.plan import DataType


def nonzero(b: Backend, x: Value) -> tuple[Value, ...]:
    """Return the int64 positions of what isn't 0 or false, along each axis; their number depends on data."""
    mask = b.cast(x, DataType.BOOL)
    shape = b.shape(mask)
    places = true_places(b, b.reshape(mask, (product(shape),)))
    result: list[Value] = []
    for size in reversed(shape):
        extent = b.elementwise("max", b.extent(size, DataType.INT64), b.scalar(1, DataType.INT64))
        here = b.elementwise("mod", places, extent)
        result.append(here)
        places = b.elementwise("div", b.elementwise("sub", places, here), extent)
    return tuple(reversed(result))


def take(b: Backend, x: Value, keys: Sequence[Any], arrays: Sequence[bool]) -> Value:
    """Return x[keys]; `arrays` says which of the keys are values of the backend.

    The others are slices, integers, None and Ellipsis. Raises Invalid for too many, and for what is out of
    range.
    """
    keys, arrays = _whole(b, x, keys, arrays)
    listed = any(arrays)
    shape: list[Size] = []
    strides: list[Size] = []
    offset: Size = 0
    picked: list[tuple[int, Value]] = []
    axis = 0
    own, steps = b.shape(x), contiguous_strides(b.shape(x))
    for key, is_array in zip(keys, arrays, strict=True):
        if key is None and not is_array:
            shape.append(1)
            strides.append(0)
            continue
        size, stride = own[axis], steps[axis]
        axis += 1
        if is_array or (listed and not isinstance(key, slice)):
            index = key if is_array else b.extent(_integer(key, size), DataType.INT64)
            picked.append((len(shape), index))
            shape.append(size)
            strides.append(stride)
        elif isinstance(key, slice):
            start, length, step = sliced(b, key, size)
            offset = offset + start * stride
            shape.append(length)
            strides.append(stride * step)
        else:
            offset = offset + _place(_integer(key, size), size) * stride
    result = x
    if (tuple(shape), tuple(strides), offset) != (own, steps, 0):
        if any(int_or_none(size) == 0 for size in shape):
            offset = 0
        result = b.move(x, tuple(shape), tuple(strides), offset)
    return _picked(b, result, picked) if picked else result


def _whole(b: Backend, x: Value, keys: Sequence[Any], arrays: Sequence[bool]) -> tuple[list[Any], list[bool]]:
    """Return keys for every axis: masks as positions, the ellipsis as slices."""
    plain: list[Any] = []
    flags: list[bool] = []
    consumed = 0
    ellipsis = None
    for key, is_array in zip(keys, arrays, strict=True):
        if is_array and b.type(key) is DataType.BOOL:
            rank = len(b.shape(key))
            if not rank:
                raise Invalid("a single boolean is no index; use where()")
            # The sizes under an ellipsis aren't counted yet: masks after one are checked by the gather.
            if ellipsis is None:
                own = b.shape(x)[consumed : consumed + rank]
                if len(own) == rank:
                    for size, wanted in zip(own, b.shape(key), strict=True):
                        if (
                            int_or_none(size) is not None
                            and int_or_none(wanted) is not None
                            and size != wanted
                        ):
                            raise Invalid(
                                f"a mask of shape {list(b.shape(key))} doesn't fit axes of shape {list(own)}"
                            )
                        b.equal(size, wanted)
            plain.extend(nonzero(b, key))
            flags.extend([True] * rank)
            consumed += rank
            continue
        if key is Ellipsis and not is_array:
            if ellipsis is not None:
                raise Invalid("an index has two ellipses; one is enough")
            ellipsis = len(plain)
            continue
        if isinstance(key, bool):
            raise Invalid("a single boolean is no index; use where()")
        plain.append(key)
        flags.append(is_array)
        consumed += key is not None or is_array
    rank = len(b.shape(x))
    if consumed > rank:
        raise Invalid(f"an array of {rank} axes is indexed along {consumed}")
    at = len(plain) if ellipsis is None else ellipsis
    missing = rank - consumed
    return (
        [*plain[:at], *[slice(None)] * missing, *plain[at:]],
        [*flags[:at], *[False] * missing, *flags[at:]],
    )


def _integer(key: Any, size: Size) -> Size:
    if isinstance(key, SupportsIndex):
        place = operators.index(key)
        known = int_or_none(size)
        if known is not None and not -known <= place < known:
            raise Invalid(f"index {place} is out of range for an axis of size {known}")
        return place
    if isinstance(key, float | str | bytes | dict | set):
        raise Invalid(
            f"a {type(key).__name__} is no index; integers, slices, None, ... and arrays of integers or "
            "booleans are"
        )
    return key


def _place(index: Size, size: Size) -> Size:
    return index + size if (int_or_none(index) or 0) < 0 else index


def sliced(b: Backend, key: slice, size: Size) -> tuple[Size, Size, int]:
    """Return the first place, the number of places and the step of a slice of an axis."""
    step = 1 if key.step is None else operators.index(key.step)
    if step == 0:
        raise Invalid("a slice has the step 0")
    low, high = (0, size) if step > 0 else (-1, size - 1)

    def bound(given: Any, default: Size) -> Size:
        if given is None:
            return default
        place = operators.index(given) if isinstance(given, SupportsIndex) else given
        return b.minimum(b.maximum(_place(place, size), low), high)

    start = bound(key.start, low if step > 0 else high)
    stop = bound(key.stop, high if step > 0 else low)
    gap = stop - start if step > 0 else start - stop
    return start, b.maximum(ceil_divide(gap, abs(step)), 0), step


def _picked(b: Backend, x: Value, picked: Sequence[tuple[int, Value]]) -> Value:
    """Return `x` with some axes replaced by the common shape of indices into them."""
    axes = [axis for axis, _ in picked]
    shape = b.shape(x)
    if len(picked) == 1:
        return b.gather(x, picked[0][1], axes[0])
    common = b.common_shape(*(b.shape(index) for _, index in picked))
    others = [axis for axis in range(len(shape)) if axis not in axes]
    front = b.transpose(x, [*axes, *others])
    sizes = tuple(shape[axis] for axis in axes)
    rest = tuple(shape[axis] for axis in others)
    total = product(sizes)
    flat = flat_indices(b, [index for _, index in picked], sizes)
    rows = b.reshape(front, (total, *rest))
    result = b.gather(rows, b.broadcast(flat, common), 0)
    # Next to one another, the axes stay where they were; otherwise theirs come first.
    first = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    rank = len(common)
    order = [*range(rank, rank + first), *range(rank), *range(rank + first, rank + len(rest))]
    return b.transpose(result, order)


def flat_indices(b: Backend, indices: Sequence[Value], sizes: Shape) -> Value:
    """Return places in the row-major order of axes from indices along each; wrong ones stay out of range."""
    total = b.scalar(0, DataType.INT64)
    wrong: Value | None = None
    for index, size, stride in zip(indices, sizes, contiguous_strides(sizes), strict=True):
        place, bound = b.cast(index, DataType.INT64), b.extent(size, DataType.INT64)
        from_end = b.elementwise("lt", place, b.scalar(0, DataType.INT64))
        place = b.where(from_end, b.elementwise("add", place, bound), place)
        outside = b.elementwise(
            "or",
            b.elementwise("lt", place, b.scalar(0, DataType.INT64)),
            b.elementwise("le", bound, place),
        )
        wrong = outside if wrong is None else b.elementwise("or", wrong, outside)
        step = b.elementwise("mul", place, b.extent(stride, DataType.INT64))
        total = b.elementwise("add", total, step)
    assert wrong is not None
    return b.where(wrong, b.extent(product(sizes), DataType.INT64), total)

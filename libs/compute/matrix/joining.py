"""Arrays put together and taken apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.axes import axis_of, is_listed, whole_of, wholes_of
from libs.compute.backend import Backend, Move, Size, Value, contiguous_strides, int_or_none
from libs.compute.promotion import INTEGERS, type_named
from libs.compute.tensor import Tensor, asarray, tensors_of, together
from libs.runtime.plan import DataType

__all__ = [
    "append",
    "array_split",
    "block",
    "column_stack",
    "concat",
    "concatenate",
    "delete",
    "dsplit",
    "dstack",
    "hsplit",
    "hstack",
    "insert",
    "repeat",
    "resize",
    "split",
    "stack",
    "tile",
    "unstack",
    "vsplit",
    "vstack",
]

_MOST_PARTS = 1 << 16


def concatenate(arrays: Sequence[Any], axis: int | None = 0, *, dtype: object = None) -> Tensor:
    """Return arrays joined along an axis that they have; None: all their elements, as vectors."""
    given = _several("concatenate", arrays)
    b, values, _ = together(*tensors_of(*given), dtype=None if dtype is None else type_named(dtype))
    if axis is None:
        values, axis = [b.reshape(value, (Tensor(b, value).size,)) for value in values], 0
    ranks = {len(b.shape(value)) for value in values}
    if len(ranks) > 1 or 0 in ranks:
        shapes = ", ".join(str(list(b.shape(value))) for value in values[:4])
        raise Invalid(f"concatenate takes arrays of as many axes, at least 1; these have the shapes {shapes}")
    return Tensor(b, _joined(b, values, axis_of(axis, ranks.pop(), "concatenate")))


concat = concatenate


def _several(name: str, arrays: Sequence[Any]) -> list[Any]:
    if not isinstance(arrays, Sequence | Tensor | np.ndarray):
        raise Invalid(f"{name} takes a list of arrays, not a {type(arrays).__name__}")
    found = list(arrays)
    if not found:
        raise Invalid(f"{name} needs at least one array")
    return found


def _joined(b: Backend, values: Sequence[Value], axis: int) -> Value:
    first = b.shape(values[0])
    total: Size = 0
    for value in values:
        for place, (size, other) in enumerate(zip(first, b.shape(value), strict=True)):
            if place != axis:
                _same(b, size, other, f"arrays of shapes {list(first)} and {list(b.shape(value))}")
        total = total + b.shape(value)[axis]
    shape = (*first[:axis], total, *first[axis + 1 :])
    strides = contiguous_strides(shape)
    moves, start = [], 0
    for value in values:
        own = b.shape(value)
        box = (*first[:axis], own[axis], *first[axis + 1 :])
        moves.append(Move(value, box, contiguous_strides(own), 0, strides, start * strides[axis]))
        start = start + own[axis]
    return b.raster(b.type(values[0]), shape, moves)


def _same(b: Backend, size: Size, other: Size, what: str) -> None:
    if int_or_none(size) is not None and int_or_none(other) is not None and size != other:
        raise Invalid(f"{what} can't be joined: sizes {size} and {other} differ")
    b.equal(size, other)


def stack(arrays: Sequence[Any], axis: int = 0, *, dtype: object = None) -> Tensor:
    """Return arrays of one shape along a new axis."""
    given = tensors_of(*_several("stack", arrays))
    ranks = {each.ndim for each in given}
    if len(ranks) > 1:
        raise Invalid("stack takes arrays of one shape; theirs have several numbers of axes")
    place = axis_of(axis, ranks.pop() + 1, "stack")
    lifted = [each.reshape(*each.shape[:place], 1, *each.shape[place:]) for each in given]
    return concatenate(lifted, place, dtype=dtype)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the parts of an array along an axis, which goes."""
    tensor = asarray(x)
    place = axis_of(axis, tensor.ndim, "unstack")
    count = _known("unstack", tensor.shape[place])
    return tuple(tensor[(slice(None),) * place + (each,)] for each in range(count))


def _known(name: str, size: Size) -> int:
    found = int_or_none(size)
    if found is None:
        raise Invalid(f"{name}: the number of parts, {size}, must be known when the function is traced")
    return found


def _at_least(tensor: Tensor, rank: int) -> Tensor:
    """Return an array with axes of size 1 as numpy's atleast_*d put them."""
    shape = tensor.shape
    if rank == 1 or len(shape) >= rank:
        return tensor if shape or rank != 1 else tensor.reshape(1)
    if rank == 2:
        return tensor.reshape(1, *(shape or (1,)))
    if len(shape) == 2:
        return tensor.reshape(*shape, 1)
    return tensor.reshape(1, *(shape or (1,)), 1)


def vstack(tup: Sequence[Any], *, dtype: object = None) -> Tensor:
    """Return arrays one below the other; vectors are rows."""
    return concatenate([_at_least(each, 2) for each in tensors_of(*_several("vstack", tup))], dtype=dtype)


def hstack(tup: Sequence[Any], *, dtype: object = None) -> Tensor:
    """Return arrays side by side: joined along the second axis, vectors along their only one."""
    given = [_at_least(each, 1) for each in tensors_of(*_several("hstack", tup))]
    return concatenate(given, 0 if given[0].ndim == 1 else 1, dtype=dtype)


def dstack(tup: Sequence[Any]) -> Tensor:
    """Return arrays behind one another: joined along the third axis."""
    return concatenate([_at_least(each, 3) for each in tensors_of(*_several("dstack", tup))], 2)


def column_stack(tup: Sequence[Any]) -> Tensor:
    """Return vectors as columns of a matrix, beside what are matrices already."""
    given = tensors_of(*_several("column_stack", tup))
    columns = [each if each.ndim >= 2 else each.reshape(-1, 1) for each in given]
    return concatenate(columns, 1)


def block(arrays: Any) -> Tensor:
    """Return an array put together from nested lists of blocks: the innermost side by side."""
    return _block(arrays, _depth(arrays), max(_ranks(arrays), default=0))


def _depth(arrays: Any) -> int:
    if not isinstance(arrays, list):
        return 0
    if not arrays:
        raise Invalid("block: a list of blocks is empty")
    depths = {_depth(each) for each in arrays}
    if len(depths) > 1:
        raise Invalid("block: lists of blocks must have one depth")
    return 1 + depths.pop()


def _ranks(arrays: Any) -> list[int]:
    if isinstance(arrays, list):
        return [rank for each in arrays for rank in _ranks(each)]
    return [asarray(arrays).ndim]


def _block(arrays: Any, depth: int, rank: int) -> Tensor:
    rank = max(rank, depth)
    if not isinstance(arrays, list):
        tensor = asarray(arrays)
        return tensor.reshape(*[1] * (rank - tensor.ndim), *tensor.shape)
    return concatenate([_block(each, depth - 1, rank) for each in arrays], rank - depth)


def append(arr: Any, values: Any, axis: int | None = None) -> Tensor:
    """Return an array with values behind it, along an axis; None: both as vectors."""
    return concatenate([arr, values], axis)


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """Return parts of an array along an axis: so many equal ones, or those between indices."""
    tensor = asarray(ary)
    return _split("split", tensor, indices_or_sections, axis_of(axis, tensor.ndim, "split"))


def _split(call: str, tensor: Tensor, sections: Any, place: int) -> list[Tensor]:
    found = _sections(call, sections)
    if isinstance(found, int):
        size = tensor.shape[place]
        if int_or_none(size % found):
            raise Invalid(f"{call}: {size} places don't make {found} equal parts; use array_split")
        tensor.backend.equal(size % found, 0)
    return _parts(tensor, found, place)


def _sections(call: str, sections: Any) -> int | list[int]:
    name = "indices_or_sections"
    return (
        wholes_of(sections, call, name)
        if is_listed(sections)
        else whole_of(sections, call, name, 1, _MOST_PARTS)
    )


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """Return parts of an array along an axis: so many nearly equal ones, or those between indices."""
    tensor = asarray(ary)
    place = axis_of(axis, tensor.ndim, "array_split")
    return _parts(tensor, _sections("array_split", indices_or_sections), place)


def _parts(tensor: Tensor, parts: int | list[int], place: int) -> list[Tensor]:
    size = tensor.shape[place]
    ends: list[Any]
    if isinstance(parts, int):
        b = tensor.backend
        # The first ones get one more where it doesn't come out even.
        ends = [size // parts * (each + 1) + b.minimum(size % parts, each + 1) for each in range(parts)]
    else:
        ends = [*parts, None]
    lead = (slice(None),) * place
    return [tensor[(*lead, slice(start, end))] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def hsplit(ary: Any, indices_or_sections: Any) -> list[Tensor]:
    """Return parts of an array along its second axis, of a vector along its only one."""
    tensor = asarray(ary)
    if not tensor.ndim:
        raise Invalid("hsplit takes arrays of 1 axis or more")
    return _split("hsplit", tensor, indices_or_sections, 1 if tensor.ndim > 1 else 0)


def vsplit(ary: Any, indices_or_sections: Any) -> list[Tensor]:
    """Return parts of an array along its first axis."""
    tensor = asarray(ary)
    if tensor.ndim < 2:
        raise Invalid("vsplit takes arrays of 2 axes or more")
    return _split("vsplit", tensor, indices_or_sections, 0)


def dsplit(ary: Any, indices_or_sections: Any) -> list[Tensor]:
    """Return parts of an array along its third axis."""
    tensor = asarray(ary)
    if tensor.ndim < 3:
        raise Invalid("dsplit takes arrays of 3 axes or more")
    return _split("dsplit", tensor, indices_or_sections, 2)


def tile(A: Any, reps: Any) -> Tensor:  # noqa: N803
    """Return an array repeated as a whole, so many times along each axis."""
    tensor = asarray(A)
    times = wholes_of(reps, "tile", "reps", 0)
    rank = max(len(times), tensor.ndim)
    times = [1] * (rank - len(times)) + times
    shape = (*[1] * (rank - tensor.ndim), *tensor.shape)
    b = tensor.backend
    result = tensor.reshape(*shape)
    for axis in reversed(range(rank)):
        if times[axis] != 1:
            shape = result.shape
            result = Tensor(b, _repeated_whole(b, result.value, axis, times[axis]))
    return result


def _repeated_whole(b: Backend, value: Value, axis: int, times: int) -> Value:
    shape = b.shape(value)
    own = contiguous_strides(shape)
    wide = (*shape[:axis], shape[axis] * times, *shape[axis + 1 :])
    steps = contiguous_strides(wide)
    box = (*shape[:axis], times, *shape[axis:])
    move = Move(
        value,
        box,
        (*own[:axis], 0, *own[axis:]),
        0,
        (*steps[:axis], shape[axis] * steps[axis], *steps[axis:]),
    )
    return b.raster(b.type(value), wide, [move])


def repeat(a: Any, repeats: Any, axis: int | None = None) -> Tensor:
    """Return an array with each element repeated, along an axis; None: as a vector."""
    tensor = asarray(a)
    if axis is None:
        tensor, axis = tensor.reshape(-1), 0
    place = axis_of(axis, tensor.ndim, "repeat")
    b = tensor.backend
    times = asarray(repeats)
    if times.type not in INTEGERS | {DataType.BOOL} and int_or_none(times.size) != 0:
        raise Invalid(f"repeat: repeats holds {times.dtype}; they are integers")
    if not times.ndim or (times.ndim == 1 and int_or_none(times.size) == 1):
        count = whole_of(times.astype("int64").reshape(-1)[0], "repeat", "repeats", 0)
        own, shape = contiguous_strides(tensor.shape), tensor.shape
        box = (*shape[: place + 1], count, *shape[place + 1 :])
        moved = b.move(tensor.value, box, (*own[: place + 1], 0, *own[place + 1 :]))
        return Tensor(b, moved).reshape(*shape[:place], shape[place] * count, *shape[place + 1 :])
    if times.ndim != 1:
        raise Invalid(f"repeat: repetitions are one number or a vector, not {times.ndim} axes")
    return _repeated(tensor, times, place)


def _repeated(tensor: Tensor, times: Tensor, place: int) -> Tensor:
    """Repeat each place of an axis as often as data say."""
    tensor, times = tensors_of(tensor, times.astype("int64"))
    b = tensor.backend
    _same(b, tensor.shape[place], times.shape[0], "an array and its repetitions")
    known = b.known(times.value)
    if known is not None and known.size and known.min() < 0:
        raise Invalid(f"repeat: {known.min()} repetitions; they must be 0 or more")
    total = b.size(b.reduce("reduce_sum", times.value, (0,), keep=False))
    ends = Tensor(b, b.cumulative_sum(times.value, 0))
    # Each place of the result comes from where so many ends are at or before it.
    marks = Tensor(b, b.broadcast(b.scalar(0, times.type), (total + 1,)))
    ones = b.broadcast(b.scalar(1, times.type), ends.shape)
    counted = b.scatter("scatter_add", marks.value, ends.value, ones)
    source = b.move(b.cumulative_sum(counted, 0), (total,), (1,))
    return Tensor(b, b.gather(tensor.value, source, place))


def resize(a: Any, new_shape: Any) -> Tensor:
    """Return an array of another shape, filled with its elements over and over."""
    tensor = asarray(a).reshape(-1)
    wanted = tuple(wholes_of(new_shape, "resize", "new_shape", 0))
    b, total = tensor.backend, math.prod(wanted)
    count = tensor.shape[0]
    if int_or_none(count) == 0:
        return Tensor(b, b.broadcast(b.scalar(0, tensor.type), wanted))
    places = b.elementwise("mod", b.arange(total), b.extent(count, type_named("int64")))
    return Tensor(b, b.gather(tensor.value, places, 0)).reshape(*wanted)


def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Tensor:
    """Return an array with values before the places `obj` (an integer, a slice or a list) along an axis.

    The size of the axis is known when the function is traced.
    """
    tensor = asarray(arr)
    if axis is None:
        tensor, axis = tensor.reshape(-1), 0
    place = axis_of(axis, tensor.ndim, "insert")
    size = _known("insert", tensor.shape[place])
    try:
        wanted = np.arange(size)[obj] if isinstance(obj, slice) else asarray(obj).numpy()
    except (Invalid, TypeError) as error:
        raise Invalid(f"insert: obj can't be read: {error}") from None
    if wanted.dtype == np.bool_:
        wanted = np.flatnonzero(wanted)
    if wanted.size and wanted.dtype.kind not in "iu":
        raise Invalid(f"insert: obj holds {wanted.dtype}; places are integers")
    places = wanted.reshape(-1).astype(np.int64)
    for each in places:
        if not -size <= each <= size:
            raise Invalid(f"insert: place {each} is out of range for an axis of size {size}")
    places = np.where(places < 0, places + size, places)
    if not places.size:
        return tensor
    try:
        tensor, new = tensors_of(tensor, asarray(values).astype(tensor.type))
    except Invalid as error:
        raise Invalid(f"insert: values can't be read: {error}") from None
    if new.ndim > tensor.ndim:
        raise Invalid(f"insert: values has {new.ndim} axes; arr has {tensor.ndim}")
    b = tensor.backend
    if places.size == 1:
        new = new.reshape(*[1] * (tensor.ndim - new.ndim), *new.shape)
        if wanted.ndim == 0:
            # What there is more of than one goes along the axis.
            order = list(range(1, new.ndim))
            order.insert(place, 0)
            new = new.transpose(order)
        places = np.repeat(places, _known("insert", new.shape[place]))
    new = Tensor(b, b.broadcast(new.value, (*tensor.shape[:place], len(places), *tensor.shape[place + 1 :])))
    order = np.argsort(places, kind="stable").tolist()
    targets = places[order] + np.arange(len(places))
    fresh = np.zeros(size + len(places), np.bool_)
    fresh[targets] = True
    index = np.zeros(len(fresh), np.int64)
    index[targets] = size + np.array(order)
    index[~fresh] = np.arange(size)
    both = concatenate([tensor, new], place)
    return Tensor(b, b.gather(both.value, b.constant(index), place))


def delete(arr: Any, obj: Any, axis: int | None = None) -> Tensor:
    """Return an array without the places `obj` (an integer, a slice, a list or a mask) along an axis.

    The size of the axis is known when the function is traced.
    """
    tensor = asarray(arr)
    if axis is None:
        tensor, axis = tensor.reshape(-1), 0
    place = axis_of(axis, tensor.ndim, "delete")
    size = _known("delete", tensor.shape[place])
    keep = np.ones(size, np.bool_)
    try:
        keep[obj if isinstance(obj, slice) else _places(obj)] = False
    except (Invalid, IndexError, TypeError) as error:
        raise Invalid(f"delete: {error}") from None
    b = tensor.backend
    return Tensor(b, b.gather(tensor.value, b.constant(np.flatnonzero(keep)), place))


def _places(obj: Any) -> np.ndarray[Any, Any]:
    wanted = asarray(obj).numpy()
    if not wanted.size:
        return np.zeros(wanted.shape, wanted.dtype if wanted.dtype == np.bool_ else np.int64)
    if wanted.dtype.kind not in "iub":
        raise Invalid(f"obj holds {wanted.dtype}; places are integers or a mask")
    return wanted

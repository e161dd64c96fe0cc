"""The same elements in another shape or order: axes moved, added, taken away, turned round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.axes import axes_of, axis_of, listed, shown, whole_of, wholes_of
from libs.compute.backend import Move, Shape, Size, contiguous_strides, int_or_none
from libs.compute.eager import EAGER
from libs.compute.tensor import Tensor, asarray, tensors_of

__all__ = [
    "astype",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "diagonal",
    "expand_dims",
    "flip",
    "fliplr",
    "flipud",
    "matrix_transpose",
    "moveaxis",
    "ndim",
    "permute_dims",
    "ravel",
    "reshape",
    "roll",
    "rollaxis",
    "rot90",
    "shape",
    "size",
    "squeeze",
    "swapaxes",
    "transpose",
]


def astype(x: Any, dtype: object, /) -> Tensor:
    """Return the elements as another type; floats lose their fraction as integers."""
    return asarray(x).astype(dtype)


def shape(a: Any) -> Shape:
    """Return the sizes of an array, outermost first."""
    return asarray(a).shape


def ndim(a: Any) -> int:
    """Return the number of axes."""
    return asarray(a).ndim


def size(a: Any, axis: Any = None) -> Size:
    """Return the number of elements, or of places along axes."""
    tensor = asarray(a)
    total: Size = 1
    for each in axes_of(axis, tensor.ndim, "size"):
        total = total * tensor.shape[each]
    return total


def reshape(a: Any, /, shape: Any) -> Tensor:
    """Return the elements, in row-major order, in another shape; one size may be -1: whatever is left."""
    return asarray(a).reshape(_sizes("reshape", shape))


def ravel(a: Any) -> Tensor:
    """Return the elements as a vector."""
    return asarray(a).reshape(-1)


def transpose(a: Any, axes: Any = None) -> Tensor:
    """Return an array with its axes in another order; None: in reverse order."""
    tensor = asarray(a)
    if axes is None:
        return tensor.transpose()
    if not isinstance(axes, tuple | list | range):
        axes = (axes,)
    return tensor.transpose(axes_of(tuple(axes), tensor.ndim, "transpose"))


permute_dims = transpose


def matrix_transpose(x: Any, /) -> Tensor:
    """Return an array with its last two axes swapped."""
    tensor = asarray(x)
    if tensor.ndim < 2:
        raise Invalid(f"matrix_transpose takes arrays of 2 axes or more, not {tensor.ndim}")
    return swapaxes(tensor, -1, -2)


def moveaxis(a: Any, source: Any, destination: Any) -> Tensor:
    """Return an array with some axes at other places; the rest keeps its order."""
    tensor = asarray(a)
    sources, targets = axes_of(source, tensor.ndim, "moveaxis"), axes_of(destination, tensor.ndim, "moveaxis")
    if len(sources) != len(targets):
        raise Invalid(f"moveaxis: {len(sources)} axes are moved to {len(targets)} places")
    order = [axis for axis in range(tensor.ndim) if axis not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return tensor.transpose(tuple(order))


def rollaxis(a: Any, axis: int, start: int = 0) -> Tensor:
    """Return an array with an axis moved back until it lies before another one."""
    tensor = asarray(a)
    place, before = axis_of(axis, tensor.ndim, "rollaxis"), whole_of(start, "rollaxis", "start")
    if not -tensor.ndim <= before <= tensor.ndim:
        raise Invalid(f"rollaxis: start {before} is out of range: there are {tensor.ndim} axes")
    before = before + tensor.ndim if before < 0 else before
    return moveaxis(tensor, place, before - (place < before))


def swapaxes(a: Any, axis1: int, axis2: int) -> Tensor:
    """Return an array with two axes swapped."""
    tensor = asarray(a)
    first, second = axis_of(axis1, tensor.ndim, "swapaxes"), axis_of(axis2, tensor.ndim, "swapaxes")
    order = list(range(tensor.ndim))
    order[first], order[second] = second, first
    return tensor.transpose(tuple(order))


def squeeze(a: Any, axis: Any = None) -> Tensor:
    """Return an array without axes of size 1: all that are known to be, or those named."""
    tensor = asarray(a)
    if axis is None:
        gone = [place for place, size in enumerate(tensor.shape) if int_or_none(size) == 1]
    else:
        gone = list(axes_of(axis, tensor.ndim, "squeeze"))
        for place in gone:
            if int_or_none(tensor.shape[place]) not in (1, None):
                raise Invalid(f"squeeze: axis {place} has size {tensor.shape[place]}, not 1")
            tensor.backend.equal(tensor.shape[place], 1)
    return tensor.reshape(tuple(size for place, size in enumerate(tensor.shape) if place not in gone))


def expand_dims(a: Any, axis: Any) -> Tensor:
    """Return an array with axes of size 1 at these places of the result."""
    tensor = asarray(a)
    count = len(axis) if isinstance(axis, tuple | list) else 1
    places = axes_of(axis, tensor.ndim + count, "expand_dims")
    rest = iter(tensor.shape)
    return tensor.reshape(tuple(1 if each in places else next(rest) for each in range(tensor.ndim + count)))


def atleast_1d(*arys: Any) -> Any:
    """Return arrays of at least one axis."""
    return _each(arys, 1)


def atleast_2d(*arys: Any) -> Any:
    """Return arrays of at least two axes; a vector is a row."""
    return _each(arys, 2)


def atleast_3d(*arys: Any) -> Any:
    """Return arrays of at least three axes; a matrix gets one behind, a vector one on each side."""
    return _each(arys, 3)


def _each(arrays: Sequence[Any], rank: int) -> Any:
    found = tuple(_at_least(asarray(each), rank) for each in arrays)
    return found[0] if len(found) == 1 else found


def _at_least(tensor: Tensor, rank: int) -> Tensor:
    if tensor.ndim >= rank:
        return tensor
    if rank == 3:
        return tensor.reshape(*tensor.shape, 1) if tensor.ndim == 2 else tensor.reshape(1, -1, 1)
    return tensor.reshape(*[1] * (rank - tensor.ndim), *tensor.shape)


def _sizes(call: str, shape: Any) -> tuple[Any, ...]:
    """Return sizes that a caller gave: one, or several; raises Invalid for what is no integer."""
    given = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if isinstance(shape, Tensor | np.ndarray) and shape.ndim == 1:
        given = tuple(shape.tolist())
    for size in given:
        known = isinstance(size, Tensor | np.ndarray) and (size.ndim or np.dtype(size.dtype).kind not in "iu")
        if known or isinstance(size, float | complex | str | list | tuple | dict | slice | None | np.inexact):
            raise Invalid(f"{call}: shape {shown(shape)} holds what is no integer")
    return given


def broadcast_to(array: Any, shape: Any) -> Tensor:
    """Repeat an array to a shape that it broadcasts to."""
    tensor = asarray(array)
    sizes = _sizes("broadcast_to", shape)
    return Tensor(tensor.backend, tensor.backend.broadcast(tensor.value, sizes))


def broadcast_arrays(*args: Any) -> tuple[Tensor, ...]:
    """Repeat arrays to the shape that they have in common."""
    found = tensors_of(*args)
    if not found:
        return ()
    b = found[0].backend
    common = b.common_shape(*(each.shape for each in found))
    return tuple(Tensor(b, b.broadcast(each.value, common)) for each in found)


def broadcast_shapes(*args: Any) -> Shape:
    """Return the shape that all of these, of known sizes, broadcast to."""
    shapes = [tuple(wholes_of(each, "broadcast_shapes", "args", 0)) for each in args]
    return EAGER.common_shape(*shapes) if shapes else ()


def flip(m: Any, axis: Any = None) -> Tensor:
    """Return an array in reverse order along axes; None: all of them."""
    tensor = asarray(m)
    places = axes_of(axis, tensor.ndim, "flip")
    return tensor[tuple(slice(None, None, -1 if each in places else 1) for each in range(tensor.ndim))]


def flipud(m: Any) -> Tensor:
    """Return an array upside down: in reverse order along its first axis."""
    return flip(m, 0)


def fliplr(m: Any) -> Tensor:
    """Return an array with left and right swapped: in reverse order along its second axis."""
    return flip(m, 1)


def rot90(m: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Return an array turned by k quarters in the plane of two axes, from the first towards the second."""
    tensor = asarray(m)
    places = axes_of(listed(axes, "rot90", "axes"), tensor.ndim, "rot90")
    if len(places) != 2:
        raise Invalid(f"rot90 turns in the plane of two axes, not of {len(places)}")
    first, second = places
    turns = whole_of(k, "rot90", "k") % 4
    if turns == 2:
        return flip(tensor, places)
    if turns == 1:
        return swapaxes(flip(tensor, second), first, second)
    return flip(swapaxes(tensor, first, second), second) if turns == 3 else tensor


def roll(a: Any, shift: Any, axis: Any = None) -> Tensor:
    """Return an array whose elements have moved along axes; those beyond an end come in at the other one."""
    tensor = asarray(a)
    shifts = wholes_of(shift, "roll", "shift")
    if axis is None:
        moved = roll(tensor.reshape(-1), sum(shifts), 0)
        return moved.reshape(tensor.shape)
    axes = list(axis) if isinstance(axis, tuple | list) else [axis]
    if not axes and not shifts:
        return tensor
    if not axes or not shifts or (len(axes) != len(shifts) and 1 not in (len(axes), len(shifts))):
        raise Invalid(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    many = max(len(axes), len(shifts))
    for each, by in zip(axes * (many // len(axes)), shifts * (many // len(shifts)), strict=True):
        tensor = _rolled(tensor, axis_of(each, tensor.ndim, "roll"), by)
    return tensor


def _rolled(tensor: Tensor, axis: int, by: int) -> Tensor:
    b, shape = tensor.backend, tensor.shape
    size = shape[axis]
    if int_or_none(size) == 0 or by == 0:
        return tensor
    start = by % size if int_or_none(size) is not None else by - by // size * size
    strides = contiguous_strides(shape)
    moves = []
    for begin, length, target in ((0, size - start, start), (size - start, start, 0)):
        box = (*shape[:axis], length, *shape[axis + 1 :])
        moves.append(Move(tensor.value, box, strides, begin * strides[axis], strides, target * strides[axis]))
    kept = [move for move in moves if int_or_none(move.sizes[axis]) != 0]
    return Tensor(b, b.raster(tensor.type, shape, kept))


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Return the `offset`-th diagonals of the matrices of two axes, along a new last axis."""
    tensor = asarray(a)
    if tensor.ndim < 2:
        raise Invalid(f"diagonal takes arrays of 2 axes or more, not {tensor.ndim}")
    first, second = axis_of(axis1, tensor.ndim, "diagonal"), axis_of(axis2, tensor.ndim, "diagonal")
    if first == second:
        raise Invalid(f"diagonal: axes {axis1} and {axis2} are the same")
    b, k = tensor.backend, whole_of(offset, "diagonal", "offset")
    strides = contiguous_strides(tensor.shape)
    others = [axis for axis in range(tensor.ndim) if axis not in (first, second)]
    rows, columns = tensor.shape[first], tensor.shape[second]
    length = b.maximum(b.minimum(rows + min(k, 0), columns - max(k, 0)), 0)
    start = max(-k, 0) * strides[first] + max(k, 0) * strides[second]
    box = (*(tensor.shape[axis] for axis in others), length)
    steps = (*(strides[axis] for axis in others), strides[first] + strides[second])
    return Tensor(b, b.move(tensor.value, box, steps, 0 if int_or_none(length) == 0 else start))

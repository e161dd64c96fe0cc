"""Order, search and selection on values: what functions that sort, look up and count are made of."""

from __future__ import annotations

from libs.compute.arithmetic import is_nan
from libs.compute.backend import Backend, Move, Shape, Size, Value, contiguous_strides, product
from libs.compute.promotion import FLOATS
from libs.runtime.plan import DataType


def flat_along(b: Backend, shape: Shape, indices: Value, axis: int) -> Value:
    """Return where elements are in flat data of `shape`; the indices are positions along `axis`, from 0.

    Along other axes, the indices have the data's sizes.
    """
    strides = contiguous_strides(shape)
    flat = b.elementwise("mul", indices, b.extent(strides[axis], DataType.INT64))
    for other, size in enumerate(shape):
        if other != axis:
            along = b.elementwise("mul", b.arange(size), b.extent(strides[other], DataType.INT64))
            lifted = (size, *[1] * (len(shape) - 1 - other))
            flat = b.elementwise("add", flat, b.reshape(along, lifted))
    return flat


def checked(b: Backend, indices: Value, size: Size) -> Value:
    """Return indices counted from 0; those below count from the end, and those out of range are refused."""
    return b.gather(b.arange(size), indices, 0)


def taken_along(b: Backend, x: Value, indices: Value, axis: int) -> Value:
    """Return the element at each index (from 0, within range) along an axis."""
    flat = b.reshape(x, (product(b.shape(x)),))
    return b.gather(flat, flat_along(b, b.shape(x), indices, axis), 0)


def in_order(b: Backend, x: Value, axis: int) -> Value:
    """Return `x` in ascending order along an axis, NaN last."""
    if len(b.shape(x)) == 1:
        return b.gather(x, b.arg_sort(x, 0), 0)
    return taken_along(b, x, b.arg_sort(x, axis), axis)


def true_places(b: Backend, mask: Value) -> Value:
    """Return where a vector of booleans is true: as many int64 positions as there are, ascending."""
    order = b.arg_sort(b.elementwise("not", mask), 0)
    count = b.size(b.reduce("reduce_sum", b.cast(mask, DataType.INT64), (0,), keep=False))
    return b.move(order, (count,), (1,))


def joined(b: Backend, first: Value, second: Value) -> Value:
    """Return two vectors of one type one after the other."""
    (one,), (other,) = b.shape(first), b.shape(second)
    moves = [Move(first, (one,), (1,), 0, (1,), 0), Move(second, (other,), (1,), 0, (1,), one)]
    return b.raster(b.type(first), (one + other,), moves)


def inverse(b: Backend, order: Value) -> Value:
    """Return the permutation that undoes one."""
    (size,) = b.shape(order)
    counted = b.arange(size)
    return b.scatter("scatter", counted, order, counted)


def search_sorted(b: Backend, edges: Value, wanted: Value, *, right: bool) -> Value:
    """Return how many of the ascending `edges` [n] are below each of `wanted` [m]; `right`: or equal to it.

    Both are put in order together, which takes no n·m comparisons, whatever the sizes.
    """
    (n,), (m,) = b.shape(edges), b.shape(wanted)
    both = joined(b, edges, wanted) if right else joined(b, wanted, edges)
    among_all = b.move(inverse(b, b.arg_sort(both, 0)), (m,), (1,), n if right else 0)
    among_wanted = inverse(b, b.arg_sort(wanted, 0))
    return b.elementwise("sub", among_all, among_wanted)


def distinct(b: Backend, x: Value, *, equal_nan: bool) -> tuple[Value, Value, Value, Value]:
    """Return what a vector holds, each once and ascending.

    Then where each comes first, for each element of the vector which it is, and how often each comes.
    """
    (size,) = b.shape(x)
    counted, zero, one = b.arange(size), b.scalar(0, DataType.INT64), b.scalar(1, DataType.INT64)
    order = b.arg_sort(x, 0)
    ordered = b.gather(x, order, 0)
    before = b.elementwise("max", b.elementwise("sub", counted, one), zero)
    previous = b.gather(ordered, before, 0)
    same = b.elementwise("eq", ordered, previous)
    if equal_nan and b.type(x) in FLOATS:
        both = b.elementwise("and", is_nan(b, ordered), is_nan(b, previous))
        same = b.elementwise("or", same, both)
    first = b.elementwise("or", b.elementwise("not", same), b.elementwise("eq", counted, zero))
    starts = true_places(b, first)
    ends = joined(b, starts, b.integers([size]))
    (kinds,) = b.shape(starts)
    counts = b.elementwise("sub", b.move(ends, (kinds,), (1,), 1), starts)
    number = b.elementwise("sub", b.cumulative_sum(b.cast(first, DataType.INT64), 0), one)
    return (
        b.gather(ordered, starts, 0),
        b.gather(order, starts, 0),
        b.scatter("scatter", counted, order, number),
        counts,
    )

"""Order and search: sorting, extremes' places, selection and counting by value."""

from __future__ import annotations

from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute import indexing, ordering
from libs.compute.arithmetic import is_nan
from libs.compute.axes import axis_of, flag_of, listed, naming, one_of
from libs.compute.backend import Backend, Size, Value, int_or_none, product
from libs.compute.linear import beside
from libs.compute.matrix.logic import where
from libs.compute.promotion import COMPUTED, FLOATS, INTEGERS
from libs.compute.tensor import Tensor, asarray, tensors_of, together
from libs.runtime.plan import DataType

__all__ = [
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "argwhere",
    "choose",
    "compress",
    "digitize",
    "extract",
    "flatnonzero",
    "lexsort",
    "nanargmax",
    "nanargmin",
    "nonzero",
    "partition",
    "searchsorted",
    "select",
    "sort",
    "take",
    "take_along_axis",
]

_KINDS = (None, "quicksort", "mergesort", "heapsort", "stable")
_MODES = ("raise", "wrap", "clip")


def _comparable(what: str, thing: Any) -> Tensor:
    tensor = asarray(thing)
    if tensor.type not in COMPUTED:
        raise Invalid(f"{what} doesn't take elements of type {tensor.dtype}: convert them with astype")
    return tensor


def _along(call: str, tensor: Tensor, axis: int | None) -> tuple[Tensor, int]:
    """Return a tensor and one of its axes; None: all its elements as a vector."""
    if axis is None:
        return tensor.ravel(), 0
    return tensor, axis_of(axis, tensor.ndim, call)


def sort(a: Any, axis: int | None = -1, kind: str | None = None, *, stable: bool | None = None) -> Tensor:
    """Return the elements in ascending order along an axis (None: all of them), NaN last.

    However it is asked for, sorting is stable.
    """
    one_of(kind, _KINDS, "sort", "kind")
    tensor, place = _along("sort", _comparable("sort", a), axis)
    return Tensor(tensor.backend, ordering.in_order(tensor.backend, tensor.value, place))


def argsort(a: Any, axis: int | None = -1, kind: str | None = None, *, stable: bool | None = None) -> Tensor:
    """Return from where each element comes that `sort` gives."""
    one_of(kind, _KINDS, "argsort", "kind")
    tensor, place = _along("argsort", _comparable("argsort", a), axis)
    return Tensor(tensor.backend, tensor.backend.arg_sort(tensor.value, place))


def partition(a: Any, kth: Any, axis: int | None = -1) -> Tensor:
    """Return the elements so that those at `kth` are where sorting puts them: here, sorted."""
    tensor, place = _along("partition", _comparable("partition", a), axis)
    _check_kth("partition", kth, tensor.shape[place])
    return sort(tensor, place)


def argpartition(a: Any, kth: Any, axis: int | None = -1) -> Tensor:
    """Return from where each element comes that `partition` gives."""
    tensor, place = _along("argpartition", _comparable("argpartition", a), axis)
    _check_kth("argpartition", kth, tensor.shape[place])
    return argsort(tensor, place)


def _check_kth(call: str, kth: Any, size: Size) -> None:
    known = int_or_none(size)
    for each in asarray(kth).ravel().tolist():
        if not isinstance(each, int) or isinstance(each, bool):
            raise Invalid(f"{call}: kth is an integer, or several, not {each!r}")
        if known is not None and not -known <= each < known:
            raise Invalid(f"{call}: kth {each} is out of range for an axis of size {known}")


def lexsort(keys: Any, axis: int = -1) -> Tensor:
    """Return the order by several keys, the last of which counts first."""
    given = tensors_of(*listed(keys, "lexsort", "keys"))
    if not given:
        raise Invalid("lexsort needs a key")
    b, shape = given[0].backend, given[0].shape
    place = axis_of(axis, len(shape), "lexsort")
    order: Value | None = None
    for key in given:
        value = _comparable("lexsort", key).value
        if key.ndim != len(shape):
            raise Invalid("lexsort takes keys of one shape")
        with naming("lexsort"):
            for one, other in zip(shape, key.shape, strict=True):
                b.equal(one, other)
        if order is None:
            order = b.arg_sort(value, place)
        else:
            step = b.arg_sort(ordering.taken_along(b, value, order, place), place)
            order = ordering.taken_along(b, order, step, place)
    assert order is not None
    return Tensor(b, order)


# Extremes


def _extreme(what: str, a: Any, axis: int | None, keepdims: bool, *, smallest: bool, skip: bool) -> Tensor:
    tensor, keepdims = _comparable(what, a), flag_of(keepdims, what, "keepdims")
    rank = tensor.ndim
    moved, place = _along(what, tensor, axis)
    if int_or_none(moved.shape[place]) == 0:
        raise Invalid(f"{what} of an axis without elements: it has no extreme")
    b, value = moved.backend, moved.value
    if moved.type is DataType.BOOL:
        value = b.cast(value, DataType.UINT8)
    type_ = b.type(value)
    if smallest:
        value = b.elementwise("neg" if type_ in FLOATS else "not", value)
    if skip and type_ in FLOATS:
        absent = is_nan(b, value)
        nothing = b.known(b.reduce("reduce_min", b.cast(absent, DataType.UINT8), (place,), keep=False))
        if nothing is not None and nothing.any():
            raise Invalid(f"{what}: there is nothing but NaN")
        value = b.where(absent, b.scalar(float("-inf"), type_), value)
        # What is as low as what stands for NaN comes before it.
        found = _first_of_kept(b, value, absent, place)
    else:
        found = b.arg_max(value, place)
    if keepdims:
        shape = [1] * rank if axis is None else [*moved.shape[:place], 1, *moved.shape[place + 1 :]]
        found = b.reshape(found, tuple(shape))
    return Tensor(b, found)


def _first_of_kept(b: Backend, value: Value, absent: Value, axis: int) -> Value:
    largest = b.reduce("reduce_max", value, (axis,), keep=True)
    match = b.elementwise("and", b.elementwise("eq", value, largest), b.elementwise("not", absent))
    return b.arg_max(b.cast(match, DataType.UINT8), axis)


def argmax(a: Any, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Return where the largest element is, the first of several; NaN is the largest."""
    return _extreme("argmax", a, axis, keepdims, smallest=False, skip=False)


def argmin(a: Any, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Return where the smallest element is, the first of several; NaN is the smallest."""
    return _extreme("argmin", a, axis, keepdims, smallest=True, skip=False)


def nanargmax(a: Any, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Return where the largest element is but for NaN. Raises Invalid where there is nothing else."""
    return _extreme("nanargmax", a, axis, keepdims, smallest=False, skip=True)


def nanargmin(a: Any, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Return where the smallest element is but for NaN. Raises Invalid where there is nothing else."""
    return _extreme("nanargmin", a, axis, keepdims, smallest=True, skip=True)


# Search


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Tensor:
    """Return where each of `v` belongs in the ascending vector `a`: before equal ones, or ("right") after."""
    one_of(side, ("left", "right"), "searchsorted", "side")
    b, (edges, wanted), _ = together(asarray(a), v if isinstance(v, Tensor) else asarray(v))
    if len(b.shape(edges)) != 1:
        raise Invalid(f"searchsorted looks in a vector, not in {len(b.shape(edges))} axes")
    if sorter is not None:
        edges = _taken("searchsorted: sorter", Tensor(b, edges), sorter, None).value
        if len(b.shape(edges)) != 1:
            raise Invalid(f"searchsorted: sorter is a vector, not of {len(b.shape(edges))} axes")
    shape = b.shape(wanted)
    flat = b.reshape(wanted, (product(shape),))
    found = ordering.search_sorted(b, edges, flat, right=side == "right")
    return Tensor(b, b.reshape(found, shape))


def digitize(x: Any, bins: Any, right: bool = False) -> Tensor:
    """Return which bin each element is in: i where bins[i-1] ≤ x < bins[i], or ("right") < and ≤.

    Bins ascend or descend.
    """
    edges, right = _comparable("digitize", bins), flag_of(right, "digitize", "right")
    if edges.ndim != 1:
        raise Invalid(f"bins are a vector, not of {edges.ndim} axes")
    known = edges.backend.known(edges.value)
    if known is None:
        raise Invalid("digitize needs bins that are known when it is traced")
    rising, falling = bool((known[1:] >= known[:-1]).all()), bool((known[1:] <= known[:-1]).all())
    if not rising and not falling:
        raise Invalid("bins neither ascend nor descend all along")
    side = "left" if right else "right"
    if rising:
        return searchsorted(edges, x, side)
    return len(known) - searchsorted(edges[::-1], x, side)


# Selection


def nonzero(a: Any) -> tuple[Tensor, ...]:
    """Return the positions along each axis of what isn't 0 or false."""
    tensor = asarray(a)
    if not tensor.ndim:
        raise Invalid("nonzero takes arrays of 1 axis or more; a single number has no positions")
    b = tensor.backend
    return tuple(Tensor(b, place) for place in indexing.nonzero(b, tensor.value))


def flatnonzero(a: Any) -> Tensor:
    """Return where in row-major order there is anything but 0 or false."""
    return nonzero(asarray(a).ravel())[0]


def argwhere(a: Any) -> Tensor:
    """Return the positions of what isn't 0 or false, one in each row."""
    tensor = asarray(a)
    b, found = tensor.backend, nonzero(tensor if tensor.ndim else tensor.reshape(1))
    (count,) = found[0].shape
    lifted = [Tensor(b, b.reshape(place.value, (count, 1))) for place in found]
    if not tensor.ndim:
        return lifted[0][:, :0]
    result = lifted[0]
    for place in lifted[1:]:
        result = Tensor(b, _beside(b, result.value, place.value))
    return result


def _beside(b: Backend, left: Value, right: Value) -> Value:
    rows, first = b.shape(left)
    joined = beside(b, b.reshape(left, (1, rows, first)), b.reshape(right, (1, rows, 1)))
    return b.reshape(joined, (rows, first + 1))


def select(condlist: Any, choicelist: Any, default: Any = 0) -> Tensor:
    """Return from the first choice whose condition holds, the default where none does."""
    conditions = listed(condlist, "select", "condlist")
    choices = listed(choicelist, "select", "choicelist")
    if len(conditions) != len(choices) or not conditions:
        raise Invalid(f"select takes as many choices as conditions: {len(choices)} for {len(conditions)}")
    b, values, _ = together(*choices, default)
    result = Tensor(b, values[-1])
    for condition, value in zip(reversed(conditions), reversed(values[:-1]), strict=True):
        holds = asarray(condition)
        if holds.type is not DataType.BOOL:
            raise Invalid(f"conditions are booleans, not {holds.dtype}")
        result = where(holds, Tensor(b, value), result)
    return result


def choose(a: Any, choices: Any, mode: str = "raise") -> Tensor:
    """Return from the choice that each element of `a` names. Modes as for `take`."""
    several = isinstance(choices, list | tuple | Tensor | np.ndarray) and getattr(choices, "ndim", 1) > 0
    if not several or not len(choices):
        raise Invalid("choose: choices is a list of one array or more")
    one_of(mode, _MODES, "choose", "mode")
    b, values, _ = together(*choices)
    index, *lifted = tensors_of(a, *(Tensor(b, value) for value in values))
    known = index.backend.known(index.value)
    if mode == "raise" and known is not None and known.size:
        low, high = known.min(), known.max()
        if low < 0 or high >= len(lifted):
            wrong = low if low < 0 else high
            raise Invalid(f"choose: a holds {wrong}; there are {len(lifted)} choices, from 0 on")
    shape = index.backend.common_shape(index.shape, *(each.shape for each in lifted))
    b = index.backend
    number = b.broadcast(_places(b, index, len(lifted), mode), shape)
    stack = [b.reshape(b.broadcast(each.value, shape), (1, product(shape))) for each in lifted]
    rows = stack[0]
    for row in stack[1:]:
        rows = _below(b, rows, row)
    flat = b.reshape(number, (1, product(shape)))
    return Tensor(b, b.reshape(ordering.taken_along(b, rows, flat, 0), shape))


def _below(b: Backend, upper: Value, lower: Value) -> Value:
    (rows, columns), (more, _) = b.shape(upper), b.shape(lower)
    flat = ordering.joined(b, b.reshape(upper, (rows * columns,)), b.reshape(lower, (more * columns,)))
    return b.reshape(flat, (rows + more, columns))


def take(a: Any, indices: Any, axis: int | None = None, *, mode: str = "raise") -> Tensor:
    """Return the elements at indices along an axis (None: of all of them).

    `mode`: "raise" refuses indices out of range; "wrap" counts on from the other end; "clip" takes the
    first or last element, negative indices being out of range.
    """
    return _taken("take", a, indices, axis, one_of(mode, _MODES, "take", "mode"))


def _taken(call: str, a: Any, indices: Any, axis: int | None, mode: str = "raise") -> Tensor:
    tensor, index = tensors_of(a, indices)
    tensor, place = _along(call, tensor, axis)
    b = tensor.backend
    with naming(call):
        return Tensor(b, b.gather(tensor.value, _places(b, index, tensor.shape[place], mode), place))


def _places(b: Backend, index: Tensor, size: Size, mode: str) -> Value:
    if index.type is DataType.BOOL or index.type not in INTEGERS:
        known = int_or_none(index.size)
        if known != 0:
            raise Invalid(f"indices are integers, not {index.dtype}")
    value, bound = b.cast(index.value, DataType.INT64), b.extent(size, DataType.INT64)
    if mode == "wrap":
        return b.elementwise("mod", value, bound)
    zero = b.scalar(0, DataType.INT64)
    if mode == "clip":
        last = b.elementwise("sub", bound, b.scalar(1, DataType.INT64))
        return b.elementwise("min", b.elementwise("max", value, zero), last)
    return value


def take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> Tensor:
    """Return the element at each index along an axis; other axes of both broadcast."""
    tensor, index = tensors_of(arr, indices)
    if axis is None and index.ndim != 1:
        raise Invalid("without an axis, indices are a vector")
    tensor, place = _along("take_along_axis", tensor, axis)
    if index.ndim != tensor.ndim:
        raise Invalid(f"indices have {index.ndim} axes, the data {tensor.ndim}: they must have as many")
    b = tensor.backend
    shapes = [list(tensor.shape), list(index.shape)]
    for shape in shapes:
        shape[place] = 1
    common = list(b.common_shape(*(tuple(shape) for shape in shapes)))
    wide = [(*common[:place], each.shape[place], *common[place + 1 :]) for each in (tensor, index)]
    with naming("take_along_axis"):
        counted = ordering.checked(b, _places(b, index, tensor.shape[place], "raise"), tensor.shape[place])
    found = ordering.taken_along(b, b.broadcast(tensor.value, wide[0]), b.broadcast(counted, wide[1]), place)
    return Tensor(b, found)


def compress(condition: Any, a: Any, axis: int | None = None) -> Tensor:
    """Return the places of an axis (None: of all elements) where a vector of booleans holds."""
    holds, tensor = tensors_of(condition, a)
    if holds.ndim != 1:
        raise Invalid(f"a condition is a vector, not of {holds.ndim} axes")
    return _taken("compress", tensor, flatnonzero(holds), axis)


def extract(condition: Any, arr: Any) -> Tensor:
    """Return the elements where a condition holds, as a vector."""
    holds, tensor = tensors_of(condition, arr)
    return _taken("extract", tensor, flatnonzero(holds), None)

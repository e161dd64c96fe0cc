"""Edges put around arrays, and taken off."""

from __future__ import annotations

from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from libs.compute.axes import one_of, shown, size_of, whole_of
from libs.compute.backend import Move, Size, contiguous_strides, int_or_none
from libs.compute.matrix.joining import concatenate
from libs.compute.matrix.rounding import floor, rint
from libs.compute.ordering import in_order
from libs.compute.promotion import FLOATS
from libs.compute.tensor import Tensor, asarray, binary, tensors_of
from libs.runtime.plan import DataType

__all__ = ["pad", "trim_zeros"]

_OPTIONS = {
    "constant": ("constant_values",),
    "edge": (),
    "empty": (),
    "linear_ramp": ("end_values",),
    "maximum": ("stat_length",),
    "mean": ("stat_length",),
    "median": ("stat_length",),
    "minimum": ("stat_length",),
    "reflect": ("reflect_type",),
    "symmetric": ("reflect_type",),
    "wrap": (),
}


def pad(array: Any, pad_width: Any, mode: str = "constant", **kwargs: Any) -> Tensor:
    """Return an array with more places before and after those of each axis.

    `mode`: how they are filled, as numpy has it ("empty" gives zeros), but for functions of one's own.
    """
    tensor = asarray(array)
    if not isinstance(mode, str) or mode not in _OPTIONS:
        raise Invalid(
            f"pad: mode {mode!r} is none; {', '.join(_OPTIONS)} are{did_you_mean(str(mode), _OPTIONS)}"
        )
    for name in kwargs:
        if name not in _OPTIONS[mode]:
            raise Invalid(f"pad: mode {mode!r} takes no {name!r}")
    widths = _pairs(pad_width, tensor.ndim, "pad_width")
    whole = [tuple(size_of(each, "pad", "pad_width") for each in pair) for pair in widths]
    if any((int_or_none(each) or 0) < 0 for pair in whole for each in pair):
        raise Invalid(f"pad: widths {whole} must be 0 or more")
    if mode in ("constant", "empty"):
        return _framed(
            tensor, whole, _pairs(kwargs.get("constant_values", 0), tensor.ndim, "constant_values")
        )
    ends = _pairs(kwargs.get("end_values", 0), tensor.ndim, "end_values")
    lengths = _pairs(kwargs.get("stat_length"), tensor.ndim, "stat_length")
    odd = one_of(kwargs.get("reflect_type", "even"), ("even", "odd"), "pad", "reflect_type") == "odd"
    for axis, (before, after) in enumerate(whole):
        if before or after:
            tensor = _axis(tensor, axis, before, after, mode, ends[axis], lengths[axis], odd)
    return tensor


def _pairs(given: Any, rank: int, name: str) -> list[tuple[Any, Any]]:
    """Return a pair for each axis, of one number, a pair for all, or a pair for each."""
    if isinstance(given, dict):
        found = dict(given)
        pairs = [found.get(axis, found.get(axis - rank, 0)) for axis in range(rank)]
        return [tuple(each) if isinstance(each, tuple | list) else (each, each) for each in pairs]
    if not isinstance(given, tuple | list | np.ndarray):
        return [(given, given)] * rank
    try:
        array = np.asarray(given, dtype=object)
    except ValueError:
        raise Invalid(f"pad: {name} is {shown(given)}; it must be one pair, or {rank}") from None
    try:
        wide = np.broadcast_to(array, (rank, 2))
    except ValueError:
        raise Invalid(
            f"pad: {name} has the shape {list(array.shape)}; it must be one pair, or {rank}"
        ) from None
    return [(low, high) for low, high in wide.tolist()]


def _framed(tensor: Tensor, widths: list[tuple[int, ...]], values: list[tuple[Any, Any]]) -> Tensor:
    """Put constant edges around an array, in one go where they are all the same number."""
    b = tensor.backend
    first = values[0][0] if values else 0
    alike = all(isinstance(each, int | float) and each == first for pair in values for each in pair)
    shape = tuple(before + size + after for size, (before, after) in zip(tensor.shape, widths, strict=True))
    if alike:
        strides = contiguous_strides(shape)
        start: Size = sum((pair[0] * stride for pair, stride in zip(widths, strides, strict=True)), 0)
        move = Move(tensor.value, tensor.shape, contiguous_strides(tensor.shape), 0, strides, start)
        fill = asarray(first).astype(tensor.type).item()
        if all(size is not None for size in map(int_or_none, shape)) and 0 in tensor.shape:
            return Tensor(b, b.broadcast(b.scalar(fill, tensor.type), shape))
        return Tensor(b, b.raster(tensor.type, shape, [move], fill))
    for axis, (before, after) in enumerate(widths):
        parts = [
            _block(tensor, axis, before, values[axis][0]),
            tensor,
            _block(tensor, axis, after, values[axis][1]),
        ]
        tensor = concatenate(parts, axis)
    return tensor


def _block(tensor: Tensor, axis: int, count: int, value: Any) -> Tensor:
    shape = (*tensor.shape[:axis], count, *tensor.shape[axis + 1 :])
    filling, _ = tensors_of(asarray(value).astype(tensor.type), tensor)
    return Tensor(tensor.backend, tensor.backend.broadcast(filling.value, shape))


def _slice(tensor: Tensor, axis: int, start: Any, stop: Any) -> Tensor:
    return tensor[(slice(None),) * axis + (slice(start, stop),)]


def _axis(
    tensor: Tensor,
    axis: int,
    before: int,
    after: int,
    mode: str,
    ends: tuple[Any, Any],
    lengths: tuple[Any, Any],
    odd: bool,
) -> Tensor:
    if int_or_none(tensor.shape[axis]) == 0:
        raise Invalid(f"pad: axis {axis} is empty: mode {mode!r} has nothing to fill with; use 'constant'")
    first, last = _slice(tensor, axis, 0, 1), _slice(tensor, axis, -1, None)
    if mode == "edge":
        return concatenate([_wide(first, axis, before), tensor, _wide(last, axis, after)], axis)
    if mode == "linear_ramp":
        low = _ramp(tensor, first, axis, before, ends[0], rising=True)
        high = _ramp(tensor, last, axis, after, ends[1], rising=False)
        return concatenate([low, tensor, high], axis)
    if mode in ("reflect", "symmetric", "wrap"):
        return _mirrored(tensor, axis, before, after, mode, odd)
    size = int_or_none(tensor.shape[axis])
    parts = []
    for length, count, at_end in ((lengths[0], before, False), (lengths[1], after, True)):
        if length is not None:
            length = whole_of(length, "pad", "stat_length", 0 if mode == "mean" else 1)
        whole = length is None or (size is not None and length >= size)
        seen = tensor if whole else _slice(tensor, axis, *((-length, None) if at_end else (0, length)))
        parts.append(_wide(_measured(seen, axis, mode), axis, count))
    return concatenate([parts[0], tensor, parts[1]], axis)


def _wide(edge: Tensor, axis: int, count: int) -> Tensor:
    shape = (*edge.shape[:axis], count, *edge.shape[axis + 1 :])
    return Tensor(edge.backend, edge.backend.broadcast(edge.value, shape))


def _ramp(tensor: Tensor, edge: Tensor, axis: int, count: int, end: Any, *, rising: bool) -> Tensor:
    """Return numbers evenly spaced from a value at the outer end to the edge."""
    places = np.arange(count) if rising else np.arange(count)[::-1]
    wide = asarray(places.astype(np.float64)).reshape(count, *[1] * (tensor.ndim - 1 - axis))
    start = asarray(end).astype(tensor.type).astype(DataType.FLOAT64)
    spaced = (edge.astype(DataType.FLOAT64) - start) / max(count, 1) * wide + start
    if tensor.type not in FLOATS:
        spaced = floor(spaced)
    return spaced.astype(tensor.type)


def _measured(seen: Tensor, axis: int, mode: str) -> Tensor:
    b = seen.backend
    if mode in ("maximum", "minimum"):
        return Tensor(b, b.reduce(f"reduce_{mode[:3]}", seen.value, (axis,), keep=True))
    count = seen.shape[axis]
    wide = seen.astype(DataType.FLOAT64)
    if mode == "mean":
        total = Tensor(b, b.reduce("reduce_sum", wide.value, (axis,), keep=True))
        found = total / Tensor(b, b.extent(count, DataType.FLOAT64))
    else:
        ordered = Tensor(b, in_order(b, wide.value, axis))
        found = (
            _slice(ordered, axis, (count - 1) // 2, (count - 1) // 2 + 1)
            + _slice(ordered, axis, count // 2, count // 2 + 1)
        ) / 2
    return (found if seen.type in FLOATS else rint(found)).astype(seen.type)


def _mirrored(tensor: Tensor, axis: int, before: Size, after: Size, mode: str, odd: bool) -> Tensor:
    b, lead = tensor.backend, tensor.ndim - 1 - axis
    length = tensor.shape[axis]
    size = Tensor(b, b.extent(length, DataType.INT64))
    places = Tensor(b, b.arange(before + length + after)) - Tensor(b, b.extent(before, DataType.INT64))
    if mode == "wrap":
        return Tensor(b, b.gather(tensor.value, (places % size).value, axis))
    period = 2 * size if mode == "symmetric" else binary("maximum", 2 * size - 2, 1)
    turned = places % period
    mirror = period - turned - int(mode == "symmetric")
    behind = turned >= size
    index = b.where(behind.value, mirror.value, turned.value)
    found = Tensor(b, b.gather(tensor.value, index, axis))
    if not odd:
        return found
    # Reflected through the value at the edge: each period goes on from where the one before it ended.
    first, last = _slice(tensor, axis, 0, 1), _slice(tensor, axis, -1, None)
    column = (-1, *[1] * lead)
    rounds = (places // period).astype(tensor.type).reshape(*column)
    through = b.where(behind.reshape(*column).value, (2 * last - found).value, found.value)
    return Tensor(b, through) + 2 * (last - first) * rounds


def trim_zeros(filt: Any, trim: str = "fb") -> Tensor:
    """Return a vector without the zeros at its front ("f"), its back ("b"), or both."""
    tensor = asarray(filt)
    if tensor.ndim != 1:
        raise Invalid(f"trim_zeros takes a vector, not {tensor.ndim} axes")
    if not isinstance(trim, str) or set(trim.lower()) - set("fb"):
        raise Invalid(f"trim_zeros: trim is {shown(trim)}; it must be made of 'f' and 'b'")
    b, size = tensor.backend, tensor.shape[0]
    kept = b.cast(b.cast(tensor.value, DataType.BOOL), DataType.INT64)
    counted = b.arange(size)
    one = b.scalar(1, DataType.INT64)
    extent = b.extent(size, DataType.INT64)
    # Nothing else than zeros: nothing is left.
    first = b.where(b.cast(kept, DataType.BOOL), counted, extent)
    start = b.reduce("reduce_min", b.elementwise("min", first, extent), (0,), keep=False)
    start = b.elementwise("min", start, extent)
    last = b.elementwise("mul", kept, b.elementwise("add", counted, one))
    end = b.elementwise("max", b.reduce("reduce_max", last, (0,), keep=False), b.scalar(0, DataType.INT64))
    if "f" not in trim.lower():
        start = b.elementwise("min", b.scalar(0, DataType.INT64), end)
    if "b" not in trim.lower():
        end = extent
    length = b.size(b.elementwise("max", b.elementwise("sub", end, start), b.scalar(0, DataType.INT64)))
    index = b.elementwise("add", b.arange(length), start)
    return Tensor(b, b.gather(tensor.value, index, 0))

"""Pooling: windows laid out by one raster, then reduced."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.decompose.reduction import mean
from services.engine.domain.decompose.windows import Window, box, pad, read_windows
from services.engine.domain.extents import Extent, contiguous_strides, product
from services.engine.domain.values import Value, extreme


def _read(call: Call) -> tuple[Value, tuple[Window, ...]]:
    x = call.input(0)
    if not 3 <= x.rank <= 5:
        call.fail(f"its input is {x}; 1 to 3 spatial axes are supported")
    kernel = call.integers("kernel_shape") or ()
    if len(kernel) != x.rank - 2:
        call.fail(f"attribute 'kernel_shape' is {list(kernel)}; it needs {x.rank - 2} values")
    return x, read_windows(call, x.shape[2:], kernel)


def _pooled(b: Builder, operator: str, x: Value, windows: tuple[Window, ...], fill: float) -> Value:
    """Return the reduction of each window of `x` (N, C, …), padded with `fill`."""
    padded = pad(b, x, windows, fill)
    strides = contiguous_strides(padded.shape)
    (kernel, inside), (spatial, steps) = box(windows, strides[2:])
    laid = b.move(padded, (*x.shape[:2], *spatial, *kernel), (*strides[:2], *steps, *inside))
    return b.reduce(operator, laid, tuple(range(x.rank, laid.rank)), keep=False)


def _max_pool(call: Call) -> Value | tuple[Value, ...]:
    x, windows = _read(call)
    if call.wants(1):
        return _max_pool_with_places(call, x, windows)
    return _pooled(call.builder, "reduce_max", x, windows, extreme(x.type, -1))


def _max_pool_with_places(call: Call, x: Value, windows: tuple[Window, ...]) -> tuple[Value, ...]:
    """Return maxima, and where they are in the flat input; the first of equal ones."""
    b = call.builder
    padded = pad(b, x, windows, extreme(x.type, -1))
    strides = contiguous_strides(padded.shape)
    (kernel, inside), (spatial, steps) = box(windows, strides[2:])
    laid = b.move(padded, (*x.shape[:2], *spatial, *kernel), (*strides[:2], *steps, *inside))
    taps = product(kernel)
    rows = b.reshape(laid, (*x.shape[:2], *spatial, taps))
    found = b.reduce("reduce_max", rows, (rows.rank - 1,), keep=False)
    best = b.arg_max(rows, rows.rank - 1)
    columns_first = call.flag("storage_order")
    space = contiguous_strides(x.shape)[2:]
    if columns_first:  # only the two last axes change places
        space = (*space[:-2], Extent.of(1), x.shape[-2]) if len(space) > 1 else space
    total = b.reshape(
        b.binary(
            "mul",
            arange(b, x.shape[0] * x.shape[1]),
            b.extent(product(x.shape[2:]), DataType.INT64),
        ),
        (*x.shape[:2], *[Extent.of(1)] * len(windows)),
    )
    for axis, (window, within) in enumerate(zip(windows, contiguous_strides(kernel), strict=True)):
        tap = b.binary(
            "mod", b.binary("div", best, b.extent(within, DataType.INT64)), b.integer(window.kernel)
        )
        first = b.binary("mul", arange(b, spatial[axis]), b.integer(window.stride))
        first = b.binary("sub", first, b.extent(window.before, DataType.INT64))
        lifted = b.reshape(first, (spatial[axis], *[Extent.of(1)] * (len(windows) - 1 - axis)))
        place = b.binary("add", b.binary("mul", tap, b.integer(window.dilation)), lifted)
        total = b.binary("add", total, b.binary("mul", place, b.extent(space[axis], DataType.INT64)))
    return found, total


def _average_pool(call: Call) -> Value:
    x, windows = _read(call)
    b = call.builder
    total = _pooled(b, "reduce_sum", call.floats(x), windows, 0)
    counted = call.flag("count_include_pad")
    bare = tuple(
        replace(window, before=Extent.of(0), after=Extent.of(0), size=window.padded - window.extra)
        if counted
        else window
        for window in windows
    )
    if all(window.padded == window.size for window in bare):
        size = math.prod(window.kernel for window in windows)
        return b.binary("div", total, b.scalar(size, x.type))
    one = Extent.of(1)
    ones = b.broadcast(b.scalar(1, x.type), (one, one, *(window.size for window in bare)))
    return b.binary("div", total, _pooled(b, "reduce_sum", ones, bare, 0))


def _lp_pool(call: Call) -> Value:
    x, windows = _read(call)
    order, b = call.integer("p", 2), call.builder
    if order < 1:
        call.fail(f"attribute 'p' is {order}; it must be at least 1")
    total = _pooled(b, "reduce_sum", _power(b, call.floats(x), order), windows, 0)
    return _root(b, total, order)


def _power(b: Builder, x: Value, order: int) -> Value:
    size = b.unary("abs", x)
    return size if order == 1 else b.binary("pow", size, b.scalar(order, x.type))


def _root(b: Builder, x: Value, order: int) -> Value:
    return x if order == 1 else b.binary("pow", x, b.scalar(1 / order, x.type))


def _global(reduction: Callable[[Builder, Value, tuple[int, ...]], Value], call: Call) -> Value:
    x = call.input(0)
    if x.rank < 3:
        call.fail(f"its input is {x}; at least 3 axes are needed")
    return reduction(call.builder, x, tuple(range(2, x.rank)))


def _average(b: Builder, x: Value, axes: tuple[int, ...]) -> Value:
    return mean(b, x, axes, True)


def _largest(b: Builder, x: Value, axes: tuple[int, ...]) -> Value:
    return b.reduce("reduce_max", x, axes, keep=True)


def _global_lp(call: Call) -> Value:
    order = call.integer("p", 2)
    if order < 1:
        call.fail(f"attribute 'p' is {order}; it must be at least 1")

    def norm(b: Builder, x: Value, axes: tuple[int, ...]) -> Value:
        return _root(b, b.reduce("reduce_sum", _power(b, x, order), axes, keep=True), order)

    return _global(norm, call)


OPERATORS = (
    Operator("AveragePool", "composite", _average_pool),
    Operator("GlobalAveragePool", "composite", partial(_global, _average)),
    Operator("GlobalLpPool", "composite", _global_lp),
    Operator("GlobalMaxPool", "composite", partial(_global, _largest)),
    Operator("LpPool", "composite", _lp_pool),
    Operator("MaxPool", "composite", _max_pool),
)

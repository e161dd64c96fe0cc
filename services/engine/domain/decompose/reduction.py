"""Reductions, positions of extremes, running sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from libs.runtime.plan import DataType
from services.engine.domain import symbolic
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.axes import (
    around,
    axis_of,
    flags_of,
    gathered_last,
    is_open,
    kept_sizes,
)
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, contiguous_strides, product
from services.engine.domain.held_types import Thing
from services.engine.domain.loops import Round
from services.engine.domain.values import FLOATS, Move, Value, extreme


def _axes(call: Call, x: Value) -> tuple[int, ...]:
    given = call.axes_of(1)
    if not given:
        return () if call.flag("noop_with_empty_axes") else tuple(range(x.rank))
    return tuple(sorted(call.axes(given, x.rank)))


Reduction = Callable[[Builder, Value, tuple[int, ...], bool], Value]


def _plain(atomic: str, b: Builder, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    if x.type is DataType.BOOL:  # as of opset 20: any, or all
        return b.cast(_plain(atomic, b, b.cast(x, DataType.UINT8), axes, keep), DataType.BOOL)
    if atomic in _EMPTY and any(x.shape[axis].constant == 0 for axis in axes):
        kept = tuple(Extent.of(1) if axis in axes else size for axis, size in enumerate(x.shape))
        shape = kept if keep else tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
        return b.broadcast(b.scalar(extreme(x.type, _EMPTY[atomic]), x.type), shape)
    return b.reduce(atomic, x, axes, keep=keep)


_EMPTY = {"reduce_max": -1, "reduce_min": 1}
"""Which end of the type's range is the extreme of nothing."""


def mean(b: Builder, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    """Return the mean along axes."""
    total = b.reduce("reduce_sum", x, axes, keep=keep)
    return b.binary("div", total, b.extent(product(x.shape[axis] for axis in axes), x.type))


def _l1(b: Builder, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return b.reduce("reduce_sum", b.unary("abs", x), axes, keep=keep)


def _squares(b: Builder, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return b.reduce("reduce_sum", b.binary("mul", x, x), axes, keep=keep)


def _l2(b: Builder, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return b.unary("sqrt", _squares(b, x, axes, keep))


def _through_floats(reduction: Reduction, b: Builder, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    """Compute with float64 for integers, cut off the fraction."""
    if x.type in FLOATS:
        return reduction(b, x, axes, keep)
    return b.cast(reduction(b, b.cast(x, DataType.FLOAT64), axes, keep), x.type)


def _log_sum(b: Builder, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return b.unary("log", b.reduce("reduce_sum", x, axes, keep=keep))


def _log_sum_exp(b: Builder, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    """Return m + log Σ exp(x − m); m is the maximum, or 0 where that is infinite (∞ − ∞ is no number)."""
    largest = _plain("reduce_max", b, x, axes, True)
    shift = b.where(b.is_inf(largest), b.scalar(0, x.type), largest)
    powers = b.unary("exp", b.binary("sub", x, shift))
    total = b.unary("log", b.reduce("reduce_sum", powers, axes, keep=True))
    result = b.binary("add", total, shift)
    if keep:
        return result
    return b.reshape(result, tuple(size for axis, size in enumerate(x.shape) if axis not in axes))


def _by_data(reduction: Reduction, call: Call, x: Value) -> Value:
    """Reduce along axes that data decide: they are brought together first."""
    b, axes = call.builder, call.input(1)
    keep = call.flag("keepdims", True)
    removed = axes.shape[0].constant if axes.rank == 1 else None
    if axes.rank != 1 or (removed is None and not keep):
        call.fail(f"its axes are {axes}, not a vector of known length")
    flags = flags_of(b, axes, x.rank)
    if removed is None and not call.flag("noop_with_empty_axes"):
        # None named are all.
        none = b.binary("eq", b.extent(axes.shape[0], DataType.INT64), b.integer(0))
        flags = b.where(none, b.integer(1), flags)
    result = reduction(b, gathered_last(b, x, flags), (1,), False)
    if removed is None or keep:
        named = b.cast(flags, DataType.BOOL)
        return b.reshape(result, b.sizes(b.where(named, b.integer(1), b.integers(x.shape))))
    return b.reshape(result, kept_sizes(b, x.shape, flags, removed))


def _reduce(reduction: Reduction, call: Call) -> Value:
    x = call.input(0)
    if is_open(call, 1):
        return _by_data(reduction, call, x)
    axes = _axes(call, x)
    keep = call.flag("keepdims", True)
    if not axes:
        # Nothing is reduced, but what is done with the elements is.
        lifted = call.builder.reshape(x, (*x.shape, Extent.of(1)))
        return reduction(call.builder, lifted, (x.rank,), False)
    return reduction(call.builder, x, axes, keep)


def _arg(smallest: bool, call: Call) -> Value:
    x, b = call.input(0), call.builder
    find = b.arg_min if smallest else b.arg_max
    axis = call.axis(call.integer("axis", 0), x.rank)
    if call.flag("select_last_index"):
        last = b.extent(x.shape[axis] - 1, DataType.INT64)
        found = b.binary("sub", last, find(b.flip(x, axis), axis))
    else:
        found = find(x, axis)
    if not call.flag("keepdims", True):
        return found
    return b.reshape(found, (*x.shape[:axis], Extent.of(1), *x.shape[axis + 1 :]))


Running = Callable[[Builder, Value, int], Value]


def _running_sum(b: Builder, x: Value, axis: int) -> Value:
    return b.cumulative_sum(x, axis)


def _running_product(b: Builder, x: Value, axis: int) -> Value:
    """Multiply by what is 1, 2, 4, … places before: log n rounds (Hillis and Steele, 1986)."""
    size = x.shape[axis]
    places, length = arange(b, size), b.extent(size, DataType.INT64)
    lifted = (size, *[Extent.of(1)] * (x.rank - 1 - axis))

    def once(distance: Value, total: Value) -> Value:
        before = b.binary("sub", places, distance)
        there = b.binary("le", b.integer(0), before)
        factor = b.gather(total, b.binary("max", before, b.integer(0)), axis)
        factor = b.where(b.reshape(there, lifted), factor, b.scalar(1, x.type))
        return b.binary("mul", total, factor)

    if size.constant is not None:
        for number in range(max(size.constant - 1, 0).bit_length()):
            x = once(b.integer(1 << number), x)
        return x

    def body(number: Value, _: Value, state: list[Thing]) -> Round:
        (total,) = state
        assert isinstance(total, Value)
        distance = b.binary("pow", b.integer(2), number)
        wider = b.binary("mul", distance, b.integer(2))
        return Round(b.binary("lt", wider, length), [once(distance, total)])

    (result,), _ = b.loop(None, b.binary("lt", b.integer(1), length), [x], body)
    assert isinstance(result, Value)
    return result


def _cumulative(running: Running, start: int, call: Call) -> Value:
    x, b = call.input(0), call.builder
    if is_open(call, 1):
        shape = around(b, x.shape, axis_of(call, 1, x.rank))
        folded = b.reshape(x, shape)
        return b.reshape(_running(call, folded, 1, running, start), x.shape)
    return _running(call, x, call.axis(call.static_integer(1), x.rank), running, start)


def _running(call: Call, x: Value, axis: int, running: Running, start: int) -> Value:
    b = call.builder
    reverse = call.flag("reverse")
    source = b.flip(x, axis) if reverse else x
    if call.flag("exclusive"):
        strides = contiguous_strides(x.shape)
        # Of none there is nothing to move.
        others = symbolic.maximum(x.shape[axis] - 1, Extent.of(0), b.bounds)
        sizes = (*x.shape[:axis], others, *x.shape[axis + 1 :])
        move = Move(source, sizes, strides, Extent.of(0), strides, strides[axis])
        source = b.raster(x.type, x.shape, [move], fill=start)
    total = running(b, source, axis)
    return b.flip(total, axis) if reverse else total


OPERATORS = (
    Operator("ArgMax", "composite", partial(_arg, False)),
    Operator("ArgMin", "composite", partial(_arg, True)),
    Operator("CumProd", "composite", partial(_cumulative, _running_product, 1), 26),
    Operator("CumSum", "composite", partial(_cumulative, _running_sum, 0), 11),
    Operator("ReduceL1", "composite", partial(_reduce, _l1)),
    Operator("ReduceL2", "composite", partial(_reduce, partial(_through_floats, _l2))),
    Operator("ReduceLogSum", "composite", partial(_reduce, partial(_through_floats, _log_sum))),
    Operator("ReduceLogSumExp", "composite", partial(_reduce, partial(_through_floats, _log_sum_exp))),
    Operator("ReduceMax", "atomic", partial(_reduce, partial(_plain, "reduce_max"))),
    Operator("ReduceMean", "composite", partial(_reduce, mean)),
    Operator("ReduceMin", "atomic", partial(_reduce, partial(_plain, "reduce_min"))),
    Operator("ReduceProd", "atomic", partial(_reduce, partial(_plain, "reduce_prod"))),
    Operator("ReduceSum", "atomic", partial(_reduce, partial(_plain, "reduce_sum"))),
    Operator("ReduceSumSquare", "composite", partial(_reduce, _squares)),
)

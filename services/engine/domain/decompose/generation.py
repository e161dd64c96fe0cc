"""Values that come from attributes and shapes alone."""

from __future__ import annotations

import math

import numpy as np

from libs.runtime.plan import DataType
from services.engine.domain import symbolic
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.casting import onnx_type
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, product
from services.engine.domain.reference import numpy_type
from services.engine.domain.values import FLOATS, INTEGERS, Value

MOST_COUNTED = 1 << 17
"""Longest list of consecutive integers that is kept as a constant."""


def arange(b: Builder, number: Extent) -> Value:
    """Return the int64 vector 0, 1, …, number - 1."""
    if number.constant is not None and number.constant <= MOST_COUNTED:
        return b.constant(np.arange(number.constant, dtype=np.int64))
    one = b.scalar(1, DataType.INT64)
    counted = b.cumulative_sum(b.broadcast(one, (number,), fold=False), 0)
    return b.binary("sub", counted, one)


def _constant(call: Call) -> Value:
    given = {name: value for name, value in call.node.attributes.items() if name.startswith("value")}
    if len(given) != 1:
        call.fail("it needs one of the attributes 'value', 'value_float(s)' and 'value_int(s)'")
    ((name, value),) = given.items()
    if isinstance(value, np.ndarray):
        return call.builder.constant(value)
    if name not in ("value_float", "value_floats", "value_int", "value_ints"):
        call.fail(f"attribute {name!r} is not supported")
    return call.builder.constant(np.array(value, np.float32 if "float" in name else np.int64))


def _constant_of_shape(call: Call) -> Value:
    shape = call.sizes(0)
    array = call.tensor("value")
    array = np.zeros(1, np.float32) if array is None else array
    if array.size != 1:
        call.fail(f"attribute 'value' has {array.size} elements, not one")
    return call.builder.broadcast(call.builder.constant(array.reshape(())), shape)


def _shape(call: Call) -> Value:
    x = call.input(0)
    start, end = call.integer("start", 0), call.integer("end", x.rank)
    return call.builder.integers(x.shape[slice(start, end)])


def _size(call: Call) -> Value:
    return call.builder.extent(product(call.input(0).shape), DataType.INT64)


def _range(call: Call) -> Value:
    start, limit, delta = (call.input(index) for index in range(3))
    b = call.builder
    known = [b.elements(each) is not None or each.known is not None for each in (start, limit, delta)]
    if not all(known) or start.type not in (*INTEGERS, *FLOATS):
        return _range_by_data(call, start, limit, delta)
    if start.type in INTEGERS:
        (first,), (last,), (step,) = (_whole(call, each) for each in (start, limit, delta))
        if step.constant == 0:
            call.fail("its step is 0")
        if step.constant is None:
            return _range_by_data(call, start, limit, delta)
        gap = last - first if step.constant > 0 else first - last
        number = symbolic.maximum(symbolic.ceil_divide(gap, abs(step.constant)), Extent.of(0), b.bounds)
        counted = arange(b, number)
        if step.constant != 1:
            counted = b.binary("mul", counted, b.scalar(step.constant, DataType.INT64))
        if first.constant != 0:
            counted = b.binary("add", counted, b.extent(first, DataType.INT64))
        return b.cast(counted, start.type)
    return _float_range(call, start, limit, delta)


def _whole(call: Call, value: Value) -> tuple[Extent, ...]:
    """Return an integer that is known, or only depends on dimensions."""
    found = call.builder.elements(call.builder.cast(value, DataType.INT64))
    assert found is not None
    if found.size != 1:
        call.fail(f"{value} is not one number")
    return tuple(found.reshape(-1))


def _range_by_data(call: Call, *given: Value) -> Value:
    """Count from numbers that data decide."""
    b = call.builder
    start, limit, delta = (b.reshape(each, ()) for each in given)
    type_ = DataType.INT64 if start.type in INTEGERS else DataType.FLOAT64
    first, last, step = (b.cast(each, type_) for each in (start, limit, delta))
    gap = b.binary("sub", last, first)
    if type_ is DataType.INT64:
        # Rounded up: what is over divides exactly.
        rest = b.binary("mod", b.unary("neg", gap), step)
        number = b.binary("max", b.binary("div", b.binary("add", gap, rest), step), b.integer(0))
    else:
        steps = b.ceil(b.binary("div", gap, step))
        # What isn't finite is no number of steps: -1 of them are refused.
        counts = b.binary("lt", b.unary("abs", steps), b.scalar(2.0**62, type_))
        counts = b.binary("and", counts, b.binary("lt", b.unary("abs", step), b.scalar(math.inf, type_)))
        number = b.cast(
            b.where(counts, b.binary("max", steps, b.scalar(0, type_)), b.scalar(-1, type_)), DataType.INT64
        )
    count = b.size(number)
    counted = b.cast(arange(b, count), type_)
    if start.type in FLOATS:
        counted, step, first = (b.cast(each, start.type) for each in (counted, delta, start))
    return b.cast(b.binary("add", b.binary("mul", counted, step), first), start.type)


def _float_range(call: Call, *given: Value) -> Value:
    """Count from constants."""
    if any(each.known is None or each.known.size != 1 for each in given):
        return _range_by_data(call, *given)
    first, last, step = (each.known.reshape(-1)[0] for each in given if each.known is not None)
    if step == 0 or not all(map(math.isfinite, (first, last, step))):
        call.fail(f"it can't count from {first} to {last} by {step}")
    number = max(math.ceil((float(last) - float(first)) / float(step)), 0)
    if number > MOST_COUNTED:
        return _range_by_data(call, *given)
    counted = np.asarray(first + np.arange(number).astype(first.dtype) * step, first.dtype)
    return call.builder.constant(counted)


def _eye_like(call: Call) -> Value:
    x, b = call.input(0), call.builder
    if x.rank != 2:
        call.fail(f"its input is {x}, not a matrix")
    number = call.integer("dtype", 0)
    distance = between(b, x.shape[0], x.shape[1])
    on = b.binary("eq", distance, b.scalar(call.integer("k", 0), DataType.INT64))
    return b.cast(on, onnx_type(call, number) if number else x.type)


def between(b: Builder, rows: Extent, columns: Extent) -> Value:
    """Return the int64 matrix of column − row."""
    down = b.reshape(arange(b, rows), (rows, Extent.of(1)))
    return b.binary("sub", arange(b, columns), down)


def _triangle(call: Call) -> Value:
    x, b = call.input(0), call.builder
    if x.rank < 2:
        call.fail(f"its input is {x}; at least 2 axes are needed")
    diagonal = call.optional(1)
    limit = b.scalar(0, DataType.INT64) if diagonal is None else b.reshape(diagonal, ())
    distance = between(b, x.shape[-2], x.shape[-1])
    pair = (limit, distance) if call.flag("upper", True) else (distance, limit)
    kept = b.binary("le", *pair)
    return b.where(kept, x, b.constant(np.zeros((), numpy_type(x.type))))


OPERATORS = (
    Operator("Constant", "static", _constant),
    Operator("ConstantOfShape", "static", _constant_of_shape, 9),
    Operator("EyeLike", "composite", _eye_like, 9, keeps=True),
    Operator("Range", "static", _range, 11),
    Operator("Shape", "static", _shape),
    Operator("Size", "static", _size),
    Operator("Trilu", "composite", _triangle, 14, keeps=True),
)

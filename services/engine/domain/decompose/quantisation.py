"""Numbers as small integers with a scale and a zero point."""

from __future__ import annotations

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent
from services.engine.domain.values import Value, extreme

ONE = Extent.of(1)


def _along(call: Call, x: Value, vector: Value) -> Value:
    """Return a scale or zero point so that it broadcasts along attribute `axis` of x."""
    if vector.rank == 0 or vector.shape == (ONE,):
        return call.builder.reshape(vector, ())
    if vector.rank > 1 or call.integer("block_size", 0):
        call.fail(f"scales of shape {vector} are not supported; use one, or one for each channel")
    axis = call.axis(call.integer("axis", 1), x.rank)
    return call.builder.reshape(vector, (*vector.shape, *[ONE] * (x.rank - 1 - axis)))


def _dequantize(call: Call) -> Value:
    x, b = call.input(0), call.builder
    scale, zero = _along(call, x, call.input(1)), call.optional(2)
    wide = b.cast(x, scale.type)
    if zero is not None:
        wide = b.binary("sub", wide, b.cast(_along(call, x, zero), scale.type))
    return b.binary("mul", wide, scale)


def _quantised(b: Builder, x: Value, scale: Value, zero: Value, type_: DataType) -> Value:
    whole = b.unary("round", b.binary("div", x, scale))
    moved = b.binary("add", whole, b.cast(zero, x.type))
    low, high = b.scalar(extreme(type_, -1), x.type), b.scalar(extreme(type_, 1), x.type)
    return b.cast(b.binary("min", b.binary("max", moved, low), high), type_)


def _quantize(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    zero = call.optional(2)
    if zero is None:
        zero = b.scalar(0, DataType.UINT8)
    if zero.type not in (DataType.INT8, DataType.UINT8, DataType.INT16, DataType.UINT16):
        call.fail(f"the zero point is {zero}; use int8, uint8, int16 or uint16")
    scale = b.cast(_along(call, x, call.input(1)), x.type)
    return _quantised(b, x, scale, _along(call, x, zero), zero.type)


def _dynamic(call: Call) -> tuple[Value, ...]:
    x, b = call.floats(call.input(0)), call.builder
    axes, none = tuple(range(x.rank)), b.scalar(0, x.type)
    low = b.binary("min", b.reduce("reduce_min", x, axes, keep=False), none)
    high = b.binary("max", b.reduce("reduce_max", x, axes, keep=False), none)
    scale = b.binary("div", b.binary("sub", high, low), b.scalar(255, x.type))
    safe = b.where(b.binary("eq", scale, none), b.scalar(1, x.type), scale)
    place = b.unary("round", b.binary("div", b.unary("neg", low), safe))
    zero = b.cast(b.binary("min", place, b.scalar(255, x.type)), DataType.UINT8)
    return _quantised(b, x, safe, zero, DataType.UINT8), scale, zero


OPERATORS = (
    Operator("DequantizeLinear", "composite", _dequantize, 10),
    Operator("DynamicQuantizeLinear", "composite", _dynamic, 11),
    Operator("QuantizeLinear", "composite", _quantize, 10),
)

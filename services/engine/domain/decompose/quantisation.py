"""Numbers as small integers (or floats of few bits) with a scale and a zero point."""

from __future__ import annotations

from libs.runtime.plan import DataType
from services.engine.domain import symbolic
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.casting import LARGEST, onnx_type, saturated
from services.engine.domain.decompose.convolution import convolve, kernel_of, read_groups
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.linear import product, shifted
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.decompose.windows import read_windows
from services.engine.domain.extents import Extent
from services.engine.domain.values import FLOATS, Value

ONE = Extent.of(1)
_RANGES = {
    DataType.INT8: (-128, 127),
    DataType.UINT8: (0, 255),
    DataType.INT16: (-32768, 32767),
    DataType.UINT16: (0, 65535),
    DataType.INT4: (-8, 7),
    DataType.UINT4: (0, 15),
    DataType.INT2: (-2, 1),
    DataType.UINT2: (0, 3),
}
"""Of integers that are quantised to."""
_INTEGERS = frozenset({*_RANGES, DataType.INT32})
"""What is taken back to real numbers with a zero point that isn't 0."""


def _along(call: Call, x: Value, values: Value) -> Value:
    """Return scales or zero points as they broadcast over x: one, one for each slice, or blocks."""
    b = call.builder
    if values.rank == 0 or values.shape == (ONE,):
        return b.reshape(values, ())
    if x.rank == 0:
        call.fail(f"scales or zero points {values} don't fit {x}")
    block = call.integer("block_size", 0)
    if values.rank == 1 and not block:
        axis = call.axis(call.integer("axis", 1), x.rank) if x.rank > 1 or call.opset < 13 else 0
        b.equal(values.shape[0], x.shape[axis])
        return b.reshape(values, (*values.shape, *[ONE] * (x.rank - 1 - axis)))
    axis = call.axis(call.integer("axis", 1), x.rank)
    if values.rank != x.rank or block < 1:
        call.fail(f"scales or zero points {values} don't fit {x} in blocks of {block}")
    b.equal(values.shape[axis], symbolic.ceil_divide(x.shape[axis], block))
    places = b.binary("div", arange(b, x.shape[axis]), b.integer(block))
    return b.gather(values, places, axis)


def _dequantize(call: Call) -> Value:
    x, scale, zero, b = call.input(0), call.input(1), call.optional(2), call.builder
    number = call.integer("output_dtype", 0)
    result = onnx_type(call, number) if number else scale.type
    if zero is None or x.type not in _INTEGERS:
        wide = b.cast(x, DataType.FLOAT32)
    else:
        # Differences are exact in these: what is taken off 32 bits may need a 33rd.
        exact = DataType.FLOAT64 if x.type is DataType.INT32 else DataType.INT32
        away = b.binary("sub", b.cast(x, exact), b.cast(_along(call, x, zero), exact))
        wide = b.cast(away, DataType.FLOAT32)
    by = _along(call, x, b.cast(scale, DataType.FLOAT32))
    return b.cast(b.binary("mul", wide, by), result)


def _into(b: Builder, x: Value, zero: Value | None, type_: DataType) -> Value:
    """Return floats as integers of a type: rounded to even, moved by the zero point, kept in range."""
    whole = b.unary("round", x)
    if zero is not None:
        wide = b.cast(zero, DataType.INT32) if zero.type not in FLOATS else zero
        whole = b.binary("add", whole, b.cast(wide, x.type))
    low, high = (b.scalar(end, x.type) for end in _RANGES[type_])
    kept = b.binary("min", b.binary("max", whole, low), high)
    # Through a type that is wide enough for all: narrow ones are only stored.
    return b.cast(b.cast(kept, DataType.INT32), type_)


def _divided(call: Call, x: Value, scale: Value) -> Value:
    """Return x / scale, rounded as the type of the node's precision or of the scale has it."""
    b, number = call.builder, call.integer("precision", 0)
    type_ = onnx_type(call, number) if number else scale.type
    if type_ not in FLOATS and type_ is not DataType.BFLOAT16:
        type_ = x.type if x.type in FLOATS else DataType.FLOAT32
    # Of a quotient of bfloat16 this is the same as if it had been rounded once.
    wide = DataType.FLOAT32 if type_ is DataType.BFLOAT16 else type_
    sides = (b.cast(b.cast(side, type_), wide) for side in (x, _along(call, x, scale)))
    quotient = b.cast(b.binary("div", *sides), type_)
    return quotient if type_ is DataType.FLOAT64 else b.cast(quotient, DataType.FLOAT32)


def _quantize(call: Call) -> Value:
    x, scale, zero, b = call.input(0), call.input(1), call.optional(2), call.builder
    type_ = _target(call, zero)
    divided = _divided(call, x, scale)
    if type_ in _RANGES:
        return _into(b, divided, None if zero is None else _along(call, x, zero), type_)
    if zero is not None:
        divided = b.binary("add", divided, b.cast(_along(call, x, zero), divided.type))
    if type_ in LARGEST and call.flag("saturate", True):
        return saturated(b, divided, type_)
    return b.cast(divided, type_)


def _target(call: Call, zero: Value | None) -> DataType:
    number = call.integer("output_dtype", 0)
    type_ = zero.type if zero is not None else onnx_type(call, number) if number else DataType.UINT8
    if number and onnx_type(call, number) is not type_:
        wanted = onnx_type(call, number).name.lower()
        call.fail(f"attribute 'output_dtype' says {wanted}, but the zero point is {zero}")
    _check_target(call, type_)
    return type_


def _check_target(call: Call, type_: DataType) -> None:
    if type_ not in _RANGES and type_ not in LARGEST and type_ is not DataType.FLOAT4E2M1:
        call.fail(
            f"the result would be of type {type_.name.lower()}; use an integer of 2 to 16 bits, "
            "or a float of 4 or 8"
        )


def _dynamic(call: Call) -> tuple[Value, ...]:
    x, b = call.floats(call.input(0)), call.builder
    axes, none = tuple(range(x.rank)), b.scalar(0, x.type)
    low = b.binary("min", b.reduce("reduce_min", x, axes, keep=False), none)
    high = b.binary("max", b.reduce("reduce_max", x, axes, keep=False), none)
    scale = b.binary("div", b.binary("sub", high, low), b.scalar(255, x.type))
    safe = b.where(b.binary("eq", scale, none), b.scalar(1, x.type), scale)
    place = b.unary("round", b.binary("div", b.unary("neg", low), safe))
    zero = b.cast(b.binary("min", place, b.scalar(255, x.type)), DataType.UINT8)
    return _into(b, b.binary("div", x, safe), zero, DataType.UINT8), scale, zero


def _requantised(call: Call, exact: Value, factor: Value, zero: Value) -> Value:
    """Return sums times a factor in the type of a zero point; in 64-bit floats those of 32 bits are exact."""
    b, type_ = call.builder, zero.type
    _check_target(call, type_)
    scaled = b.binary("mul", b.cast(exact, DataType.FLOAT64), b.cast(factor, DataType.FLOAT64))
    if type_ in _RANGES:
        return _into(b, scaled, zero, type_)
    moved = b.binary("add", scaled, b.cast(zero, DataType.FLOAT64))
    return saturated(b, moved, type_) if type_ in LARGEST else b.cast(moved, type_)


def _single(call: Call, value: Value) -> Value:
    """Return a value of one element as a scalar; others as they are."""
    return call.builder.reshape(value, ()) if value.shape == (ONE,) else value


def _factor(call: Call, one: Value, other: Value, result: Value) -> Value:
    """Return one · other / result, in 32 bits where they have fewer."""
    b = call.builder
    scales = [
        scale if scale.type is DataType.FLOAT64 else b.cast(scale, DataType.FLOAT32)
        for scale in (one, other, result)
    ]
    return b.binary("div", b.binary("mul", scales[0], scales[1]), scales[2])


def _rows(call: Call, value: Value) -> Value:
    """Return a vector, one number for each row, as a column."""
    return call.builder.reshape(value, (*value.shape, ONE)) if value.rank == 1 else value


def _quantised_product(call: Call) -> Value:
    b, x, y = call.builder, call.input(0), call.input(3)
    x_scale, x_zero = _rows(call, _single(call, call.input(1))), _rows(call, _single(call, call.input(2)))
    y_scale, y_zero = (_single(call, call.input(index)) for index in (4, 5))
    scale, zero = _rows(call, _single(call, call.input(6))), _rows(call, _single(call, call.input(7)))
    whole = x.type in _RANGES and y.type in _RANGES
    wide = DataType.INT32 if whole else DataType.FLOAT32
    left = b.binary("sub", b.cast(x, wide), b.cast(x_zero, wide))
    right = b.binary("sub", b.cast(y, wide), b.cast(y_zero, wide))
    factor = _factor(call, x_scale, y_scale, scale)
    return _requantised(call, product(b, left, right), factor, zero)


def _quantised_convolution(call: Call) -> Value:
    b, x, w = call.builder, call.input(0), call.input(3)
    kernel = kernel_of(call, x, w)
    windows = read_windows(call, x.shape[2:], kernel)
    groups = read_groups(call, x.shape[1], w.shape[0], w.shape[1])
    left = shifted(b, x, _single(call, call.input(2)))
    right = shifted(b, w, _single(call, call.input(5)), 0)
    exact = convolve(b, left, right, windows, groups)
    channels = (w.shape[0], *[ONE] * (x.rank - 2))
    if (bias := call.optional(8)) is not None:
        exact = b.binary("add", exact, b.reshape(b.cast(bias, DataType.INT32), channels))
    w_scale = _single(call, call.input(4))
    if w_scale.rank == 1:
        w_scale = b.reshape(w_scale, channels)
    x_scale, scale, zero = (_single(call, call.input(index)) for index in (1, 6, 7))
    return _requantised(call, exact, _factor(call, x_scale, w_scale, scale), zero)


OPERATORS = (
    Operator("DequantizeLinear", "composite", _dequantize, 10, keeps=True),
    Operator("DynamicQuantizeLinear", "composite", _dynamic, 11),
    Operator("QLinearConv", "composite", _quantised_convolution, 10, keeps=True),
    Operator("QLinearMatMul", "composite", _quantised_product, 10, keeps=True),
    Operator("QuantizeLinear", "composite", _quantize, 10, keeps=True),
)

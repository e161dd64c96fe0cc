"""From one type of elements to another."""

from __future__ import annotations

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.graph import LooseTensor
from services.engine.domain.values import FLOATS, Value

_ONNX_TYPES = {
    1: DataType.FLOAT32,
    2: DataType.UINT8,
    3: DataType.INT8,
    4: DataType.UINT16,
    5: DataType.INT16,
    6: DataType.INT32,
    7: DataType.INT64,
    8: DataType.STRING,
    9: DataType.BOOL,
    10: DataType.FLOAT16,
    11: DataType.FLOAT64,
    12: DataType.UINT32,
    13: DataType.UINT64,
    14: DataType.COMPLEX64,
    15: DataType.COMPLEX128,
    16: DataType.BFLOAT16,
    17: DataType.FLOAT8E4M3FN,
    18: DataType.FLOAT8E4M3FNUZ,
    19: DataType.FLOAT8E5M2,
    20: DataType.FLOAT8E5M2FNUZ,
    21: DataType.UINT4,
    22: DataType.INT4,
    23: DataType.FLOAT4E2M1,
    24: DataType.FLOAT8E8M0,
    25: DataType.UINT2,
    26: DataType.INT2,
}
"""By the number in onnx.TensorProto.DataType."""
LARGEST: dict[DataType, float] = {
    DataType.FLOAT8E4M3FN: 448.0,
    DataType.FLOAT8E4M3FNUZ: 240.0,
    DataType.FLOAT8E5M2: 57344.0,
    DataType.FLOAT8E5M2FNUZ: 57344.0,
}
"""Finite numbers of types of 8 bits (Micikevicius et al., "FP8 formats for deep learning", 2022)."""


def onnx_type(call: Call, number: int) -> DataType:
    """Return the type that ONNX gives this number; refuses one that plans don't have."""
    if number not in _ONNX_TYPES:
        known = ", ".join(sorted(type_.name.lower() for type_ in _ONNX_TYPES.values()))
        call.fail(f"elements of ONNX's type {number} are not supported; use one of {known}")
    return _ONNX_TYPES[number]


def saturated(b: Builder, x: Value, type_: DataType) -> Value:
    """Convert floats to a type of 8 bits; what is beyond its largest number becomes that."""
    wide = x if x.type in FLOATS else b.cast(x, DataType.FLOAT32)
    most = LARGEST[type_]
    clipped = b.binary("max", b.binary("min", wide, b.scalar(most, wide.type)), b.scalar(-most, wide.type))
    return b.cast(clipped, type_)


def _power_of_two(call: Call, x: Value, saturate: bool) -> Value:
    """Convert to a power of two, rounded as the node says; signs are lost.

    The byte of FLOAT8E8M0 is the exponent plus 127, and 255 for NaN; there is no 0, and no infinity. What is
    beyond, 0 and infinity too, becomes the nearest end, or NaN without `saturate`.
    """
    b, mode = call.builder, call.text("round_mode", "up", ("up", "down", "nearest"))
    whole = DataType.INT64

    def number(value: int) -> Value:
        return b.scalar(value, whole)

    wide = b.cast(x, DataType.FLOAT64)
    bits = b.bit_cast(b.unary("abs", wide), whole)
    fraction = b.binary("and", bits, number((1 << 52) - 1))
    exponent = b.binary("sub", b.binary("div", bits, number(1 << 52)), number(1023 - 127))
    if mode == "up":
        exponent = b.binary("add", exponent, b.cast(b.binary("lt", number(0), fraction), whole))
    elif mode == "nearest":
        exponent = b.binary("add", exponent, b.cast(b.binary("le", number(1 << 51), fraction), whole))
    kept = b.binary("min", b.binary("max", exponent, number(0)), number(254))
    none = b.is_nan(wide) if saturate else b.unary("not", b.binary("eq", exponent, kept))
    byte = b.where(none, number(255), kept)
    return b.bit_cast(b.cast(byte, DataType.UINT8), DataType.FLOAT8E8M0)


def converted(call: Call, x: Value, type_: DataType) -> Value:
    """Convert as ONNX's Cast does, by the node's attributes."""
    b, saturate = call.builder, call.flag("saturate", True)
    if x.type is type_:
        return x
    complex_ = (DataType.COMPLEX64, DataType.COMPLEX128)
    if x.type in complex_ or type_ in complex_:
        call.fail(f"{x} can't be converted to {type_.name.lower()}")
    if type_ is DataType.FLOAT8E8M0 and x.type is not DataType.STRING:
        return _power_of_two(call, x, saturate)
    if type_ in LARGEST and saturate and x.type is not DataType.STRING:
        return saturated(b, x, type_)
    return b.cast(x, type_)


def _cast(call: Call) -> Value:
    return converted(call, call.input(0), onnx_type(call, call.integer("to")))


def _cast_like(call: Call) -> Value:
    like = call.thing(1)
    if isinstance(like, Value):
        return converted(call, call.input(0), like.type)
    if not isinstance(like.type, LooseTensor):  # of tensors only the type counts, not the rank
        call.fail(f"input 1 ({call.node.inputs[1]!r}) is {like}, not a tensor")
    return converted(call, call.input(0), like.type.type)


def _bit_cast(call: Call) -> Value:
    return call.builder.bit_cast(call.input(0), onnx_type(call, call.integer("to")))


OPERATORS = (
    Operator("BitCast", "atomic", _bit_cast, 26, keeps=True),
    Operator("Cast", "atomic", _cast, keeps=True),
    Operator("CastLike", "atomic", _cast_like, 15, keeps=True),
)

"""Facts about the types of elements, without numpy."""

from collections.abc import Mapping

from libs.runtime.plan import DataType

ITEM_BYTES: Mapping[DataType, int] = {
    DataType.BOOL: 1,
    DataType.INT8: 1,
    DataType.INT16: 2,
    DataType.INT32: 4,
    DataType.INT64: 8,
    DataType.UINT8: 1,
    DataType.UINT16: 2,
    DataType.UINT32: 4,
    DataType.UINT64: 8,
    DataType.FLOAT16: 2,
    DataType.FLOAT32: 4,
    DataType.FLOAT64: 8,
    DataType.BFLOAT16: 2,
    DataType.FLOAT8E4M3FN: 1,
    DataType.FLOAT8E4M3FNUZ: 1,
    DataType.FLOAT8E5M2: 1,
    DataType.FLOAT8E5M2FNUZ: 1,
    DataType.FLOAT8E8M0: 1,
    # One byte each, however few bits they need.
    DataType.INT4: 1,
    DataType.UINT4: 1,
    DataType.FLOAT4E2M1: 1,
    DataType.INT2: 1,
    DataType.UINT2: 1,
    DataType.COMPLEX64: 8,
    DataType.COMPLEX128: 16,
}
"""Of everything but strings, which no part of a plan holds."""
NARROW_BITS: Mapping[DataType, int] = {
    DataType.INT4: 4,
    DataType.UINT4: 4,
    DataType.FLOAT4E2M1: 4,
    DataType.INT2: 2,
    DataType.UINT2: 2,
}
"""How many bits of an element's byte count, the lowest, where those aren't all; the others are 0."""
_COMPLEX = (DataType.COMPLEX64, DataType.COMPLEX128)
_FLOATS = (DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64)


def same_bits(one: DataType, other: DataType) -> bool:
    """Tell whether elements of two types have as many bits: each of one is an element of the other."""
    narrow = NARROW_BITS.get(one) == NARROW_BITS.get(other)
    return narrow and ITEM_BYTES[one] == ITEM_BYTES[other]


def family(type_: DataType) -> str:
    """Return "b", "f", "i", "o" or "c": bool, floating, integer, narrow, or complex."""
    if type_ is DataType.BOOL:
        return "b"
    if type_ in _FLOATS:
        return "f"
    if type_ in _COMPLEX:
        return "c"
    return "i" if type_ < DataType.FLOAT16 else "o"

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
_FLOATS = (DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64)


def family(type_: DataType) -> str:
    """Return "b", "f", "i" or "o": bool, floating, integer, or one that is only kept."""
    if type_ is DataType.BOOL:
        return "b"
    if type_ in _FLOATS:
        return "f"
    return "i" if type_ < DataType.FLOAT16 else "o"

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
}


def family(type_: DataType) -> str:
    """Return "b", "f" or "i": bool, floating or integer."""
    if type_ is DataType.BOOL:
        return "b"
    return "f" if type_ in (DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64) else "i"

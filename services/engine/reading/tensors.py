"""Constants: TensorProto to numpy, with every declared size held against the data that is there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from libs.common.errors import Invalid
from libs.common.sizes import size_text
from libs.runtime.plan import DataType
from services.engine.domain.reference import numpy_type
from services.engine.reading.limits import MOST_AXES, shown

Types = TensorProto.DataType
TYPES: Mapping[int, DataType] = {
    Types.BOOL: DataType.BOOL,
    Types.INT8: DataType.INT8,
    Types.INT16: DataType.INT16,
    Types.INT32: DataType.INT32,
    Types.INT64: DataType.INT64,
    Types.UINT8: DataType.UINT8,
    Types.UINT16: DataType.UINT16,
    Types.UINT32: DataType.UINT32,
    Types.UINT64: DataType.UINT64,
    Types.FLOAT16: DataType.FLOAT16,
    Types.FLOAT: DataType.FLOAT32,
    Types.DOUBLE: DataType.FLOAT64,
}
_FIELDS: Mapping[DataType, str] = {
    DataType.INT64: "int64_data",
    DataType.UINT32: "uint64_data",
    DataType.UINT64: "uint64_data",
    DataType.FLOAT32: "float_data",
    DataType.FLOAT64: "double_data",
}
"""Where elements are that aren't raw; all others are in int32_data."""


def element_type(number: int, what: str) -> DataType:
    """Return the type of elements; raises Invalid for one that plans don't have."""
    if number in TYPES:
        return TYPES[number]
    name = Types.Name(number) if number in Types.values() else str(number)
    known = ", ".join(sorted(type_.name.lower() for type_ in DataType))
    raise Invalid(f"{what} has elements of type {name}, which is not supported; use one of {known}")


def read_tensor(tensor: TensorProto, what: str) -> npt.NDArray[np.generic]:
    """Return a constant as a read-only array. `what` names it in errors.

    Raises Invalid for data elsewhere than in the file, and a shape that the data doesn't fill.
    """
    if tensor.data_location != TensorProto.DEFAULT or tensor.external_data:
        raise Invalid(
            f"{what} keeps its data in another file; save the model as one file "
            "(onnx.save with save_as_external_data=False)"
        )
    if tensor.HasField("segment"):
        raise Invalid(f"{what} is a segment of a tensor, which is not supported")
    type_ = element_type(tensor.data_type, what)
    shape = tuple(tensor.dims)
    if len(shape) > MOST_AXES:
        raise Invalid(f"{what} has {len(shape)} axes; at most {MOST_AXES} are supported")
    if any(size < 0 for size in shape):
        raise Invalid(f"{what} has shape {list(shape)}; sizes must not be negative")
    count = math.prod(shape)
    array = (
        _raw(tensor, type_, count, what)
        if tensor.HasField("raw_data")
        else _typed(tensor, type_, count, what)
    )
    array = array.reshape(shape)
    array.flags.writeable = False
    return array


def _raw(tensor: TensorProto, type_: DataType, count: int, what: str) -> npt.NDArray[Any]:
    dtype = numpy_type(type_)
    if len(tensor.raw_data) != count * dtype.itemsize:
        raise Invalid(
            f"{what} declares {count} elements, {size_text(count * dtype.itemsize)}, "
            f"but holds {size_text(len(tensor.raw_data))}; the file is damaged"
        )
    if type_ is DataType.BOOL:  # bytes of other people may hold more than 0 and 1
        return np.asarray(np.frombuffer(tensor.raw_data, np.uint8) != 0)
    return np.frombuffer(tensor.raw_data, dtype.newbyteorder("<")).astype(dtype, copy=False)


def _typed(tensor: TensorProto, type_: DataType, count: int, what: str) -> npt.NDArray[Any]:
    items = getattr(tensor, _FIELDS.get(type_, "int32_data"))
    if len(items) != count:
        raise Invalid(f"{what} declares {count} elements, but holds {len(items)}; the file is damaged")
    if type_ in (DataType.FLOAT32, DataType.FLOAT64):
        return np.array(items, numpy_type(type_))
    wide = np.array(items, np.uint64 if type_ in (DataType.UINT32, DataType.UINT64) else np.int64)
    if type_ is DataType.FLOAT16:  # the bits, as integers
        return np.asarray(wide.astype(np.uint16).view(np.float16))
    return np.asarray(wide.astype(numpy_type(type_)))


def tensor_name(name: str) -> str:
    """Return how messages call a constant."""
    return f"constant {shown(name)}"

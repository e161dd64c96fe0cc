"""Constants: TensorProto to numpy, with every declared size held against the data that is there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import SparseTensorProto, TensorProto

from libs.common.errors import Invalid
from libs.common.sizes import size_text
from libs.runtime.plan import DataType
from services.engine.reading.external import ExternalFiles
from services.engine.reading.limits import MOST_AXES, MOST_CONSTANT_BYTES, MOST_STRINGS, shown

Array = npt.NDArray[Any]
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
    Types.BFLOAT16: DataType.BFLOAT16,
    Types.FLOAT8E4M3FN: DataType.FLOAT8E4M3FN,
    Types.FLOAT8E4M3FNUZ: DataType.FLOAT8E4M3FNUZ,
    Types.FLOAT8E5M2: DataType.FLOAT8E5M2,
    Types.FLOAT8E5M2FNUZ: DataType.FLOAT8E5M2FNUZ,
    Types.FLOAT8E8M0: DataType.FLOAT8E8M0,
    Types.INT4: DataType.INT4,
    Types.UINT4: DataType.UINT4,
    Types.FLOAT4E2M1: DataType.FLOAT4E2M1,
    Types.INT2: DataType.INT2,
    Types.UINT2: DataType.UINT2,
    Types.COMPLEX64: DataType.COMPLEX64,
    Types.COMPLEX128: DataType.COMPLEX128,
    Types.STRING: DataType.STRING,
}
_EXOTIC: Mapping[DataType, type] = {
    DataType.BFLOAT16: ml_dtypes.bfloat16,
    DataType.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    DataType.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    DataType.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    DataType.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    DataType.FLOAT8E8M0: ml_dtypes.float8_e8m0fnu,
    DataType.INT4: ml_dtypes.int4,
    DataType.UINT4: ml_dtypes.uint4,
    DataType.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
    DataType.INT2: ml_dtypes.int2,
    DataType.UINT2: ml_dtypes.uint2,
    DataType.STRING: np.object_,
}
_PACKED: Mapping[DataType, int] = {
    DataType.INT4: 4,
    DataType.UINT4: 4,
    DataType.FLOAT4E2M1: 4,
    DataType.INT2: 2,
    DataType.UINT2: 2,
}
"""Bits of types of which several elements share a byte, the first in its lowest bits."""
_BITS: Mapping[DataType, type] = {
    DataType.FLOAT16: np.uint16,
    DataType.BFLOAT16: np.uint16,
    DataType.FLOAT8E4M3FN: np.uint8,
    DataType.FLOAT8E4M3FNUZ: np.uint8,
    DataType.FLOAT8E5M2: np.uint8,
    DataType.FLOAT8E5M2FNUZ: np.uint8,
    DataType.FLOAT8E8M0: np.uint8,
}
"""Types whose elements are in int32_data as their bits."""
_FIELDS: Mapping[DataType, str] = {
    DataType.INT64: "int64_data",
    DataType.UINT32: "uint64_data",
    DataType.UINT64: "uint64_data",
    DataType.FLOAT32: "float_data",
    DataType.FLOAT64: "double_data",
    DataType.COMPLEX64: "float_data",
    DataType.COMPLEX128: "double_data",
}
"""Where elements are that aren't raw; all others but strings are in int32_data."""


def element_type(number: int, what: str) -> DataType:
    """Return the type of elements; raises Invalid for one that plans don't have."""
    if number in TYPES:
        return TYPES[number]
    name = Types.Name(number) if number in Types.values() else str(number)
    known = ", ".join(sorted(type_.name.lower() for type_ in DataType))
    raise Invalid(f"{what} has elements of type {name}, which is not supported; use one of {known}")


def array_type(type_: DataType) -> np.dtype[Any]:
    """Return numpy's type for elements of constants; strings are objects."""
    return np.dtype(_EXOTIC.get(type_, type_.name.lower()))


class Tensors:
    """Reads the constants of one model, and bounds what they come to."""

    def __init__(self, files: ExternalFiles) -> None:
        self._files = files
        self._bytes = 0
        self._strings = 0

    def dense(self, tensor: TensorProto, what: str) -> Array:
        """Return a constant as a read-only array. `what` names it in errors.

        Raises Invalid for data that isn't there, and a shape that it doesn't fill.
        """
        if tensor.HasField("segment"):
            raise Invalid(f"{what} is a segment of a tensor, which is not supported")
        type_ = element_type(tensor.data_type, what)
        shape = _shape(tensor.dims, what)
        count = math.prod(shape)
        if tensor.data_location == TensorProto.EXTERNAL:
            if type_ is DataType.STRING:
                raise Invalid(f"{what} keeps strings in another file, which ONNX doesn't allow")
            self._take(count, type_, what)
            array = _raw(self._files.read(tensor, _raw_bytes(type_, count), what), type_, count, what)
        elif tensor.HasField("raw_data"):
            array = _raw(tensor.raw_data, type_, count, what)
            self._take(count, type_, what)
        elif type_ is DataType.STRING:
            self.take_strings(len(tensor.string_data), what)
            array = _strings(tensor, count, what)
        else:
            array = _typed(tensor, type_, count, what)
            self._take(count, type_, what)
        array = array.reshape(shape)
        array.flags.writeable = False
        return array

    def sparse(self, tensor: SparseTensorProto, what: str) -> Array:
        """Return a sparse constant as a dense one; elements that aren't given are 0, or empty strings.

        Raises Invalid for what `dense` does, and for indices that aren't in order or lie outside.
        """
        shape = _shape(tensor.dims, what)
        values = self.dense(tensor.values, f"{what}: its values")
        indices = self.dense(tensor.indices, f"{what}: its indices")
        if values.ndim != 1 or indices.dtype != np.int64:
            raise Invalid(f"{what} is sparse: its values must have one axis, and its indices be INT64")
        count = math.prod(shape)
        if indices.shape == (len(values), len(shape)):
            if ((indices < 0) | (indices >= np.array(shape, np.int64))).any():
                raise Invalid(f"{what} is sparse and has an index outside of its shape {list(shape)}")
            steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
            places = indices @ np.array(steps, np.int64) if shape else np.zeros(len(values), np.int64)
        elif indices.shape == values.shape:
            places = indices
        else:
            raise Invalid(
                f"{what} is sparse: indices of shape {list(indices.shape)} don't fit {len(values)} values of "
                f"{len(shape)} axes"
            )
        if len(places) and (places[0] < 0 or places[-1] >= count or (np.diff(places) <= 0).any()):
            raise Invalid(f"{what} is sparse: its indices must ascend from 0 to below {count}")
        type_ = TYPES[tensor.values.data_type]
        self._take(count, type_, what)
        array = np.full(count, "", np.object_) if type_ is DataType.STRING else np.zeros(count, values.dtype)
        array[places] = values
        array = array.reshape(shape)
        array.flags.writeable = False
        return array

    def take_strings(self, count: int, what: str) -> None:
        """Count strings. Raises Invalid where a model has too many."""
        self._strings += count
        if self._strings > MOST_STRINGS:
            raise Invalid(f"{what}: the model holds more than {MOST_STRINGS} strings")

    def _take(self, count: int, type_: DataType, what: str) -> None:
        if type_ is DataType.STRING:
            self.take_strings(count, what)
        self._bytes += count * array_type(type_).itemsize
        if self._bytes > MOST_CONSTANT_BYTES:
            raise Invalid(
                f"{what}: constants of the model come to more than {size_text(MOST_CONSTANT_BYTES)}"
            )


def _shape(dims: Any, what: str) -> tuple[int, ...]:
    shape = tuple(int(size) for size in dims)
    if len(shape) > MOST_AXES:
        raise Invalid(f"{what} has {len(shape)} axes; at most {MOST_AXES} are supported")
    if any(size < 0 for size in shape):
        raise Invalid(f"{what} has shape {list(shape)}; sizes must not be negative")
    if math.prod(max(size, 1) for size in shape) >= 1 << 48:
        # numpy refuses sizes whose product is too large also where another one is 0.
        raise Invalid(
            f"{what} declares {math.prod(shape)} elements in shape {list(shape)}, which are too many"
        )
    return shape


def _raw_bytes(type_: DataType, count: int) -> int:
    bits = _PACKED.get(type_)
    return (count * bits + 7) // 8 if bits else count * array_type(type_).itemsize


def _raw(data: bytes, type_: DataType, count: int, what: str) -> Array:
    if type_ is DataType.STRING:
        raise Invalid(f"{what} holds strings as raw bytes, which ONNX doesn't allow")
    wanted = _raw_bytes(type_, count)
    if len(data) != wanted:
        raise Invalid(
            f"{what} declares {count} elements, {size_text(wanted)}, but holds {size_text(len(data))}; "
            "the file is damaged"
        )
    if type_ in _PACKED:
        return _unpacked(np.frombuffer(data, np.uint8), type_, count)
    if type_ is DataType.BOOL:  # bytes of other people may hold more than 0 and 1
        return np.asarray(np.frombuffer(data, np.uint8) != 0)
    dtype = array_type(type_)
    if type_ in _BITS:  # such types know of no order of bytes
        bits = np.dtype(_BITS[type_])
        return np.frombuffer(data, bits.newbyteorder("<")).astype(bits, copy=False).view(dtype)
    return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype, copy=False)


def _unpacked(data: npt.NDArray[np.uint8], type_: DataType, count: int) -> Array:
    bits = _PACKED[type_]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (data[:, None] >> shifts).reshape(-1)[:count] & np.uint8((1 << bits) - 1)
    if type_ is DataType.FLOAT4E2M1:
        return codes.view(array_type(type_))
    if type_ in (DataType.INT4, DataType.INT2):
        half, whole = 1 << (bits - 1), 1 << bits
        signed = codes.astype(np.int8)
        return np.where(signed >= half, signed - np.int8(whole), signed).astype(array_type(type_))
    return codes.astype(array_type(type_))


def _typed(tensor: TensorProto, type_: DataType, count: int, what: str) -> Array:
    items = getattr(tensor, _FIELDS.get(type_, "int32_data"))
    wanted = count
    if type_ in _PACKED:
        wanted = _raw_bytes(type_, count)
    elif type_ in (DataType.COMPLEX64, DataType.COMPLEX128):
        wanted = 2 * count
    if len(items) != wanted:
        raise Invalid(f"{what} declares {count} elements, but holds {len(items)}; the file is damaged")
    dtype = array_type(type_)
    if type_ in (DataType.FLOAT32, DataType.FLOAT64):
        return np.array(items, dtype)
    if type_ in (DataType.COMPLEX64, DataType.COMPLEX128):
        return np.array(items, np.float32 if type_ is DataType.COMPLEX64 else np.float64).view(dtype)
    if type_ is DataType.BOOL:
        return np.asarray(np.array(items, np.int64) != 0)
    held = np.dtype(np.uint8 if type_ in _PACKED else _BITS.get(type_, dtype))
    wide = np.array(items, np.uint64 if type_ in (DataType.UINT32, DataType.UINT64) else np.int64)
    if len(wide) and (wide.min() < np.iinfo(held).min or wide.max() > np.iinfo(held).max):
        raise Invalid(f"{what} holds a number that is none of {type_.name.lower()}; the file is damaged")
    narrow: Array = wide.astype(held)
    if type_ in _PACKED:
        return _unpacked(narrow, type_, count)
    return narrow.view(dtype)


def _strings(tensor: TensorProto, count: int, what: str) -> Array:
    if len(tensor.string_data) != count:
        raise Invalid(
            f"{what} declares {count} elements, but holds {len(tensor.string_data)}; the file is damaged"
        )
    array = np.empty(count, np.object_)
    for place, text in enumerate(tensor.string_data):
        try:
            array[place] = text.decode()
        except UnicodeDecodeError:
            raise Invalid(f"{what}: string {place} is not UTF-8") from None
    return array


def tensor_name(name: str) -> str:
    """Return how messages call a constant."""
    return f"constant {shown(name)}"

"""Tensors between the Open Inference Protocol's messages and arrays."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inference import open_inference_pb2 as pb
from libs.common.errors import Invalid
from libs.common.names import shown
from libs.common.suggest import did_you_mean
from services.serving.domain.tensors import BYTES, DTYPES, MAX_RANK, Array, Tensor

MAX_TENSORS = 1024
MAX_TEXTS = 2**20
"""Elements of BYTES in a request: each becomes an object many times its size."""
_FIELDS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""FP16 has none: it travels raw."""


def inputs(request: pb.ModelInferRequest) -> tuple[Tensor, ...]:
    """Return the inputs of a request; arrays may be views of its bytes.

    Raises:
        Invalid: naming the input whose datatype, shape or contents are wrong.
    """
    if len(request.inputs) > MAX_TENSORS:
        raise Invalid(
            f"inputs: there are {len(request.inputs)}; at most {MAX_TENSORS} are taken", reason="BAD_INPUT"
        )
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise Invalid(
            f"raw_input_contents: {len(raw)} for {len(request.inputs)} inputs; give one for each, or none",
            reason="BAD_INPUT",
            metadata={"field": "raw_input_contents"},
        )
    texts = sum(_texts(each) for each in request.inputs)
    if texts > MAX_TEXTS:
        raise Invalid(
            f"inputs: have {texts} elements of BYTES; a request has at most {MAX_TEXTS}, send several",
            reason="BAD_INPUT",
            metadata={"field": "inputs"},
        )
    return tuple(_tensor(each, raw[index] if raw else None) for index, each in enumerate(request.inputs))


def _texts(message: pb.ModelInferRequest.InferInputTensor) -> int:
    shape = message.shape
    # A shape of nonsense is refused where it is read.
    if message.datatype != BYTES or len(shape) > MAX_RANK or min(shape, default=1) < 0:
        return 0
    return math.prod(shape)


def _tensor(message: pb.ModelInferRequest.InferInputTensor, raw: bytes | None) -> Tensor:
    name, datatype = message.name, message.datatype
    if datatype not in DTYPES:
        raise _bad(
            name,
            f"the datatype {shown(datatype)} isn't taken{did_you_mean(datatype, DTYPES)}; "
            f"use one of {', '.join(DTYPES)}",
        )
    shape = tuple(message.shape)
    # numpy counts the others' elements even where one size is 0.
    if len(shape) > MAX_RANK or min(shape, default=0) < 0 or math.prod(max(dim, 1) for dim in shape) >= 2**40:
        raise _bad(
            name,
            f"the shape {list(shape[: MAX_RANK + 1])} isn't one; use at most {MAX_RANK} sizes of 0 or more, "
            "of less than 2^40 elements",
        )
    count = math.prod(shape)
    if raw is not None:
        if message.HasField("contents"):
            raise _bad(name, "has contents beside raw_input_contents; give one of them")
        array = _from_raw(name, datatype, count, raw)
    else:
        array = _from_contents(name, datatype, count, message.contents)
    return Tensor(name, datatype, array.reshape(shape))


def _from_raw(name: str, datatype: str, count: int, raw: bytes) -> Array:
    if datatype == BYTES:
        return _from_raw_bytes(name, count, raw)
    dtype = DTYPES[datatype]
    if len(raw) != count * dtype.itemsize:
        raise _bad(
            name, f"has {len(raw)} raw bytes; {count} elements of {datatype} are {count * dtype.itemsize}"
        )
    if datatype == "BOOL":
        numbers = np.frombuffer(raw, np.uint8)
        if numbers.size and numbers.max() > 1:
            raise _bad(name, f"holds {int(numbers.max())} as BOOL; use 0 and 1")
        return numbers.view(dtype)
    return np.frombuffer(raw, dtype)


def _from_raw_bytes(name: str, count: int, raw: bytes) -> Array:
    # Each element takes four bytes at least, so that a shape can't make us take more memory than came.
    if count * 4 > len(raw):
        raise _bad(
            name, f"has {len(raw)} raw bytes, too few for {count} elements of BYTES with their lengths"
        )
    array = np.empty(count, object)
    position = 0
    for index in range(count):
        if position + 4 > len(raw):
            raise _bad(name, f"its raw bytes end within element {index} of {count}")
        (length,) = struct.unpack_from("<I", raw, position)
        position += 4
        if position + length > len(raw):
            raise _bad(name, f"its raw bytes end within element {index} of {count}")
        array[index] = raw[position : position + length]
        position += length
    if position != len(raw):
        raise _bad(name, f"has {len(raw) - position} raw bytes behind its {count} elements")
    return array


def _from_contents(name: str, datatype: str, count: int, contents: pb.InferTensorContents) -> Array:
    wanted = _FIELDS.get(datatype)
    if wanted is None:
        raise _bad(name, f"{datatype} has no typed contents; send it in raw_input_contents")
    for field, _ in contents.ListFields():
        if field.name != wanted:
            raise _bad(name, f"has {field.name}; {datatype} belongs in {wanted}")
    values = getattr(contents, wanted)
    if len(values) != count:
        raise _bad(name, f"has {len(values)} elements in {wanted}; its shape has {count}")
    dtype = DTYPES[datatype]
    if datatype == BYTES:
        array = np.empty(count, object)
        array[:] = list(values)
        return array
    wide = np.fromiter(values, _WIDE.get(wanted, dtype), count)
    if wide.dtype != dtype:
        limits = np.iinfo(dtype)
        if count and not (limits.min <= wide.min() and wide.max() <= limits.max):
            wrong = wide.min() if wide.min() < limits.min else wide.max()
            raise _bad(name, f"holds {int(wrong)}, which is no {datatype}")
        wide = wide.astype(dtype)
    return wide


_WIDE: Mapping[str, np.dtype[Any]] = {"int_contents": np.dtype("<i4"), "uint_contents": np.dtype("<u4")}


def fill(response: pb.ModelInferResponse, outputs: Sequence[Tensor], raw: bool) -> None:
    """Put outputs into an answer: raw where the request was, or where a type has no typed contents."""
    raw = raw or any(tensor.datatype not in _FIELDS for tensor in outputs)
    for tensor in outputs:
        message = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.array.shape)
        if raw:
            response.raw_output_contents.append(_to_raw(tensor))
        else:
            getattr(message.contents, _FIELDS[tensor.datatype]).extend(tensor.array.ravel().tolist())


def _to_raw(tensor: Tensor) -> bytes:
    if tensor.datatype == BYTES:
        return b"".join(struct.pack("<I", len(value)) + value for value in tensor.array.flat)
    return tensor.array.astype(DTYPES[tensor.datatype], copy=False).tobytes()


def _bad(name: str, text: str) -> Invalid:
    return Invalid(f"input {shown(name)}: {text}", reason="BAD_INPUT", metadata={"field": "inputs"})

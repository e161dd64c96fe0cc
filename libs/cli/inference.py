"""Arrays between JSON, as people write and read them, and the Open Inference Protocol. Needs no numpy."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from inference import open_inference_pb2 as pb
from libs.cli.archives import Array
from libs.cli.tensors import by_name, elements, nested, packed, shape_of, unpacked, written
from libs.common.errors import Internal, Invalid
from libs.common.names import shown

BYTES = "BYTES"
# Lists that hold nothing take no bytes of an answer.
_MOST_EMPTY_LISTS = 1_000_000
# What `struct` calls each datatype of a fixed size.
_LETTERS: Mapping[str, str] = {
    "BOOL": "?",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}


def tensor_text(found: pb.ModelMetadataResponse.TensorMetadata) -> str:
    """Return an input or output for people: "x: FP32[any, 4]"."""
    shape = ", ".join("any" if size < 0 else str(size) for size in found.shape)
    return f"{found.name}: {found.datatype}[{shape}]"


def infer_request(
    model: str, version: str, described: Sequence[pb.ModelMetadataResponse.TensorMetadata], values: object
) -> pb.ModelInferRequest:
    """Return a request out of an object of nested lists, or arrays, by input; texts are for inputs of BYTES.

    Args:
        model: the model's id.
        version: whose; "" is the live one's.
        described: the model's inputs.
        values: what `read_inputs` read.

    Raises:
        Invalid: for an input that is missing, unknown or not of its datatype.
    """
    given = by_name([each.name for each in described], values)
    request = pb.ModelInferRequest(model_name=model, model_version=version)
    for each in described:
        shape, data = _packed(each, given[each.name])
        request.inputs.add(name=each.name, datatype=each.datatype, shape=shape)
        request.raw_input_contents.append(data)
    return request


def _packed(spec: pb.ModelMetadataResponse.TensorMetadata, value: object) -> tuple[list[int], bytes]:
    if spec.datatype != BYTES:
        letter = _LETTERS.get(spec.datatype)
        if letter is None:
            raise Invalid(
                f"input {shown(spec.name)}: {shown(spec.datatype)} can't be written as JSON; use a client of "
                "the Open Inference Protocol",
                reason="BAD_INPUT",
            )
        return packed(spec.name, letter, spec.datatype, value)
    if isinstance(value, Array):
        raise Invalid(
            f"input {shown(spec.name)}: the array is of {value.type_name}, and BYTES takes texts; write them "
            "as JSON",
            reason="BAD_INPUT",
        )
    shape = shape_of(spec.name, value)
    data = bytearray()
    for each in elements(spec.name, value, shape):
        if not isinstance(each, str):
            raise Invalid(
                f"input {shown(spec.name)}: {written(each)} is no text, which BYTES takes",
                reason="BAD_INPUT",
            )
        try:
            text = each.encode()
        except UnicodeEncodeError as error:
            raise Invalid(f"input {shown(spec.name)}: holds half a character", reason="BAD_INPUT") from error
        data += struct.pack("<I", len(text)) + text
    return shape, bytes(data)


def outputs_of(response: pb.ModelInferResponse) -> dict[str, object]:
    """Return an answer's raw outputs as nested lists by name; bytes as text, what isn't UTF-8 escaped.

    Raises:
        Internal: when what came is no answer to a request of `infer_request`.
    """
    if len(response.outputs) != len(response.raw_output_contents):
        raise _odd(f"{len(response.outputs)} outputs have {len(response.raw_output_contents)} contents")
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {each.name: _unpacked(each, data) for each, data in pairs}


def _unpacked(output: pb.ModelInferResponse.InferOutputTensor, data: bytes) -> object:
    shape = list(output.shape)
    if any(size < 0 for size in shape):
        raise _odd(f"{output.name} has the shape {shape}")
    count = math.prod(shape)
    if not count and math.prod(size or 1 for size in shape) > _MOST_EMPTY_LISTS:
        raise _odd(f"{output.name} has nothing in it and the shape {shape}")
    if output.datatype == BYTES:
        texts = _texts(output.name, data)
        if len(texts) != count:
            raise _odd(f"{output.name} has {len(texts)} elements for the shape {shape}")
        return nested(texts, shape)
    letter = _LETTERS.get(output.datatype)
    if letter is None or struct.calcsize(f"<{letter}") * count != len(data):
        raise _odd(f"{output.name} has {len(data)} bytes for {output.datatype} of the shape {shape}")
    return unpacked(letter, shape, data)


def _texts(name: str, data: bytes) -> list[Any]:
    found: list[Any] = []
    at = 0
    while at < len(data):
        end = at + 4
        size = int.from_bytes(data[at:end], "little")
        if end + size > len(data):
            raise _odd(f"{name} ends within an element")
        found.append(data[end : end + size].decode("utf-8", "backslashreplace"))
        at = end + size
    return found


def _odd(what: str) -> Internal:
    return Internal(f"serving gave an answer that can't be read: {what}", reason="BAD_ANSWER")

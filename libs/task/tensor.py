"""Tensors of requests to models in the cloud, in the raw form of the Open Inference Protocol.

Without protobuf: the task VM knows them too.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

DATATYPES: Mapping[str, int] = {
    "BOOL": 1,
    **{f"{sign}INT{bits}": bits // 8 for sign in ("", "U") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": bits // 8 for bits in (16, 32, 64)},
}
"""The datatypes that an input may have, and the bytes of an element."""
_FORMATS = {"BOOL": "?", "FP16": "e", "FP32": "f", "FP64": "d"} | {
    f"{sign}INT{8 << power}": "bhiq"[power].upper() if sign else "bhiq"[power]
    for sign in ("", "U")
    for power in range(4)
}
MAX_INPUTS = 32
MAX_OUTPUTS = 32
MAX_NAME_BYTES = 128
MAX_DIMENSIONS = 8
MAX_CONTENT_BYTES = 256 * 1024
"""Of all inputs of a request together."""
MAX_ANSWER_BYTES = 1024 * 1024
"""Of all outputs of an answer together."""
MAX_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Tensor:
    """A model's input or output."""

    name: str
    datatype: str
    """One of `DATATYPES`."""
    shape: tuple[int, ...]
    content: bytes
    """Elements in C order, little-endian."""


def tensor_fault(tensor: Tensor) -> str:
    """Return what is wrong with a tensor in itself, "" for nothing: its shape must describe its content."""
    size = DATATYPES.get(tensor.datatype)
    if size is None:
        return f"has the unknown datatype {tensor.datatype[:20]!r}"
    if len(tensor.shape) > MAX_DIMENSIONS:
        return f"has {len(tensor.shape)} dimensions, more than {MAX_DIMENSIONS}"
    if any(extent < 0 for extent in tensor.shape):
        return "has a negative dimension"
    # Dimensions are of the sender's choice: bound their product before it grows. One that is 0 doesn't make
    # the others fit: numpy refuses such a shape.
    wanted = size
    for extent in tensor.shape:
        wanted *= extent or 1
        if wanted > 2**62:
            return "has too many elements"
    if 0 in tensor.shape:
        wanted = 0
    if wanted != len(tensor.content):
        return f"has {len(tensor.content)} bytes where its shape needs {wanted}"
    return ""


def first_elements(tensor: Tensor, most: int) -> list[object]:
    """Return the first elements of what there is of a tensor, for people: what isn't finite as text."""
    size = DATATYPES[tensor.datatype]
    count = min(most, len(tensor.content) // size)
    values = struct.unpack_from(f"<{count}{_FORMATS[tensor.datatype]}", tensor.content)
    return [
        str(value) if isinstance(value, float) and not math.isfinite(value) else value for value in values
    ]

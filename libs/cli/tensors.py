"""Arrays between JSON, as people write and read them, and the bytes of `InferTensor`. Needs no numpy."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isthmus.engine.v1 import engine_pb2, plan_pb2
from libs.common.errors import Invalid
from libs.common.names import shown
from libs.common.suggest import did_you_mean

_MAX_DIMENSIONS = 8
# What `struct` calls each type.
_LETTERS: Mapping[plan_pb2.DataType.ValueType, str] = {
    plan_pb2.DATA_TYPE_BOOL: "?",
    plan_pb2.DATA_TYPE_INT8: "b",
    plan_pb2.DATA_TYPE_INT16: "h",
    plan_pb2.DATA_TYPE_INT32: "i",
    plan_pb2.DATA_TYPE_INT64: "q",
    plan_pb2.DATA_TYPE_UINT8: "B",
    plan_pb2.DATA_TYPE_UINT16: "H",
    plan_pb2.DATA_TYPE_UINT32: "I",
    plan_pb2.DATA_TYPE_UINT64: "Q",
    plan_pb2.DATA_TYPE_FLOAT16: "e",
    plan_pb2.DATA_TYPE_FLOAT32: "f",
    plan_pb2.DATA_TYPE_FLOAT64: "d",
}
_FLOATS = "efd"


def type_name(found: plan_pb2.DataType.ValueType) -> str:
    """Return a type's name for people: "float32"."""
    return plan_pb2.DataType.Name(found).removeprefix("DATA_TYPE_").lower()


def tensor_from_json(spec: engine_pb2.TensorSpec, value: object) -> engine_pb2.InferTensor:
    """Return an input out of nested lists, of the type that `spec` says.

    Raises:
        Invalid: for lists of different lengths, a value that isn't of the type, more than 8 dimensions.
    """
    shape = _shape(spec.name, value)
    letter = _LETTERS[spec.type]
    data = bytearray()
    for each in _elements(spec.name, value, shape):
        if letter == "?":
            fits = isinstance(each, bool)
        elif letter in _FLOATS:
            fits = isinstance(each, int | float) and not isinstance(each, bool)
        else:
            fits = isinstance(each, int) and not isinstance(each, bool)
        try:
            if not fits:
                raise ValueError
            data += struct.pack(f"<{letter}", each)
        except (struct.error, ValueError, OverflowError) as error:
            raise Invalid(
                f"input {shown(spec.name)}: {shown(str(each))} is no {type_name(spec.type)}",
                reason="BAD_INPUT",
            ) from error
    return engine_pb2.InferTensor(name=spec.name, type=spec.type, shape=shape, data=bytes(data))


def _shape(name: str, value: object) -> list[int]:
    shape: list[int] = []
    while isinstance(value, list):
        if len(shape) == _MAX_DIMENSIONS:
            raise Invalid(
                f"input {shown(name)}: has more than {_MAX_DIMENSIONS} dimensions", reason="BAD_INPUT"
            )
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return shape


def _elements(name: str, value: object, shape: Sequence[int]) -> Iterator[object]:
    """Yield the elements of nested lists in row-major order; all lists of a level must be of one length."""
    if not shape:
        if isinstance(value, list):
            raise Invalid(f"input {shown(name)}: its lists aren't equally deep", reason="BAD_INPUT")
        yield value
        return
    if not isinstance(value, list):
        raise Invalid(f"input {shown(name)}: its lists aren't equally deep", reason="BAD_INPUT")
    if len(value) != shape[0]:
        raise Invalid(
            f"input {shown(name)}: its lists aren't equally long: {len(value)} here, {shape[0]} elsewhere",
            reason="BAD_INPUT",
        )
    for each in value:
        yield from _elements(name, each, shape[1:])


def tensors_from_json(specs: Sequence[engine_pb2.TensorSpec], values: object) -> list[engine_pb2.InferTensor]:
    """Return a plan's inputs out of an object of nested lists by name.

    Raises:
        Invalid: for an input that is missing, unknown or not of its type.
    """
    if not isinstance(values, dict):
        raise Invalid("inputs: must be an object of arrays by name", reason="BAD_INPUT")
    names = [spec.name for spec in specs]
    for name in values:
        if name not in names:
            hint = did_you_mean(name, names) or f"; there are {', '.join(names)}"
            raise Invalid(f"inputs: {shown(name)} is unknown{hint}", reason="BAD_INPUT")
    missing = [name for name in names if name not in values]
    if missing:
        raise Invalid(f"inputs: {', '.join(map(shown, missing))} is missing", reason="BAD_INPUT")
    return [tensor_from_json(spec, values[spec.name]) for spec in specs]


def tensor_to_json(tensor: engine_pb2.InferTensor) -> object:
    """Return an output as nested lists; what isn't finite is the text JSON has no number for."""
    letter = _LETTERS[tensor.type]
    flat = [each for (each,) in struct.iter_unpack(f"<{letter}", tensor.data)]
    if letter in _FLOATS:
        flat = [each if math.isfinite(each) else str(each) for each in flat]
    return _nested(flat, tensor.shape) if tensor.shape else flat[0]


def _nested(flat: list[Any], shape: Sequence[int]) -> list[Any]:
    """Return elements in row-major order as lists in lists."""
    if len(shape) == 1:
        return flat
    size = math.prod(shape[1:])
    return [_nested(flat[number * size : (number + 1) * size], shape[1:]) for number in range(shape[0])]

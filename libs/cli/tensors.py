"""Arrays between JSON, as people write and read them, and the bytes of `InferTensor`. Needs no numpy."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.engine.v1 import engine_pb2, plan_pb2
from libs.cli.archives import Array, looks_like_archive, numpy_name, read_archive
from libs.cli.files import read_text
from libs.common.errors import Error, Invalid
from libs.common.names import shown
from libs.common.suggest import did_you_mean

INPUTS_HELP = (
    "JSON object of nested lists by input, such as '{\"x\": [[1, 2]]}', or @FILE that holds it (32 MiB at "
    "most), or @FILE.npz of numpy.savez, arrays by input (64 MiB at most)."
)
_MAX_JSON_BYTES = 32 * 1024 * 1024
_MAX_DIMENSIONS = 8
# What a number of a 64-bit type has at most, with room to spare for zeros in front of it.
_MAX_DIGITS = 64
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
_INSTEAD = "numpy's archives are far shorter: numpy.savez('inputs.npz', NAME=ARRAY), and --inputs @inputs.npz"


def type_name(found: plan_pb2.DataType.ValueType) -> str:
    """Return a type's name for people: "float32"."""
    return plan_pb2.DataType.Name(found).removeprefix("DATA_TYPE_").lower()


def _letter(name: str, type_: plan_pb2.DataType.ValueType) -> str:
    if type_ not in _LETTERS:
        kind = type_name(type_)
        text = f"{shown(name)} is of {kind}, which JSON can't say here; convert it in the model (Cast)"
        raise Invalid(text)
    return _LETTERS[type_]


def tensor_from_json(spec: engine_pb2.TensorSpec, value: object) -> engine_pb2.InferTensor:
    """Return an input out of nested lists, of the type that `spec` says.

    Raises:
        Invalid: for lists of different lengths, a value that isn't of the type, more than 8 dimensions, and
            types that JSON can't say.
    """
    shape, data = packed(spec.name, _letter(spec.name, spec.type), type_name(spec.type), value)
    return engine_pb2.InferTensor(name=spec.name, type=spec.type, shape=shape, data=data)


def packed(name: str, letter: str, type_: str, value: object) -> tuple[list[int], bytes]:
    """Return shape and little-endian bytes of nested lists.

    Args:
        name: the input's, for messages.
        letter: what `struct` calls the elements' type.
        type_: what people call it.
        value: the lists, or an array of an archive, which must be of that type.

    Raises:
        Invalid: as `tensor_from_json`.
    """
    if isinstance(value, Array):
        return _whole_array(name, letter, type_, value)
    shape = shape_of(name, value)
    data = bytearray()
    for each in elements(name, value, shape):
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
                f"input {shown(name)}: {written(each)} is no {type_}", reason="BAD_INPUT"
            ) from error
    return shape, bytes(data)


def _whole_array(name: str, letter: str, type_: str, value: Array) -> tuple[list[int], bytes]:
    if len(value.shape) > _MAX_DIMENSIONS:
        raise _too_many_dimensions(name)
    if value.letter != letter:
        raise Invalid(
            f"input {shown(name)}: the array is of {value.type_name}, and {type_} is taken; save "
            f"{name}.astype({numpy_name(letter)!r})",
            reason="BAD_INPUT",
        )
    return list(value.shape), value.data


def _too_many_dimensions(name: str) -> Invalid:
    return Invalid(f"input {shown(name)}: has more than {_MAX_DIMENSIONS} dimensions", reason="BAD_INPUT")


def written(value: object) -> str:
    """Return an element for a message: as it was written in JSON, texts in quotes."""
    if isinstance(value, str):
        return shown(value)
    return "an object" if isinstance(value, dict) else json.dumps(value)


def shape_of(name: str, value: object) -> list[int]:
    """Return the shape that nested lists begin with; raise Invalid for more than 8 dimensions."""
    shape: list[int] = []
    while isinstance(value, list):
        if len(shape) == _MAX_DIMENSIONS:
            raise _too_many_dimensions(name)
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return shape


def elements(name: str, value: object, shape: Sequence[int]) -> Iterator[object]:
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
        yield from elements(name, each, shape[1:])


def tensors_from_json(specs: Sequence[engine_pb2.TensorSpec], values: object) -> list[engine_pb2.InferTensor]:
    """Return a plan's inputs out of an object of nested lists by name.

    Raises:
        Invalid: for an input that is missing, unknown or not of its type.
    """
    given = by_name([spec.name for spec in specs], values)
    return [tensor_from_json(spec, given[spec.name]) for spec in specs]


def by_name(names: Sequence[str], values: object) -> dict[str, object]:
    """Return `values` as an object that has a value for each of `names` and for nothing else.

    Raises:
        Invalid: for another, naming what is missing or unknown.
    """
    if not isinstance(values, dict):
        raise Invalid("inputs: must be an object of arrays by name", reason="BAD_INPUT")
    for name in values:
        if name not in names:
            hint = did_you_mean(name, names) or f"; there are {', '.join(names)}"
            raise Invalid(f"inputs: {shown(name)} is unknown{hint}", reason="BAD_INPUT")
    missing = [name for name in names if name not in values]
    if missing:
        raise Invalid(f"inputs: {', '.join(map(shown, missing))} is missing", reason="BAD_INPUT")
    return values


def read_inputs(given: str) -> object:
    """Return what `--inputs` holds: JSON, or `@FILE` with it, or with arrays by name.

    Raises:
        Invalid, NotFound: when it is no JSON, a name comes twice, or a number is too large for any type; when
            a file can't be read, is too long, or no archive of arrays.
    """
    text = given
    if given.startswith("@"):
        path = Path(given[1:])
        if looks_like_archive(path):
            return read_archive(path, "--inputs")
        text = read_text(path, "--inputs", most=_MAX_JSON_BYTES, instead=_INSTEAD)
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_int=_whole)
    except Error:
        raise
    except (ValueError, RecursionError) as error:
        raise Invalid(f"--inputs: is no JSON: {error}", reason="BAD_INPUT") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object's members; Python would keep the last of those of one name."""
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise Invalid(f"--inputs: {shown(name)} is given twice", reason="BAD_INPUT")
        found[name] = value
    return found


def _whole(text: str) -> int:
    """Return a whole number; Python would say in its own words that it has too many digits."""
    if len(text) > _MAX_DIGITS:
        raise Invalid(f"--inputs: {shown(text)} is too large for any type", reason="BAD_INPUT")
    return int(text)


def _finite(text: str) -> float:
    """Return a number; Python would make an infinity of one that is too large."""
    number = float(text)
    if math.isinf(number):
        raise Invalid(f"--inputs: {shown(text)} is too large for any type", reason="BAD_INPUT")
    return number


def tensor_to_json(tensor: engine_pb2.InferTensor) -> object:
    """Return an output as nested lists; what isn't finite is the text JSON has no number for."""
    return unpacked(_letter(tensor.name, tensor.type), tensor.shape, tensor.data)


def unpacked(letter: str, shape: Sequence[int], data: bytes) -> object:
    """Return little-endian bytes as nested lists; `letter` is what `struct` calls the elements' type."""
    flat = [each for (each,) in struct.iter_unpack(f"<{letter}", data)]
    if letter in _FLOATS:
        flat = [each if math.isfinite(each) else str(each) for each in flat]
    return nested(flat, shape)


def nested(flat: list[Any], shape: Sequence[int]) -> Any:
    """Return elements in row-major order as lists in lists; without dimensions, the element itself."""
    if not shape:
        return flat[0]
    if len(shape) == 1:
        return flat
    size = math.prod(shape[1:])
    return [nested(flat[number * size : (number + 1) * size], shape[1:]) for number in range(shape[0])]

"""Tensors of the Open Inference Protocol, and whether those of a request fit a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from libs.common.errors import Invalid
from libs.common.names import shown
from libs.common.suggest import did_you_mean

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

BYTES = "BYTES"
DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "BOOL": np.dtype("?"),
        "UINT8": np.dtype("u1"),
        "UINT16": np.dtype("<u2"),
        "UINT32": np.dtype("<u4"),
        "UINT64": np.dtype("<u8"),
        "INT8": np.dtype("i1"),
        "INT16": np.dtype("<i2"),
        "INT32": np.dtype("<i4"),
        "INT64": np.dtype("<i8"),
        "FP16": np.dtype("<f2"),
        "FP32": np.dtype("<f4"),
        "FP64": np.dtype("<f8"),
        BYTES: np.dtype("O"),
    }
)
"""By the protocol's name; BYTES holds Python `bytes`. BF16 has no type in numpy and isn't taken."""
NAMES: Mapping[np.dtype[Any], str] = MappingProxyType({dtype: name for name, dtype in DTYPES.items()})

MAX_RANK = 32
_MOST_TOLD = 4


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output; its shape has text for what isn't fixed: equal texts mean equal sizes, "" any."""

    name: str
    datatype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"

    @property
    def text(self) -> str:
        """Datatype and shape, for people."""
        return f"{self.datatype}{_dims(self.shape)}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a request or an answer."""

    name: str
    datatype: str
    array: Array


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model takes and gives."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def rows(self) -> str | None:
        """The text of the dimension of rows; None where inputs can't be put together.

        It is the first of every input and output, isn't fixed, and appears nowhere else.
        """
        firsts = {spec.shape[0] if spec.shape else 1 for spec in (*self.inputs, *self.outputs)}
        names = {first for first in firsts if first != ""}
        if not self.inputs or len(names) > 1 or any(isinstance(first, int) for first in firsts):
            return None
        name = str(next(iter(names), ""))
        others = [d for spec in (*self.inputs, *self.outputs) for d in spec.shape[1:] if isinstance(d, str)]
        if name and any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", other) for other in others):
            return None
        return name

    @property
    def free(self) -> bool:
        """Whether inputs have dimensions of any size besides their rows."""
        start = 0 if self.rows is None else 1
        return any(isinstance(d, str) for spec in self.inputs for d in spec.shape[start:])


def difference(before: Signature, after: Signature) -> str:
    """Return what callers of one model would find otherwise with another in its place; "" for nothing.

    Other names of dimensions, and outputs that come on top, aren't noticed by anybody.
    """
    told = [_gone("input", spec, after.inputs) for spec in before.inputs]
    known = {spec.name for spec in before.inputs}
    told += [f"input {shown(spec.name)} is new ({spec})" for spec in after.inputs if spec.name not in known]
    told += [_gone("output", spec, after.outputs) for spec in before.outputs]
    told = [text for text in told if text]
    more = f", and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
    return "; ".join(told[:_MOST_TOLD]) + more


def _gone(kind: str, spec: TensorSpec, others: Sequence[TensorSpec]) -> str:
    other = next((each for each in others if each.name == spec.name), None)
    if other is None:
        return f"{kind} {shown(spec.name)} is gone"
    # What was any size and is one now breaks callers; of outputs it is what some of them were. An output of
    # unknown rank has no shape in ONNX.
    same = other.datatype == spec.datatype and (
        (kind == "output" and not (spec.shape and other.shape))
        or (
            len(spec.shape) == len(other.shape)
            and all(
                new == old or isinstance(new, str) or (kind == "output" and isinstance(old, str))
                for old, new in zip(spec.shape, other.shape, strict=True)
            )
        )
    )
    return "" if same else f"{kind} {shown(spec.name)} was {spec.text} and is {other.text}"


def check_inputs(signature: Signature, inputs: Sequence[Tensor]) -> dict[str, Array]:
    """Return the inputs by name in the signature's order.

    Raises:
        Invalid: naming the input that is missing, unknown, given twice, or of another type or shape.
    """
    given: dict[str, Tensor] = {}
    known = [spec.name for spec in signature.inputs]
    for tensor in inputs:
        if tensor.name in given:
            raise _bad(tensor.name, "is given twice")
        if tensor.name not in known:
            raise _bad(
                tensor.name,
                f"isn't an input of this model{did_you_mean(tensor.name, known)}; it takes "
                + ", ".join(map(str, signature.inputs[:16])),
            )
        given[tensor.name] = tensor
    sizes: dict[str, tuple[str, int]] = {}
    for spec in signature.inputs:
        found = given.get(spec.name)
        if found is None:
            raise _bad(spec.name, f"is missing; the model takes {spec}")
        _check_input(spec, found, sizes)
    return {name: given[name].array for name in known}


def _check_input(spec: TensorSpec, tensor: Tensor, sizes: dict[str, tuple[str, int]]) -> None:
    if tensor.datatype != spec.datatype:
        raise _bad(spec.name, f"has the datatype {tensor.datatype}; it must be {spec.datatype}")
    shape = tensor.array.shape
    fits = len(shape) == len(spec.shape) and all(
        isinstance(wanted, str) or size == wanted for size, wanted in zip(shape, spec.shape, strict=True)
    )
    if not fits:
        raise _bad(spec.name, f"has the shape {list(shape)}; it must be {_dims(spec.shape)}")
    for size, wanted in zip(shape, spec.shape, strict=True):
        if not isinstance(wanted, str) or not wanted.isidentifier():
            continue
        first, known = sizes.setdefault(wanted, (spec.name, size))
        if size != known:
            raise _bad(
                spec.name, f"has {size} as {wanted!r}, and input {shown(first)} has {known}; make them equal"
            )


def check_outputs(signature: Signature, wanted: Sequence[str]) -> list[TensorSpec]:
    """Return the outputs asked for, all where none is named; raise Invalid for unknown or repeated ones."""
    by_name = {spec.name: spec for spec in signature.outputs}
    for index, name in enumerate(wanted):
        if name not in by_name:
            raise Invalid(
                f"outputs: {shown(name)} isn't an output{did_you_mean(name, by_name)}; the model gives "
                + ", ".join(map(str, signature.outputs[:16])),
                reason="BAD_OUTPUT",
                metadata={"field": "outputs"},
            )
        if name in wanted[:index]:
            raise Invalid(f"outputs: {shown(name)} is asked for twice", reason="BAD_OUTPUT")
    return [by_name[name] for name in wanted] if wanted else list(signature.outputs)


def _dims(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(str(dim) or '-1' for dim in shape)}]"


def _bad(name: str, text: str) -> Invalid:
    return Invalid(f"input {shown(name)}: {text}", reason="BAD_INPUT", metadata={"field": "inputs"})


def encoded(array: Array) -> Array:
    """Return strings as the elements of BYTES that they are on the wire."""
    texts = np.empty(array.size, object)
    texts[:] = [value.encode() if isinstance(value, str) else bytes(value) for value in array.flat]
    return texts.reshape(array.shape)

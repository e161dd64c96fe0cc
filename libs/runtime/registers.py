"""What a caller brings to a composition, and gets back: registers are arrays or lists."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from libs.common.suggest import did_you_mean
from libs.runtime.check_elements import is_text
from libs.runtime.faults import bad_input
from libs.runtime.inputs import PortSpec, converted
from libs.runtime.kernels.fault import Array
from libs.runtime.ledger import Items
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import (
    DataType,
    OptionalType,
    Plan,
    Register,
    RegisterType,
    SequenceType,
    TensorType,
)

MOST_ITEMS = 1 << 20
"""Of a sequence."""


def register_spec(name: str, type_: RegisterType) -> PortSpec:
    """Return what a caller may know of a register."""
    if isinstance(type_, TensorType):
        shape = None if type_.shape is None else tuple("?" if size is None else size for size in type_.shape)
        return PortSpec(name, DTYPES[type_.type], shape)
    inner = register_spec("", type_.element)
    kind = "sequence" if isinstance(type_, SequenceType) else "optional"
    return PortSpec(name, inner.dtype, inner.shape, (kind, *inner.containers))


def constant_of(register: Register) -> Array:
    """Return the array of a constant register; it can't be written to."""
    assert isinstance(register.type, TensorType)
    shape = tuple(size for size in register.type.shape or () if isinstance(size, int))
    if register.type.type is DataType.STRING:
        array = np.empty(len(register.strings), np.object_)
        array[:] = register.strings
        return array.reshape(shape)
    return np.frombuffer(register.constant or b"", DTYPES[register.type.type]).reshape(shape)


def given_back(value: Any, type_: RegisterType) -> Any:
    """Return a register's content as the caller's own."""
    if isinstance(type_, TensorType):
        return value.copy()
    if isinstance(type_, OptionalType):
        if len(value) > 1:
            raise bad_input(f"an optional output holds {len(value)} things")
        return given_back(value[0], type_.element) if value else None
    return [given_back(item, type_.element) for item in value]


class RegisterReader:
    """Checks and converts the inputs of one composition. Thread-safe: it holds no state of a call."""

    def __init__(self, plan: Plan) -> None:
        assert plan.composition is not None
        composition = plan.composition
        self._types = [composition.registers[named.register].type for named in composition.inputs]
        self.specs: tuple[PortSpec, ...] = tuple(
            register_spec(named.name, type_)
            for named, type_ in zip(composition.inputs, self._types, strict=True)
        )
        self._bounds = {each.name: (each.minimum, each.maximum) for each in plan.dimensions}

    def values(self, inputs: Mapping[str, object]) -> tuple[list[Any], dict[str, int]]:
        """Return what the inputs' registers hold, and the sizes of dimensions.

        Raises Invalid (BAD_INPUT) naming the input.
        """
        if not isinstance(inputs, Mapping):
            raise bad_input(f"inputs must be a mapping from name to value, not {type(inputs).__name__}")
        known = [spec.name for spec in self.specs]
        for name in inputs:
            if name not in known:
                text = f"input {str(name)[:80]!r} isn't one of {', '.join(known) or 'none'}"
                raise bad_input(f"{text}{did_you_mean(str(name), known)}")
        sizes: dict[str, int] = {}
        values = []
        for spec, type_ in zip(self.specs, self._types, strict=True):
            if spec.name not in inputs and not isinstance(type_, OptionalType):
                raise bad_input(f"input {spec.name!r} ({spec}) is missing")
            values.append(self._value(inputs.get(spec.name), type_, spec, sizes))
        return values, sizes

    def _value(self, value: object, type_: RegisterType, spec: PortSpec, sizes: dict[str, int]) -> Any:
        if isinstance(type_, TensorType):
            return self._array(value, type_, spec, sizes)
        if isinstance(type_, OptionalType):
            return Items() if value is None else Items([self._value(value, type_.element, spec, sizes)])
        if not isinstance(value, list | tuple) or len(value) > MOST_ITEMS:
            what = f"{len(value)} items" if isinstance(value, list | tuple) else type(value).__name__
            raise bad_input(
                f"input {spec.name!r} ({spec}) must be a list of at most {MOST_ITEMS}, not {what}"
            )
        return Items(self._value(item, type_.element, spec, sizes) for item in value)

    def _array(self, value: object, type_: TensorType, spec: PortSpec, sizes: dict[str, int]) -> Array:
        array = _strings(value, spec) if type_.type is DataType.STRING else converted(value, spec)
        if type_.shape is None:
            return array
        if array.ndim != len(type_.shape):
            raise _wrong_shape(spec, array.shape)
        for size, wanted in zip(array.shape, type_.shape, strict=True):
            if isinstance(wanted, int) and size != wanted:
                raise _wrong_shape(spec, array.shape)
            if isinstance(wanted, str):
                self._check_dimension(wanted, size, spec, sizes)
        return array

    def _check_dimension(self, name: str, size: int, spec: PortSpec, sizes: dict[str, int]) -> None:
        low, high = self._bounds[name]
        if not low <= size <= high:
            allowed = f"{low} to {high}" if low < high else f"{low} only"
            raise bad_input(f"dimension {name!r} is {size}; the plan was made for sizes {allowed}")
        if sizes.setdefault(name, size) != size:
            raise bad_input(f"dimension {name!r} is {sizes[name]}, and {size} in input {spec.name!r}")


def _strings(value: object, spec: PortSpec) -> Array:
    try:
        array = np.asarray(value, np.object_)
    except (ValueError, RecursionError):
        raise bad_input(f"input {spec.name!r} is no regular array of strings") from None
    result = np.empty(array.size, np.object_)
    result[:] = [_text(item, spec) for item in array.reshape(-1).tolist()]
    return result.reshape(array.shape)


def _text(item: object, spec: PortSpec) -> str:
    # Bytes that aren't UTF-8 become halves of surrogate pairs.
    text = item.decode(errors="surrogateescape") if isinstance(item, bytes) else item
    if not isinstance(text, str):
        raise bad_input(f"input {spec.name!r} must hold strings, not a {type(item).__name__}")
    if not is_text(text):
        raise bad_input(f"input {spec.name!r} holds a string that isn't UTF-8: {str(item)[:80]!a}")
    return text


def _wrong_shape(spec: PortSpec, shape: Sequence[int]) -> Exception:
    return bad_input(f"input {spec.name!r} has the shape {list(shape)}; it must be {spec}")

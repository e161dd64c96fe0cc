"""The inputs of a call: arrays from what the caller gives, and the sizes of dimensions from their shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from libs.runtime.extents import constants, formulas
from libs.runtime.faults import bad_input
from libs.runtime.kernels.fault import Array
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import Operation, Plan, Port

_KINDS = {"b": "booleans", "i": "integers", "u": "integers", "f": "numbers"}


@dataclass(frozen=True, slots=True)
class PortSpec:
    """An input or output.

    Its shape has text such as "batch" or "2*batch" for what isn't fixed, "?" for what only data tell; None:
    the number of axes isn't known.
    """

    name: str
    dtype: np.dtype[Any]
    """Of strings: object."""
    shape: tuple[int | str, ...] | None
    containers: tuple[str, ...] = ()
    """"sequence" and "optional", the outermost first, where it isn't a tensor."""

    def __str__(self) -> str:
        elements = "string" if self.dtype == np.object_ else str(self.dtype)
        shape = "..." if self.shape is None else ", ".join(map(str, self.shape))
        kind = "".join(f"{container} of " for container in self.containers)
        return f"{self.name}: {kind}{elements}[{shape}]"


def port_specs(plan: Plan, ports: Sequence[Port]) -> tuple[PortSpec, ...]:
    """Return what a caller may know of some ports of a plan."""
    texts = formulas(plan.extents, plan.dimensions)
    specs = []
    for port in ports:
        tensor = plan.tensors[port.tensor]
        specs.append(
            PortSpec(port.name, DTYPES[tensor.type], tuple(texts[extent] for extent in tensor.shape))
        )
    return tuple(specs)


class InputReader:
    """Checks and converts the inputs of one plan. Thread-safe: it holds no state of a call."""

    def __init__(self, plan: Plan) -> None:
        self.specs = port_specs(plan, plan.inputs)
        self._dimensions = [dimension.name for dimension in plan.dimensions]
        known = constants(plan.extents)
        self._fixed: list[tuple[int | None, ...]] = []
        self._sources: list[list[tuple[int, int]]] = []
        for port in plan.inputs:
            extents = plan.tensors[port.tensor].shape
            self._fixed.append(tuple(known[extent] for extent in extents))
            pairs = [(axis, plan.extents[extent]) for axis, extent in enumerate(extents)]
            sized = [(axis, e.left) for axis, e in pairs if e.operation is Operation.DIMENSION]
            self._sources.append(sized)

    def arrays(self, inputs: Mapping[str, object]) -> list[Array]:
        """Return the inputs as arrays in the plan's order.

        An array must have the very type of its input. Numbers and (nested) lists are converted: integers to
        any numeric type that holds them, floats to floats. Raises Invalid (BAD_INPUT) naming the input.
        """
        if not isinstance(inputs, Mapping):
            raise bad_input(f"inputs must be a mapping from name to array, not {type(inputs).__name__}")
        arrays: list[Array] = []
        for spec in self.specs:
            try:
                value = inputs[spec.name]
            except KeyError:
                raise bad_input(f"input {spec.name!r} ({spec}) is missing{self._given(inputs)}") from None
            arrays.append(converted(value, spec))
        if len(inputs) != len(self.specs):
            known = [spec.name for spec in self.specs]
            name = next(str(name) for name in inputs if name not in known)[:80]
            raise bad_input(f"input {name!r} isn't one of {', '.join(known)}{did_you_mean(name, known)}")
        return arrays

    def sizes(self, arrays: Sequence[Array]) -> tuple[int, ...]:
        """Return the size of every dimension; raises Invalid (BAD_INPUT) for a shape that doesn't fit."""
        found: list[int | None] = [None] * len(self._dimensions)
        first: dict[int, str] = {}
        for spec, array, fixed, sources in zip(self.specs, arrays, self._fixed, self._sources, strict=True):
            shape = array.shape
            if len(shape) != len(fixed):
                raise wrong_shape(spec, shape)
            for size, wanted in zip(shape, fixed, strict=True):
                if wanted is not None and size != wanted:
                    raise wrong_shape(spec, shape)
            for axis, dimension in sources:
                if found[dimension] is None:
                    found[dimension] = shape[axis]
                    first[dimension] = spec.name
                elif found[dimension] != shape[axis]:
                    name = self._dimensions[dimension]
                    one = f"{found[dimension]} in input {first[dimension]!r}"
                    raise bad_input(f"dimension {name!r} is {one} and {shape[axis]} in input {spec.name!r}")
        return tuple(size for size in found if size is not None)

    def _given(self, inputs: Mapping[str, object]) -> str:
        known = {spec.name for spec in self.specs}
        unknown = [str(name)[:80] for name in list(inputs)[:8] if name not in known]
        return f"; given was {', '.join(map(repr, unknown))}" if unknown else ""


def wrong_shape(spec: PortSpec, shape: Sequence[int]) -> Invalid:
    """Return the error for an input of another shape than its port has."""
    wanted = ", ".join(map(str, spec.shape or ()))
    return bad_input(f"input {spec.name!r} has the shape {list(shape)}; it must be [{wanted}]")


def converted(value: object, spec: PortSpec) -> Array:
    """Return a value as an array of an input's type; raises Invalid (BAD_INPUT) where it can't be."""
    if isinstance(value, np.ndarray) and value.dtype == spec.dtype:
        return value
    wanted = f"input {spec.name!r} must hold {spec.dtype}"
    if not isinstance(value, list | tuple | int | float):
        if isinstance(value, str | bytes | Mapping) or value is None:
            raise bad_input(f"{wanted}, not a {type(value).__name__}")
        array = np.asarray(value)
        if array.dtype != spec.dtype:
            raise bad_input(f"{wanted}, not {array.dtype}: convert it with astype({str(spec.dtype)!r})")
        return array
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError, RecursionError):
        text = "is no regular array: lists of one depth have one length"
        raise bad_input(f"input {spec.name!r} {text}") from None
    kind = spec.dtype.kind
    if array.size and array.dtype.kind != kind and not (array.dtype.kind in "iu" and kind in "iuf"):
        held = _KINDS.get(array.dtype.kind, "something else")
        raise bad_input(f"{wanted}, but its list holds {held}")
    if array.size and kind in "iu":
        limits = np.iinfo(spec.dtype)
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            wrong = low if low < limits.min else high
            raise bad_input(f"{wanted}, which can't hold {wrong}")
    with np.errstate(all="ignore"):
        converted = array.astype(spec.dtype)
    if kind == "f" and np.any(np.isinf(converted) & np.isfinite(array.astype(np.float64))):
        raise bad_input(f"{wanted}, which can't hold {float(np.abs(array).max()):g}")
    return converted

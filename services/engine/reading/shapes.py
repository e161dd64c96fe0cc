"""The model's inputs: types and shapes, and the dimensions that they name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from onnx import TensorShapeProto, ValueInfoProto

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from services.engine.domain.bounds import Bounds
from services.engine.domain.extents import Extent
from services.engine.domain.graph import InputType
from services.engine.domain.program import ValueType
from services.engine.reading.limits import MOST_AXES, MOST_DIMENSIONS, shown
from services.engine.reading.tensors import element_type
from services.engine.reading.types import declared_type

DEFAULT_BOUNDS = (1, 4096)
LARGEST_SIZE = 1 << 31

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class Dimensions:
    """Gives every symbolic size of a model a name; equal names in the model are one dimension."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()

    def named(self, parameter: str) -> str:
        """Return the name of a `dim_param`: itself where it is a word, otherwise the nearest that is."""
        if parameter not in self._names:
            self._names[parameter] = self._fresh(parameter)
        return self._names[parameter]

    def unnamed(self, name: str, axis: int) -> str:
        """Return a name for an axis of an input that has none: "<input>_<axis>"."""
        return self._fresh(f"{name}_{axis}")

    def reserve(self, parameters: list[str]) -> None:
        """Give words their own names first, so that made-up ones keep out of their way."""
        for parameter in parameters:
            if _NAME.fullmatch(parameter):
                self.named(parameter)

    def _fresh(self, wish: str) -> str:
        word = re.sub(r"\W", "_", wish, flags=re.ASCII)[:48]
        word = word if _NAME.fullmatch(word) else f"d_{word}"
        if wish != word or word in self._taken:
            number = 1
            candidate = word
            while candidate in self._taken:
                number += 1
                candidate = f"{word}_{number}"
            word = candidate
        self._taken.add(word)
        if len(self._taken) > MOST_DIMENSIONS:
            raise Invalid(f"the model has more than {MOST_DIMENSIONS} symbolic dimensions; fix some of them")
        return word

    @property
    def names(self) -> frozenset[str]:
        """All names that were given."""
        return frozenset(self._taken)


def read_inputs(
    inputs: list[ValueInfoProto], wanted: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, InputType], Bounds]:
    """Return the types of inputs by name, and the bounds of their dimensions.

    `wanted` bounds dimensions by name, both ends included; equal ends fix one, others get `DEFAULT_BOUNDS`.
    Raises Invalid for inputs of types that plans don't have, and for bounds of no dimension.
    """
    dimensions = Dimensions()
    shapes = {info.name: info.type.tensor_type.shape for info in inputs if _has_shape(info)}
    dimensions.reserve([size.dim_param for shape in shapes.values() for size in shape.dim])
    for name, shape in shapes.items():
        if len(shape.dim) > MOST_AXES:
            raise Invalid(f"input {shown(name)} has {len(shape.dim)} axes; at most {MOST_AXES} are supported")
    symbolic = {
        name: tuple(_size(dimensions, name, axis, size) for axis, size in enumerate(shape.dim))
        for name, shape in shapes.items()
    }
    ranges = _bounds(dimensions.names, wanted)
    fixed = {name: low for name, (low, high) in ranges.items() if low == high}
    types: dict[str, InputType] = {}
    for info in inputs:
        what = f"input {shown(info.name)}"
        if info.name in symbolic:
            shape_ = tuple(_extent(size, fixed) for size in symbolic[info.name])
            types[info.name] = ValueType(element_type(info.type.tensor_type.elem_type, what), shape_)
            continue
        declared = declared_type(info.type, what)
        if declared is None:
            raise Invalid(f"{what} is of no type; declare one")
        types[info.name] = declared
    return types, Bounds({name: pair for name, pair in ranges.items() if name not in fixed})


def _has_shape(info: ValueInfoProto) -> bool:
    return info.type.WhichOneof("value") == "tensor_type" and info.type.tensor_type.HasField("shape")


def _is_name(parameter: str) -> bool:
    """Tell whether a `dim_param` names a dimension: one without a letter or digit says nothing."""
    return any(character.isalnum() for character in parameter)


def _size(dimensions: Dimensions, name: str, axis: int, size: TensorShapeProto.Dimension) -> Extent | str:
    if _is_name(size.dim_param):
        return dimensions.named(size.dim_param)
    # Some exporters write "?" or -1 for a size that isn't known.
    if not size.HasField("dim_value") or size.dim_value == -1:
        return dimensions.unnamed(name, axis)
    if not 0 <= size.dim_value <= LARGEST_SIZE:
        raise Invalid(
            f"input {shown(name)}: size {size.dim_value} of axis {axis} is not in 0 to {LARGEST_SIZE}"
        )
    return Extent.of(size.dim_value)


def _extent(size: Extent | str, fixed: Mapping[str, int]) -> Extent:
    if isinstance(size, Extent):
        return size
    return Extent.of(fixed[size]) if size in fixed else Extent.dimension(size)


def _bounds(names: frozenset[str], wanted: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    for name, (low, high) in wanted.items():
        if name not in names:
            known = ", ".join(sorted(names)) or "none"
            hint = did_you_mean(name, names)
            raise Invalid(f"bounds are given for {shown(name)}; the model's dimensions are: {known}{hint}")
        if not 0 <= low <= high <= LARGEST_SIZE:
            raise Invalid(
                f"bounds of {shown(name)} are {low} to {high}; they need 0 ≤ low ≤ high ≤ {LARGEST_SIZE}"
            )
    return {name: wanted.get(name, DEFAULT_BOUNDS) for name in sorted(names)}

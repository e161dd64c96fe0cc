"""What a rule is, and what it sees of the node that it takes apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn, Protocol, TypeVar

import numpy as np

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.extents import Extent
from services.engine.domain.graph import Attribute, Body, LooseTensor, Node, SequenceOf
from services.engine.domain.held_types import Thing
from services.engine.domain.reference import Array
from services.engine.domain.values import FLOATS, Value, static

T = TypeVar("T")
_FACTORS = frozenset(("alpha", "beta", "gamma", "epsilon"))
"""Attributes by which results would be no numbers at all."""
Kind = Literal["atomic", "transform", "composite", "static", "control"]
"""One atomic operator up to broadcasting; movement alone; several; known when the plan is made; control
flow and host
operators."""


class Scope(Protocol):
    """A body in the place where its node is."""

    def run(self, inputs: Sequence[Thing]) -> list[Thing]:
        """Write the body's nodes with these inputs; return its outputs."""
        ...

    @property
    def body(self) -> Body:
        """What is written."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One node, its inputs as values. Accessors raise Invalid for what isn't there or of another kind."""

    builder: Builder
    node: Node
    opset: int
    """Of the node's domain."""
    inputs: tuple[Thing | None, ...]
    types: Mapping[str, LooseTensor] = field(default_factory=dict)
    """What the model says of values by name."""
    enter: Callable[[Body], Scope] | None = None

    @property
    def count(self) -> int:
        """Number of inputs, those left out at the end not counted."""
        return max((index + 1 for index, value in enumerate(self.inputs) if value is not None), default=0)

    def input(self, index: int) -> Value:
        """Return an input that must be there, a tensor."""
        value = self.optional(index)
        if value is None:
            self.fail(f"input {index} is missing")
        return value

    def optional(self, index: int) -> Value | None:
        """Return an input, a tensor, or None where it is left out."""
        thing = self.inputs[index] if index < len(self.inputs) else None
        if thing is None or isinstance(thing, Value):
            return thing
        name = self.node.inputs[index]
        if not isinstance(thing.type, LooseTensor):
            what = "a sequence" if isinstance(thing.type, SequenceOf) else "an optional"
            self.fail(f"input {index} ({name!r}) is {what}, not a tensor")
        declared = self.types.get(name)
        rank = thing.type.rank if thing.type.rank is not None else declared.rank if declared else None
        if rank is None:
            self.fail(
                f"input {index} ({name!r}) has a number of axes that isn't known when the plan is made; "
                "declare its shape in the model (value_info)"
            )
        return self.builder.ranked(thing, rank)

    def thing(self, index: int) -> Thing:
        """Return an input that must be there, whatever it is."""
        thing = self.inputs[index] if index < len(self.inputs) else None
        if thing is None:
            self.fail(f"input {index} is missing")
        return thing

    def body(self, name: str) -> Scope:
        """Return an attribute that is a graph, ready to be written here."""
        value = self._attribute(name)
        if not isinstance(value, Body):
            self.fail(f"attribute {name!r} is {'missing' if value is None else 'no graph'}")
        assert self.enter is not None
        return self.enter(value)

    def sizes(self, index: int) -> tuple[Extent, ...]:
        """Return the elements of an input of integers, none of which is below 0; they may depend on data."""
        return self.builder.sizes(self._whole(index))

    def size(self, index: int) -> Extent:
        """Return the one element of an input of integers, which isn't below 0; it may depend on data."""
        return self._one(index, self.sizes(index))

    def _one(self, index: int, found: Sequence[T]) -> T:
        if len(found) != 1:
            self.fail(f"input {index} ({self.node.inputs[index]!r}) has {len(found)} elements; it needs one")
        return found[0]

    def wants(self, output: int) -> bool:
        """Tell whether the model uses this output."""
        return output < len(self.node.outputs) and self.node.outputs[output] != ""

    def fail(self, reason: str) -> NoReturn:
        """Refuse the node; the walk over the graph adds its name."""
        raise Invalid(reason)

    def _attribute(self, name: str) -> Attribute | None:
        return self.node.attributes.get(name)

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an integer attribute."""
        value = self._attribute(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int):
            self.fail(f"attribute {name!r} is {'missing' if value is None else 'not an integer'}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute that is 0 or 1."""
        value = self.integer(name, int(default))
        if value not in (0, 1):
            self.fail(f"attribute {name!r} is {value}; use 0 or 1")
        return value == 1

    def number(self, name: str, default: float) -> float:
        """Return a floating-point attribute."""
        value = self._attribute(name)
        if value is None:
            return default
        if not isinstance(value, float | int):
            self.fail(f"attribute {name!r} is not a number")
        if not math.isfinite(value) and name in _FACTORS:
            self.fail(f"attribute {name!r} is {value}; it must be finite")
        return float(value)

    def text(self, name: str, default: str, among: Sequence[str] = ()) -> str:
        """Return a text attribute, which must be one of `among` where that is given."""
        value = self._attribute(name)
        value = default if value is None else value
        if not isinstance(value, str):
            self.fail(f"attribute {name!r} is not a text")
        if among and value not in among:
            hint = did_you_mean(value, among)
            self.fail(f"attribute {name!r} is {value[:80]!r}; use one of {', '.join(among)}{hint}")
        return value

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute that lists integers; None where it is left out."""
        value = self._attribute(name)
        if value is None:
            return None
        if not isinstance(value, tuple) or not all(isinstance(item, int) for item in value):
            self.fail(f"attribute {name!r} is not a list of integers")
        return tuple(int(item) for item in value)

    def tensor(self, name: str) -> Array | None:
        """Return a tensor attribute; None where it is left out."""
        value = self._attribute(name)
        if value is not None and not isinstance(value, np.ndarray):
            self.fail(f"attribute {name!r} is not a tensor")
        return value

    def extents(self, index: int) -> tuple[Extent, ...]:
        """Return the elements of an input of integers that must not depend on the model's data."""
        value = self._whole(index)
        found = self.builder.elements(value)
        if found is None:
            self.fail(
                f"input {index} ({self.node.inputs[index]!r}) must be known when the plan is made, from "
                "constants and shapes; here it depends on data, or has more than 256 elements"
            )
        return tuple(found.reshape(-1))

    def _whole(self, index: int) -> Value:
        value = self.input(index)
        if value.known is not None and value.type in FLOATS and not (value.known % 1).any():
            return self.builder.cast(value, DataType.INT64)  # OneHot's depth may be 12.0
        return value

    def static_integers(self, index: int) -> tuple[int, ...]:
        """Return the elements of an input of integers that must be constants."""
        sizes = static(self.extents(index))
        if sizes is None:
            self.fail(f"input {index} ({self.node.inputs[index]!r}) must not depend on dimensions")
        return sizes

    def static_integer(self, index: int) -> int:
        """Return the one element of an input of integers, a constant."""
        return self._one(index, self.static_integers(index))

    def axis(self, value: int, rank: int) -> int:
        """Return an axis counted from 0."""
        if not -rank <= value < rank:
            self.fail(f"axis {value} is outside of {-rank} to {rank - 1}, the axes of its input")
        return value % rank

    def axes(self, values: Sequence[int], rank: int) -> tuple[int, ...]:
        """Return axes counted from 0, none named twice."""
        result = tuple(self.axis(value, rank) for value in values)
        if len(set(result)) != len(result):
            self.fail(f"axes {list(values)} name one twice")
        return result

    def axes_of(self, index: int, name: str = "axes") -> tuple[int, ...] | None:
        """Return axes, which older opsets have as an attribute and newer ones as an input; None: left out."""
        if (given := self.integers(name)) is not None:
            return given
        return None if self.optional(index) is None else self.static_integers(index)

    def floats(self, value: Value) -> Value:
        """Return `value`, whose elements must be floating-point numbers."""
        if value.type not in FLOATS:
            self.fail(f"{value} has no floating-point elements")
        return value


Rule = Callable[[Call], Thing | tuple[Thing, ...]]


@dataclass(frozen=True, slots=True)
class Operator:
    """An ONNX operator that can be taken apart."""

    name: str
    kind: Kind
    rule: Rule
    since: int = 7
    """Oldest opset that has it and is read."""
    keeps: bool = False
    """Whether it takes floats that are only stored (bfloat16, …) as they are. Rules that move, pick or
    convert do; for others they become float32 before, and results what they were after."""
    family: str = ""
    """File that holds the rule."""

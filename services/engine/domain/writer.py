"""Keeps a program in the making: numbers values, holds constants, checks shapes and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain import reference, symbolic
from services.engine.domain.bounds import Bounds
from services.engine.domain.composed import (
    AnyInstruction,
    BlockCode,
    Composed,
    EqualInstruction,
    HeldType,
    Source,
)
from services.engine.domain.extents import Extent
from services.engine.domain.graph import InputType, LooseTensor
from services.engine.domain.program import (
    ComputeInstruction,
    Instruction,
    MoveRegion,
    NamedValue,
    Program,
    RasterInstruction,
    ValueType,
    ValueView,
    ViewAxis,
    whole,
)
from services.engine.domain.reference import Array, numpy_type
from services.engine.domain.symbolic import Elements
from services.engine.domain.values import (
    MOST_AXES,
    Held,
    Move,
    Shape,
    Value,
    count,
    extents,
    shape_text,
    static,
    where_text,
)

MOST_INSTRUCTIONS = 1_000_000
MOST_ELEMENTS = 1 << 40
"""Of a value at the smallest sizes."""
FOLDED_BYTES = 1 << 30
"""Of all that is folded."""
LARGEST_DATA_SIZE = 1 << 31
"""Of a dimension that data decide."""
MOST_DATA_DIMENSIONS = 16_384
DEEPEST_BLOCK = 32


@dataclass(slots=True)
class Layer:
    """A block in the making, and what has been computed in it."""

    instructions: list[AnyInstruction] = field(default_factory=list)
    numbers: dict[Value | Held, int] = field(default_factory=dict)
    scalars: dict[Extent, Value] = field(default_factory=dict)
    sources: dict[Source, str] = field(default_factory=dict)
    """Data dimensions that are known in it."""
    strings: dict[Value, tuple[int, Value]] = field(default_factory=dict)
    """Arrays of strings as (number of a table, places in it)."""


class Writer:
    """The part of `Builder` that writes; rules of decomposition call the builder's methods."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.origin = ""
        """Node that instructions are written for."""
        self._values: list[ValueType | HeldType] = []
        self._inputs: list[NamedValue] = []
        self._constants: dict[int, Array] = {}
        self._layers = [Layer()]
        self._sources: dict[str, Source] = {}
        self._aliases: dict[int, int] = {}
        self._written = 0
        self._foldable = FOLDED_BYTES

    def input(self, name: str, type_: InputType) -> Value | Held:
        """Add an input of the program."""
        if isinstance(type_, ValueType):
            value = Value(type_.type, self._shape(type_.shape))
            self._inputs.append(NamedValue(name, self._number(value)))
            return value
        held = Held(type_)
        self._inputs.append(NamedValue(name, self._number(held)))
        if isinstance(type_, LooseTensor) and type_.rank is not None:
            return self.ranked(held, type_.rank)
        return held

    def constant(self, array: Array) -> Value:
        """Return a value that is the same in every call."""
        return Value(reference.data_type(array.dtype), self._shape(extents(array.shape)), known=array)

    def elements(self, value: Value) -> Elements | None:
        """Return the integers of a small value that is known, or only depends on dimensions; else None."""
        if value.elements is not None:
            return value.elements
        if count(value.shape).constant == 0 and (sizes := static(value.shape)) is not None:
            return symbolic.elements_of([], (0,)).reshape(sizes)
        if value.known is None or value.type not in (DataType.INT64, DataType.INT32):
            return None
        if value.known.size > symbolic.MOST_ELEMENTS:
            return None
        return symbolic.elements_of(value.known.reshape(-1).tolist(), value.known.shape)

    def ranked(self, held: Held, rank: int) -> Value:
        """Return a tensor of which the number of axes wasn't known, as one of `rank`: a call checks it."""
        if not isinstance(held.type, LooseTensor):
            raise Invalid(f"{held} is not a tensor")
        if rank > MOST_AXES:
            raise Invalid(f"a value has {rank} axes; at most {MOST_AXES} are supported")
        number = self._number(held)
        shape = tuple(self._dimension(Source(number, axis=axis)) for axis in range(rank))
        value = Value(held.type.type, shape)
        self._aliases[self._number(value)] = number
        return value

    def equal(self, left: Extent, right: Extent) -> None:
        """Demand that two sizes are equal in every call; raises Invalid where they can't be."""
        if left == right:
            return
        for one, other in ((left, right), (right, left)):
            if (sizes := self._refuted(one, other)) is not None and not self._may_be_equal(left, right):
                raise Invalid(f"sizes {left} and {right} must be equal{where_text(sizes)}")
        if (left, right) in self.bounds.equal:
            return
        ranges = {**self.bounds.ranges, **self._shared_range(left, right)}
        self.bounds = Bounds(ranges, self.bounds.data, (*self.bounds.equal, (left, right)))
        self._write(EqualInstruction(left, right, self.origin))

    def _shared_range(self, left: Extent, right: Extent) -> dict[str, tuple[int, int]]:
        """Return the range that both have, where each is one dimension of the inputs, or a number."""
        names = [name for side in (left, right) for name in side.dimensions if side == Extent.dimension(name)]
        plain = len(names) + sum(side.constant is not None for side in (left, right)) == 2
        if not plain or self.bounds.data.intersection(names):
            return {}
        pairs = [self.bounds.range(side) for side in (left, right)]
        shared = max(low for low, _ in pairs), min(high for _, high in pairs)
        return dict.fromkeys(names, shared)

    def _may_be_equal(self, left: Extent, right: Extent) -> bool:
        low, high = self.bounds.range(left - right)
        return low <= 0 <= high

    def _dimension(self, source: Source) -> Extent:
        """Return the size that a source gives, known in this block and those within."""
        for layer in self._layers:
            if source in layer.sources:
                return Extent.dimension(layer.sources[source])
        if len(self._sources) >= MOST_DATA_DIMENSIONS:
            raise Invalid(f"the model has more than {MOST_DATA_DIMENSIONS} sizes that its data decide")
        number = len(self._sources)
        while (name := f"n{number}") in self.bounds.ranges:
            number += 1
        self._sources[name] = source
        self._layers[-1].sources[source] = name
        ranges = {**self.bounds.ranges, name: (0, LARGEST_DATA_SIZE)}
        self.bounds = Bounds(ranges, self.bounds.data | {name}, self.bounds.equal)
        return Extent.dimension(name)

    def _from_elements(self, elements: Elements, type_: DataType) -> Value:
        constants = [element.constant for element in elements.reshape(-1)]
        shape = extents(elements.shape)
        if None in constants:
            return Value(type_, shape, elements=elements)
        if any(not -(1 << 63) <= constant < 1 << 63 for constant in constants):
            raise Invalid("an integer that the model computes from shapes exceeds 64 bits")
        known = np.array(constants, np.int64).reshape(elements.shape).astype(numpy_type(type_))
        return Value(type_, shape, known=known)

    def _shape(self, shape: Shape) -> Shape:
        if len(shape) > MOST_AXES:
            raise Invalid(f"a value has {len(shape)} axes; at most {MOST_AXES} are supported")
        low = 1
        for size in shape:
            symbolic.check_size(size)
            if (sizes := self._refuted(size, 0)) is not None:
                raise Invalid(f"a size of shape {shape_text(shape)} is negative{where_text(sizes)}")
            low *= max(self.bounds.range(size)[0], 0)
        if low > MOST_ELEMENTS:
            raise Invalid(f"a value of shape {shape_text(shape)} has more than {MOST_ELEMENTS} elements")
        return shape

    def _refuted(self, extent: Extent, low: Extent | int) -> dict[str, int] | None:
        """Return sizes of dimensions within bounds at which `extent` < `low`, if some are found."""
        try:
            return self.bounds.refute_at_least(extent, low)
        except ZeroDivisionError:
            raise Invalid(f"a size of the model, {extent}, divides by 0") from None

    def _may_fold(self, type_: DataType, shape: Shape, limit: int = FOLDED_BYTES) -> bool:
        elements = count(shape).constant
        if elements is None or elements < 0:
            return False
        size = elements * numpy_type(type_).itemsize
        if size > limit or size > self._foldable:
            return False
        self._foldable -= size
        return True

    def _compute(
        self,
        operator: str,
        inputs: tuple[Value, ...],
        type_: DataType,
        shape: Shape,
        axes: tuple[int, ...] = (),
    ) -> Value:
        views = tuple(whole(self._number(value), value.shape) for value in inputs)
        value = Value(type_, shape)
        self._write(ComputeInstruction(operator, views, (self._number(value),), axes, self.origin))
        return value

    def _move(self, type_: DataType, shape: Shape, moves: Sequence[Move], fill: Array | None = None) -> Value:
        regions = tuple(
            MoveRegion(
                ValueView(
                    self._number(move.source),
                    move.offset,
                    tuple(ViewAxis(*pair) for pair in zip(move.sizes, move.strides, strict=True)),
                ),
                move.destination,
                move.destination_strides,
            )
            for move in moves
        )
        value = Value(type_, self._shape(shape))
        self._write(RasterInstruction(self._number(value), regions, fill, self.origin))
        return value

    def _write(self, instruction: AnyInstruction) -> None:
        if self._written >= MOST_INSTRUCTIONS:
            raise Invalid(f"the model decomposes into more than {MOST_INSTRUCTIONS} instructions")
        self._written += 1
        self._layers[-1].instructions.append(instruction)

    def _number(self, value: Value | Held) -> int:
        """Return the value's number in the program; computes it first where it is only known how."""
        for layer in self._layers:
            if value in layer.numbers:
                return layer.numbers[value]
        known = isinstance(value, Value) and value.known is not None
        # A constant is one everywhere, anything else where it is computed.
        layer = self._layers[0 if known else -1]
        if not known and (made := self._made(value)) is not None:
            layer.numbers[value] = number = self._number(made)
            return number
        layer.numbers[value] = number = len(self._values)
        if isinstance(value, Value):
            self._values.append(ValueType(value.type, value.shape))
            if value.known is not None:
                self._constants[number] = value.known
        else:
            self._values.append(value.type)
        return number

    def _made(self, value: Value | Held) -> Value | Held | None:
        """Return what is computed at run time for a value of which it is only known how; None for others."""
        raise NotImplementedError

    def _in_block(
        self, parameters: Sequence[Value | Held], write: Callable[[], Sequence[Value | Held]]
    ) -> tuple[BlockCode, list[Value | Held], frozenset[str]]:
        """Return a block that `write` writes, what it gives back, and the data dimensions within."""
        if len(self._layers) > DEEPEST_BLOCK:
            raise Invalid(f"control flow is nested more than {DEEPEST_BLOCK} deep")
        bounds = self.bounds
        layer = Layer()
        self._layers.append(layer)
        try:
            numbers = tuple(self._number(parameter) for parameter in parameters)
            results = list(write())
            code = BlockCode(
                numbers, tuple(layer.instructions), tuple(self._number(result) for result in results)
            )
            code = BlockCode(numbers, tuple(layer.instructions), code.results)
        finally:
            self._layers.pop()
            # Equalities, and what they say of ranges, only hold where the block has run.
            ranges = {**self.bounds.ranges, **bounds.ranges}
            self.bounds = Bounds(ranges, self.bounds.data, bounds.equal)
        return code, results, frozenset(layer.sources.values())

    def program(self, outputs: Sequence[tuple[str, Value | Held]]) -> Program | Composed:
        """Return what was written, with these outputs; composed where it isn't all straight."""
        named = tuple(NamedValue(name, self._number(value)) for name, value in outputs)
        (layer,) = self._layers
        straight = [instruction for instruction in layer.instructions if isinstance(instruction, Instruction)]
        equalities = [
            (instruction.left, instruction.right, instruction.origin)
            for instruction in layer.instructions
            if isinstance(instruction, EqualInstruction)
        ]
        values = [type_ for type_ in self._values if isinstance(type_, ValueType)]
        if (
            not self._sources
            and len(straight) + len(equalities) == len(layer.instructions)
            and len(values) == len(self._values)
            and all(type_.type is not DataType.STRING for type_ in values)
        ):
            return Program(
                tuple(values),
                tuple(self._inputs),
                named,
                self._constants,
                tuple(straight),
                self.bounds,
                tuple(equalities),
            )
        body = BlockCode((), tuple(layer.instructions), tuple(output.value for output in named))
        return Composed(
            tuple(self._values),
            tuple(self._inputs),
            named,
            self._constants,
            body,
            self._sources,
            self._aliases,
            self.bounds,
        )

"""Keeps a `Program` in the making: numbers values, holds constants, checks shapes and limits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain import reference, symbolic
from services.engine.domain.extents import Bounds, Extent
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
    Move,
    Shape,
    Value,
    count,
    extents,
    shape_text,
    where_text,
)

MOST_INSTRUCTIONS = 1_000_000
MOST_ELEMENTS = 1 << 40
"""Of a value at the smallest sizes."""
FOLDED_BYTES = 1 << 30
"""Of all that is folded."""


class Writer:
    """The part of `Builder` that writes; rules of decomposition call the builder's methods."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.origin = ""
        """Node that instructions are written for."""
        self._values: list[ValueType] = []
        self._numbers: dict[Value, int] = {}
        self._scalars: dict[Extent, Value] = {}
        self._inputs: list[NamedValue] = []
        self._constants: dict[int, Array] = {}
        self._instructions: list[Instruction] = []
        self._foldable = FOLDED_BYTES

    def input(self, name: str, type_: ValueType) -> Value:
        """Add an input of the program."""
        value = Value(type_.type, self._shape(type_.shape))
        self._inputs.append(NamedValue(name, self._number(value)))
        return value

    def constant(self, array: Array) -> Value:
        """Return a value that is the same in every call."""
        return Value(reference.data_type(array.dtype), self._shape(extents(array.shape)), known=array)

    def elements(self, value: Value) -> Elements | None:
        """Return the integers of a small value that is known, or only depends on dimensions; else None."""
        if value.elements is not None:
            return value.elements
        if value.known is None or value.type not in (DataType.INT64, DataType.INT32):
            return None
        if value.known.size > symbolic.MOST_ELEMENTS:
            return None
        return symbolic.elements_of(value.known.reshape(-1).tolist(), value.known.shape)

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
            symbolic.bounded(size)
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

    def _write(self, instruction: Instruction) -> None:
        if len(self._instructions) >= MOST_INSTRUCTIONS:
            raise Invalid(f"the model decomposes into more than {MOST_INSTRUCTIONS} instructions")
        self._instructions.append(instruction)

    def _number(self, value: Value) -> int:
        """Return the value's number in the program; computes it first where it is a shape value."""
        if value in self._numbers:
            return self._numbers[value]
        if value.elements is not None:
            self._numbers[value] = number = self._number(self._materialise(value))
            return number
        self._numbers[value] = number = len(self._values)
        self._values.append(ValueType(value.type, value.shape))
        if value.known is not None:
            self._constants[number] = value.known
        return number

    def _materialise(self, value: Value) -> Value:
        """Return a shape value as one that is computed at run time."""
        raise NotImplementedError

    def program(self, outputs: Sequence[tuple[str, Value]]) -> Program:
        """Return what was written, with these outputs."""
        named = tuple(NamedValue(name, self._number(value)) for name, value in outputs)
        return Program(
            tuple(self._values),
            tuple(self._inputs),
            named,
            self._constants,
            tuple(self._instructions),
            self.bounds,
        )

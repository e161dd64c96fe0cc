"""Writes programs by hand for tests, as decomposition does: whole values, one raster for each movement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from libs.runtime.atomic import ATOMICS
from libs.runtime.plan import DataType
from services.engine.domain.bounds import Bounds
from services.engine.domain.extents import Extent, contiguous_strides, product
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

Size = Extent | int


class Sketch:
    """A program in the making. Values are numbers; every method returns that of its result."""

    def __init__(self, **dimensions: tuple[int, int]) -> None:
        self.bounds = Bounds(dimensions)
        self.values: list[ValueType] = []
        self.inputs: list[NamedValue] = []
        self.constants: dict[int, np.ndarray[Any, Any]] = {}
        self.instructions: list[Instruction] = []

    def shape(self, value: int) -> tuple[Extent, ...]:
        """Return the shape of a value."""
        return self.values[value].shape

    def _new(self, type_: DataType, shape: Sequence[Size]) -> int:
        self.values.append(ValueType(type_, tuple(Extent.of(size) for size in shape)))
        return len(self.values) - 1

    def input(self, name: str, *shape: Size | str, type_: DataType = DataType.FLOAT32) -> int:
        """Add an input; texts in its shape are dimensions."""
        sizes = [Extent.dimension(size) if isinstance(size, str) else size for size in shape]
        value = self._new(type_, sizes)
        self.inputs.append(NamedValue(name, value))
        return value

    def constant(self, array: Any) -> int:
        """Add a constant."""
        array = np.asarray(array)
        value = self._new(DataType[array.dtype.name.upper()], array.shape)
        self.constants[value] = array
        return value

    def compute(self, operator: str, *inputs: int, axes: tuple[int, ...] = ()) -> int:
        """Add an atomic operator over whole values."""
        atomic, first = ATOMICS[operator], self.values[inputs[-1] if operator == "where" else inputs[0]]
        shape, type_ = first.shape, first.type
        if atomic.kind == "reduce":
            shape = tuple(size for axis, size in enumerate(shape) if axis not in axes)
        elif atomic.kind == "matmul":
            shape = (*shape[:-1], self.shape(inputs[1])[-1])
        elif atomic.kind == "gather":
            shape = (*shape[: axes[0]], *self.shape(inputs[1]), *shape[axes[0] + 1 :])
        if atomic.result in ("bool", "index"):
            type_ = DataType.BOOL if atomic.result == "bool" else DataType.INT64
        output = self._new(type_, shape)
        views = tuple(whole(value, self.shape(value)) for value in inputs)
        origin = f"#{len(self.instructions)} ({operator})"
        self.instructions.append(ComputeInstruction(operator, views, (output,), axes, origin))
        return output

    def raster(
        self, type_: DataType, shape: Sequence[Size], regions: Sequence[MoveRegion], fill: Any = None
    ) -> int:
        """Add a raster."""
        output = self._new(type_, shape)
        number = None if fill is None else np.array(fill, np.dtype(type_.name.lower()))
        origin = f"#{len(self.instructions)} (Raster)"
        self.instructions.append(RasterInstruction(output, tuple(regions), number, origin))
        return output

    def _move(self, value: int, offset: Size, sizes: Sequence[Size], strides: Sequence[Size]) -> int:
        axes = tuple(ViewAxis(Extent.of(n), Extent.of(s)) for n, s in zip(sizes, strides, strict=True))
        view = ValueView(value, Extent.of(offset), axes)
        region = MoveRegion(view, Extent.of(0), contiguous_strides(view.shape))
        return self.raster(self.values[value].type, view.shape, [region])

    def transpose(self, value: int, *order: int) -> int:
        """Permute axes."""
        shape, strides = self.shape(value), contiguous_strides(self.shape(value))
        return self._move(value, 0, [shape[axis] for axis in order], [strides[axis] for axis in order])

    def slice(self, value: int, axis: int, start: Size, count: Size, step: int = 1) -> int:
        """Take `count` elements of an axis from `start`, which is valid, in steps."""
        shape, strides = list(self.shape(value)), list(contiguous_strides(self.shape(value)))
        offset = strides[axis] * start
        shape[axis], strides[axis] = Extent.of(count), strides[axis] * step
        return self._move(value, offset, shape, strides)

    def reshape(self, value: int, *shape: Size) -> int:
        """Give the elements another shape, with one flat region."""
        axes = (ViewAxis(product(self.shape(value)), Extent.of(1)),)
        region = MoveRegion(ValueView(value, Extent.of(0), axes), Extent.of(0), (Extent.of(1),))
        return self.raster(self.values[value].type, shape, [region])

    def broadcast(self, value: int, *shape: Size) -> int:
        """Repeat along new axes in front, and along axes of size 1."""
        old, strides = self.shape(value), contiguous_strides(self.shape(value))
        sizes = [Extent.of(size) for size in shape]
        steps: list[Size] = [0] * (len(sizes) - len(old))
        for size, wanted, stride in zip(old, sizes[len(steps) :], strides, strict=True):
            steps.append(stride if size == wanted else 0)
        return self._move(value, 0, sizes, steps)

    def concat(self, axis: int, *values: int) -> int:
        """Join along an axis."""
        shape = list(self.shape(values[0]))
        shape[axis] = Extent.of(0)
        for value in values:
            shape[axis] = shape[axis] + self.shape(value)[axis]
        strides, regions, start = contiguous_strides(tuple(shape)), [], Extent.of(0)
        for value in values:
            regions.append(MoveRegion(whole(value, self.shape(value)), start * strides[axis], strides))
            start = start + self.shape(value)[axis]
        return self.raster(self.values[values[0]].type, shape, regions)

    def pad(self, value: int, axis: int, before: int, after: int, fill: float = 0) -> int:
        """Add elements at both ends of an axis."""
        shape = list(self.shape(value))
        shape[axis] = shape[axis] + before + after
        strides = contiguous_strides(tuple(shape))
        region = MoveRegion(whole(value, self.shape(value)), strides[axis] * before, strides)
        return self.raster(self.values[value].type, shape, [region], fill)

    def program(self, **outputs: int) -> Program:
        """Return the program with the given outputs."""
        return Program(
            values=tuple(self.values),
            inputs=tuple(self.inputs),
            outputs=tuple(NamedValue(name, value) for name, value in outputs.items()),
            constants=dict(self.constants),
            instructions=tuple(self.instructions),
            bounds=self.bounds,
        )


def counts(program: Program) -> tuple[int, int]:
    """Return how many computes and how many rasters a program has."""
    rasters = sum(isinstance(step, RasterInstruction) for step in program.instructions)
    return len(program.instructions) - rasters, rasters

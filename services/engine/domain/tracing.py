"""Writes functions of the compute library down as programs: what they do to arrays, done later, in a plan.

A traced function gets tensors that stand for values of a program, and may do with them all that the library
does: every operator becomes instructions of a `Builder`. What is known (constants, sizes) is computed now.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute import backend as compute
from libs.compute.tensor import Tensor, asarray
from libs.runtime.plan import DataType
from services.engine.domain import symbolic
from services.engine.domain.bounds import Bounds
from services.engine.domain.builder import Builder
from services.engine.domain.composed import Composed
from services.engine.domain.decompose.generation import arange
from services.engine.domain.extents import Extent
from services.engine.domain.graph import LooseTensor
from services.engine.domain.held_types import Thing
from services.engine.domain.loops import Round
from services.engine.domain.program import Program, ValueType
from services.engine.domain.reference import Array
from services.engine.domain.values import Move, Value, extents

Traced = Callable[..., Any]
"""Takes tensors by position or name; gives a tensor, several in a list or tuple, or a mapping of names."""


class Tracer:
    """A backend of the compute library that writes into a builder."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    # What a value is

    def type(self, x: Value) -> DataType:
        """Return the type of its elements."""
        return x.type

    def shape(self, x: Value) -> tuple[int | Extent, ...]:
        """Return its sizes, as ints where they are known."""
        return tuple(_plain(size) for size in x.shape)

    def known(self, x: Value) -> Array | None:
        """Return its elements where they are the same in every call."""
        return x.known

    # Values from nothing, and sizes from values

    def constant(self, array: Array) -> Value:
        """Return a value with these elements."""
        return self.builder.constant(array)

    def scalar(self, number: float, type_: DataType) -> Value:
        """Return one number, of no axes."""
        with np.errstate(all="ignore"):
            return self.builder.scalar(number, type_)

    def integers(self, sizes: Sequence[Extent | int]) -> Value:
        """Return sizes as an int64 vector."""
        return self.builder.integers(sizes)

    def extent(self, size: Extent | int, type_: DataType) -> Value:
        """Return a size as a scalar of any type."""
        return self.builder.extent(size, type_)

    def arange(self, size: Extent | int) -> Value:
        """Return the int64 vector 0, 1, …, size - 1."""
        return arange(self.builder, Extent.of(size))

    def sizes(self, x: Value) -> tuple[int | Extent, ...]:
        """Return the elements of a short integer vector as sizes: what needs them runs after it."""
        return tuple(_plain(size) for size in self.builder.sizes(x))

    def size(self, x: Value) -> int | Extent:
        """Return one integer as a size."""
        return _plain(self.builder.size(x))

    def minimum(self, a: Extent | int, b: Extent | int) -> int | Extent:
        """Return the smaller size."""
        return _plain(symbolic.minimum(Extent.of(a), Extent.of(b), self.builder.bounds))

    def maximum(self, a: Extent | int, b: Extent | int) -> int | Extent:
        """Return the larger size."""
        return _plain(symbolic.maximum(Extent.of(a), Extent.of(b), self.builder.bounds))

    def equal(self, a: Extent | int, b: Extent | int) -> None:
        """Demand that two sizes are equal in every call."""
        self.builder.equal(Extent.of(a), Extent.of(b))

    # Atomic operators

    def elementwise(self, operator: str, *inputs: Value, result: DataType | None = None) -> Value:
        """Apply an elementwise operator to inputs of one type, which broadcast."""
        return self.builder.elementwise(operator, *inputs, result=result)

    def cast(self, x: Value, type_: DataType) -> Value:
        """Convert the elements."""
        return self.builder.cast(x, type_)

    def bit_cast(self, x: Value, type_: DataType) -> Value:
        """Return the same bits as elements of another type of as many."""
        return self.builder.bit_cast(x, type_)

    def where(self, condition: Value, x: Value, y: Value) -> Value:
        """Return x where the condition holds, y elsewhere."""
        return self.builder.where(condition, x, y)

    def reduce(self, operator: str, x: Value, axes: Sequence[int], *, keep: bool) -> Value:
        """Reduce along axes, which stay with size 1 if `keep`."""
        return self.builder.reduce(operator, x, axes, keep=keep)

    def arg_max(self, x: Value, axis: int) -> Value:
        """Return the position of the first maximum along an axis."""
        return self.builder.arg_max(x, axis)

    def arg_sort(self, x: Value, axis: int) -> Value:
        """Return from where each element comes that puts an axis in order."""
        return self.builder.arg_sort(x, axis)

    def cumulative_sum(self, x: Value, axis: int) -> Value:
        """Return the running sum along an axis."""
        return self.builder.cumulative_sum(x, axis)

    def matmul(self, a: Value, b: Value) -> Value:
        """Multiply stacks of matrices."""
        return self.builder.matmul(a, b)

    def gather(self, data: Value, indices: Value, axis: int) -> Value:
        """Replace an axis of `data` by the shape of `indices`."""
        return self.builder.gather(data, indices, axis)

    def scatter(self, operator: str, data: Value, indices: Value, updates: Value) -> Value:
        """Put or combine updates at indices along axis 0."""
        wanted = (*indices.shape, *data.shape[1:])
        if updates.shape != wanted:
            updates = self.builder.broadcast(updates, wanted)
        return self.builder.scatter(operator, data, indices, updates)

    # Movement

    def move(self, x: Value, shape: compute.Shape, strides: compute.Shape, offset: Extent | int = 0) -> Value:
        """Return the elements of `x` at offset + Σ ik·stride_k as a dense value."""
        return self.builder.move(x, extents(shape), extents(strides), offset)

    def raster(
        self,
        type_: DataType,
        shape: compute.Shape,
        moves: Sequence[compute.Move],
        fill: float | None = None,
    ) -> Value:
        """Write a value from regions of others."""
        regions = [
            Move(
                move.source,
                extents(move.sizes),
                extents(move.strides),
                Extent.of(move.offset),
                extents(move.destination_strides),
                Extent.of(move.destination),
            )
            for move in moves
        ]
        return self.builder.raster(type_, extents(shape), regions, fill)

    def reshape(self, x: Value, shape: compute.Shape) -> Value:
        """Return the elements in another shape of as many."""
        return self.builder.reshape(x, extents(shape))

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Return `x` with its axes in another order."""
        return self.builder.transpose(x, order)

    def broadcast(self, x: Value, shape: compute.Shape) -> Value:
        """Repeat `x` to a shape that it broadcasts to."""
        return self.builder.broadcast(x, extents(shape))

    def common_shape(self, *shapes: compute.Shape) -> tuple[int | Extent, ...]:
        """Return the shape that all broadcast to."""
        found = self.builder.common_shape(*(extents(shape) for shape in shapes))
        return tuple(_plain(size) for size in found)

    # Control flow, and the rest

    def loop(
        self,
        limit: Extent | int | None,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], compute.Round],
    ) -> list[Value]:
        """Run `body` until it says so, at most `limit` times."""

        def write(number: Value, _: Value, state: list[Thing]) -> Round:
            going, after = body(number, [_value(thing) for thing in state])
            return Round(going, after)

        trips = None if limit is None else Extent.of(limit)
        found, _ = self.builder.loop(trips, None, list(carried), write)
        return [_value(thing) for thing in found]

    def decode_image(self, data: Value, layout: str) -> Value:
        """Return the pixels of an encoded image; how many is known once it has run."""
        (pixels,) = self.builder.host(
            "decode_image", [data], [LooseTensor(DataType.UINT8, 3)], texts=[layout]
        )
        return _value(pixels)


def _plain(size: Extent) -> int | Extent:
    return size if size.constant is None else size.constant


def _value(thing: Thing) -> Value:
    if not isinstance(thing, Value):
        raise Invalid(f"{thing} is no tensor of a known number of axes")
    return thing


def inline(builder: Builder, function: Traced, inputs: Mapping[str, Value]) -> dict[str, Value]:
    """Write what a function does to values into a builder; return what it gives, by name.

    A function whose parameters have the inputs' names gets them by name, another one by position. A tensor
    that it gives is called "output", several "output_0", "output_1", …; a mapping has names of its own.

    Raises:
        Invalid: when the function takes other inputs, gives something else than tensors, or asks for what
            isn't known yet.
    """
    tracer = Tracer(builder)
    tensors = {name: Tensor(tracer, value) for name, value in inputs.items()}
    made = _call(function, tensors)
    if isinstance(made, Mapping):
        named = dict(made)
    elif isinstance(made, list | tuple):
        named = {f"output_{place}": each for place, each in enumerate(made)}
    else:
        named = {"output": made}
    if not named:
        raise Invalid(f"function {_name(function)} gives nothing: it must return a tensor")
    return {str(name): _written(tracer, function, name, each) for name, each in named.items()}


def _call(function: Traced, tensors: Mapping[str, Tensor]) -> Any:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some that are built in have none
        return function(*tensors.values())
    try:
        named = signature.bind(**tensors)
    except TypeError:
        try:
            named = signature.bind(*tensors.values())
        except TypeError as error:
            names = ", ".join(tensors)
            raise Invalid(f"function {_name(function)} doesn't take the inputs {names}: {error}") from None
    return function(*named.args, **named.kwargs)


def _written(tracer: Tracer, function: Traced, name: object, thing: Any) -> Value:
    if isinstance(thing, Extent):
        return tracer.extent(thing, DataType.INT64)
    tensor = asarray(thing)
    if tensor.backend is tracer:
        return _value(tensor.value)
    if isinstance(tensor.backend, Tracer):
        raise Invalid(f"function {_name(function)} gives {name!r}, which is of another trace")
    return tracer.constant(tensor.numpy())


def _name(function: Traced) -> str:
    return repr(getattr(function, "__name__", type(function).__name__))


def trace(
    function: Traced, inputs: Mapping[str, ValueType], bounds: Bounds | None = None
) -> Program | Composed:
    """Return the program of what a function does to inputs of these types; see `inline` for its outputs.

    `bounds`: the range of each dimension that the inputs' shapes name. It is composed where data decide
    sizes or loops run.
    """
    builder = Builder(bounds or Bounds({}))
    values = {name: _value(builder.input(name, type_)) for name, type_ in inputs.items()}
    return of_inputs(builder.program(list(inline(builder, function, values).items())))


def of_inputs(written: Program | Composed) -> Program | Composed:
    """Return a program without the dimensions that no input of it has."""
    bounds, used = written.bounds, set(written.bounds.data)
    for named in written.inputs:
        type_ = written.values[named.value]
        if isinstance(type_, ValueType):
            used.update(name for size in type_.shape for name in size.dimensions)
    ranges = {name: pair for name, pair in bounds.ranges.items() if name in used}
    return replace(written, bounds=replace(bounds, ranges=ranges))

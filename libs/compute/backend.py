"""What library code may do with values: the operators of `libs.runtime.atomic`, and moves between values.

A *value* is opaque: a numpy array where work is done at once (`libs.compute.eager`), a name in a program
where it is written down for later (`services.engine.domain.tracing`). A *size* is an int, or, in a program, a
formula of sizes that aren't known yet; library code adds, subtracts, multiplies, divides (`//`, `%`) them and
asks the backend for the smaller or larger of two. It never compares sizes that may be formulas: `int_or_none`
tells which are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from libs.runtime.plan import DataType

Value = Any
"""What a backend computes with; opaque to library code."""
Size = Any
"""An int, or a formula of sizes that aren't known yet."""
Shape = tuple[Size, ...]
Array = npt.NDArray[Any]

MOST_AXES = 8
"""Of a value, as in plans."""


@dataclass(frozen=True, slots=True)
class Move:
    """One region: output[destination + Σ ik·destination_strides[k]] = source[offset + Σ ik·strides[k]].

    Offsets and strides count elements of the dense, row-major source and output.
    """

    source: Value
    sizes: Shape
    strides: Shape
    offset: Size
    destination_strides: Shape
    destination: Size = 0


Round = tuple[Value | None, Sequence[Value]]
"""What a loop's body gives: whether there is a next round (one boolean; None: there is), what is carried."""


class Backend(Protocol):
    """Computes with values, now or later.

    Values are dense and never change. Axes are counted from 0. Every method raises Invalid for types, shapes
    or sizes that the operator doesn't take, and, where it computes now, for data that have no result (an
    index out of range, an integer divided by 0).
    """

    # What a value is

    def type(self, x: Value) -> DataType:
        """Return the type of its elements."""
        ...

    def shape(self, x: Value) -> Shape:
        """Return its sizes, outermost first; ints where they are known."""
        ...

    def known(self, x: Value) -> Array | None:
        """Return its elements; None where they aren't known yet."""
        ...

    # Values from nothing, and sizes from values

    def constant(self, array: Array) -> Value:
        """Return a value with these elements."""
        ...

    def scalar(self, number: float, type_: DataType) -> Value:
        """Return one number, of no axes."""
        ...

    def integers(self, sizes: Sequence[Size]) -> Value:
        """Return sizes as an int64 vector."""
        ...

    def extent(self, size: Size, type_: DataType) -> Value:
        """Return a size as a scalar of any type."""
        ...

    def arange(self, size: Size) -> Value:
        """Return the int64 vector 0, 1, …, size - 1."""
        ...

    def sizes(self, x: Value) -> Shape:
        """Return the elements of a short integer vector, none below 0, as sizes."""
        ...

    def size(self, x: Value) -> Size:
        """Return one integer, not below 0, as a size."""
        ...

    def minimum(self, a: Size, b: Size) -> Size:
        """Return the smaller size."""
        ...

    def maximum(self, a: Size, b: Size) -> Size:
        """Return the larger size."""
        ...

    def equal(self, a: Size, b: Size) -> None:
        """Demand that two sizes are equal."""
        ...

    # Atomic operators

    def elementwise(self, operator: str, *inputs: Value, result: DataType | None = None) -> Value:
        """Apply an elementwise operator to inputs of one type, which broadcast; `result`: of a cast."""
        ...

    def cast(self, x: Value, type_: DataType) -> Value:
        """Convert the elements; anything but 0 becomes true."""
        ...

    def bit_cast(self, x: Value, type_: DataType) -> Value:
        """Return the same bits as elements of another type of as many."""
        ...

    def where(self, condition: Value, x: Value, y: Value) -> Value:
        """Return x where the condition holds, y elsewhere; all three broadcast."""
        ...

    def reduce(self, operator: str, x: Value, axes: Sequence[int], *, keep: bool) -> Value:
        """Apply "reduce_sum", "_prod", "_max" or "_min" along axes, which stay with size 1 if `keep`.

        Integers stay in their type. Nothing has the sum 0, the product 1 and the type's lowest number as its
        maximum. No axes: reduces nothing.
        """
        ...

    def arg_max(self, x: Value, axis: int) -> Value:
        """Return the int64 position of the first maximum along an axis, which goes; NaN is the largest."""
        ...

    def arg_sort(self, x: Value, axis: int) -> Value:
        """Return from where each element comes that puts an axis in order: ascending, stable, NaN last."""
        ...

    def cumulative_sum(self, x: Value, axis: int) -> Value:
        """Return the running sum along an axis; integers stay in their type."""
        ...

    def matmul(self, a: Value, b: Value) -> Value:
        """Multiply (…, m, k) by (…, k, n); leading axes broadcast. Ranks are at least 2."""
        ...

    def gather(self, data: Value, indices: Value, axis: int) -> Value:
        """Replace an axis of `data` by the shape of `indices` (int32 or int64; negative: from the end)."""
        ...

    def scatter(self, operator: str, data: Value, indices: Value, updates: Value) -> Value:
        """Return `data` [n, …] with `updates` [k, …] put at `indices` [k] along axis 0.

        "scatter": the last of equal indices wins; "scatter_add", "_mul", "_max", "_min" combine.
        """
        ...

    # Movement

    def move(self, x: Value, shape: Shape, strides: Shape, offset: Size = 0) -> Value:
        """Return the elements of `x` at offset + Σ ik·stride_k as a dense value of `shape`."""
        ...

    def raster(
        self, type_: DataType, shape: Shape, moves: Sequence[Move], fill: float | None = None
    ) -> Value:
        """Write a value from regions of others, later over earlier; `fill` first where they don't cover."""
        ...

    def reshape(self, x: Value, shape: Shape) -> Value:
        """Return the elements, in their order, in another shape of as many."""
        ...

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Return `x` with its axes in another order."""
        ...

    def broadcast(self, x: Value, shape: Shape) -> Value:
        """Repeat `x` to a shape that it broadcasts to."""
        ...

    def common_shape(self, *shapes: Shape) -> Shape:
        """Return the shape that all broadcast to."""
        ...

    # Control flow, and the rest

    def loop(
        self, limit: Size | None, carried: Sequence[Value], body: Callable[[Value, list[Value]], Round]
    ) -> list[Value]:
        """Run `body` until it says so, at most `limit` times (None: any number); return what it carried out.

        It gets the number of its round, an int64 scalar, and what is carried; the first round always runs
        unless `limit` is 0. Types stay the same from round to round.
        """
        ...

    def decode_image(self, data: Value, layout: str) -> Value:
        """Return the pixels of an encoded image, uint8 [n], as uint8 [height, width, channels].

        `layout`: "RGB", "BGR" or "Grayscale".
        """
        ...


def int_or_none(size: Size) -> int | None:
    """Return a size that is known; None for a formula."""
    return int(size) if isinstance(size, (int, np.integer)) else None


def product(sizes: Sequence[Size]) -> Size:
    """Return the product of sizes: 1 for none."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def contiguous_strides(shape: Shape) -> Shape:
    """Return the strides, in elements, of a dense row-major array."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def ceil_divide(a: Size, b: int) -> Size:
    """Return ⌈a / b⌉ for b > 0."""
    return -((-a) // b)

"""Writes a `Program`: atomic operators and rasters, folding what is known when the plan is made.

Rules of decomposition call it with `Value`s. A value that is known, or whose elements only depend on
dimensions, costs nothing until something that isn't reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.atomic import ATOMICS
from libs.runtime.elements import family, same_bits
from libs.runtime.plan import DataType
from services.engine.domain import reference, symbolic
from services.engine.domain.extents import Extent, Term, contiguous_strides
from services.engine.domain.reference import Array, numpy_type
from services.engine.domain.strings import Strings
from services.engine.domain.values import (
    FLOATS,
    MOST_AXES,
    STORED_FLOATS,
    UNSIGNED,
    Held,
    Move,
    Shape,
    Value,
    broadcast_shapes,
    compacted,
    count,
    permuted_strides,
    shape_text,
    static,
    where_text,
)

FOLDED_GROWTH_BYTES = 1 << 20
"""A constant that movement would make larger than this, and than its sources, is not folded."""


_LONG_SIZE = 300
"""Characters of a formula."""


class Builder(Strings):
    """Writes one program. Not thread-safe.

    Every method raises Invalid for types, shapes or sizes that the operator doesn't take; whoever calls the
    rule adds the node's name.
    """

    # Values

    def scalar(self, value: float, type_: DataType) -> Value:
        """Return one number as a value of no axes."""
        return self.constant(np.array(value).astype(numpy_type(type_)))

    def integers(self, values: Sequence[Extent | int]) -> Value:
        """Return a list of integers, which may depend on dimensions, as an int64 vector."""
        return self._from_elements(symbolic.elements_of(values, (len(values),)), DataType.INT64)

    def extent(self, extent: Extent | int, type_: DataType) -> Value:
        """Return one integer, which may depend on dimensions, as a scalar of any type."""
        elements = symbolic.elements_of([extent], ())
        return self.cast(self._from_elements(elements, DataType.INT64), type_)

    # Atomic operators

    def unary(self, operator: str, x: Value) -> Value:
        """Apply an elementwise operator of one input."""
        return self.elementwise(operator, x)

    def binary(self, operator: str, x: Value, y: Value) -> Value:
        """Apply an elementwise operator of two inputs, which broadcast."""
        return self.elementwise(operator, x, y)

    def where(self, condition: Value, x: Value, y: Value) -> Value:
        """Return x where the condition holds, y elsewhere; all three broadcast."""
        return self.elementwise("where", condition, x, y)

    def cast(self, x: Value, type_: DataType) -> Value:
        """Convert the elements; anything but 0 becomes true."""
        if x.type is type_:
            return x
        if DataType.STRING in (x.type, type_):
            (made,) = self.host("string_cast", [x], [(type_, x.shape)], integers=[type_])
            assert isinstance(made, Value)
            return made
        if x.elements is not None and type_ in (DataType.INT32, DataType.INT64):
            return Value(type_, x.shape, elements=x.elements)
        return self.elementwise("cast", x, result=type_)

    def elementwise(self, operator: str, *inputs: Value, result: DataType | None = None) -> Value:
        """Apply an elementwise operator to inputs of one type, which broadcast."""
        alike = inputs[1:] if operator == "where" else inputs
        if operator == "where" and inputs[0].type is not DataType.BOOL:
            raise Invalid(f"a condition is {inputs[0]}, not of booleans")
        if DataType.STRING in {value.type for value in alike}:
            return self._of_strings(operator, inputs, alike)
        if operator == "eq" and alike[0].type in STORED_FLOATS:
            return self.elementwise(operator, *(self.cast(value, DataType.FLOAT32) for value in alike))
        self._check_types(operator, alike)
        shape = self._shape(self.common_shape(*(value.shape for value in inputs)))
        if result is None:
            result = DataType.BOOL if ATOMICS[operator].result == "bool" else alike[0].type
        known = [value.known for value in inputs if value.known is not None]
        if len(known) == len(inputs) and self._may_fold(result, shape):
            return self.constant(reference.compute(operator, np.broadcast_arrays(*known), (), result))
        if (folded := self._fold_elements(operator, inputs, alike)) is not None:
            return folded
        read = tuple(self.broadcast(value, shape, fold=False) for value in inputs)
        return self._compute(operator, read, result, shape)

    def _of_strings(self, operator: str, inputs: tuple[Value, ...], alike: tuple[Value, ...]) -> Value:
        table, places = self._ranked(alike)
        if operator == "where":
            return self._of_places(table, self.where(inputs[0], *places))
        if operator not in ("eq", "lt", "le"):
            raise Invalid("elements of type string are not supported")
        return self.elementwise(operator, *places)

    def common_shape(self, *shapes: Shape) -> Shape:
        """Return the shape that all broadcast to.

        Sizes that may differ must be equal in every call, or one of them 1: sizes with names of their own
        are taken to be equal, what data decide may be either.
        """
        rank = max(len(shape) for shape in shapes)
        padded = [(Extent.of(1),) * (rank - len(shape)) + shape for shape in shapes]
        return tuple(self._common_size(sizes, shapes) for sizes in zip(*padded, strict=True))

    def _common_size(self, sizes: Sequence[Extent], shapes: Sequence[Shape]) -> Extent:
        total, *others = sizes
        for size in others:
            if total in (size, Extent.of(1)):
                total = size
            elif size.constant == 1 or self._same(total, size):
                continue
            elif size.constant is not None and total.constant is not None:
                texts = " and ".join(shape_text(shape) for shape in shapes)
                raise Invalid(f"shapes {texts} don't broadcast: {total} is not {size}")
            elif (total.dimensions | size.dimensions) & self.bounds.data or not (
                total.dimensions and size.dimensions
            ):
                total = self._either(total, size)
            else:
                self.equal(total, size)
                total = size if size.constant is not None else total
        return total

    def _same(self, a: Extent, b: Extent) -> bool:
        return a == b or (a, b) in self.bounds.equal or (b, a) in self.bounds.equal

    def not_one(self, size: Extent) -> Extent:
        """Return 0 where a size is 1, and 1 where it isn't."""
        away = symbolic.maximum(size - 1, 1 - size, self.bounds)
        return symbolic.minimum(Extent.of(1), away, self.bounds)

    def _either(self, a: Extent, b: Extent) -> Extent:
        """Return b where a is 1, and a elsewhere."""
        size = b + (a - b) * self.not_one(a)
        # What is added up from many of these gets a name.
        return size if len(str(size)) < _LONG_SIZE else self.size(self.extent(size, DataType.INT64))

    def _fold_elements(
        self, operator: str, inputs: tuple[Value, ...], alike: tuple[Value, ...]
    ) -> Value | None:
        parts = [self.elements(value) for value in alike]
        if any(part is None for part in parts):
            return None
        elements = count(broadcast_shapes(*(value.shape for value in inputs))).constant
        if elements is None or elements > symbolic.MOST_ELEMENTS:
            return None
        present = [part for part in parts if part is not None]
        if operator == "where":
            if inputs[0].known is None:
                return None
            chosen = np.where(inputs[0].known, *present)
            return self._from_elements(chosen, alike[0].type)
        if operator in ("eq", "lt", "le"):
            told = symbolic.compare(operator, present, self.bounds)
            return None if told is None else self.constant(told)
        found = symbolic.elementwise(operator, present, self.bounds)
        if found is None:
            return None
        return self._from_elements(found, alike[0].type)

    def reduce(self, operator: str, x: Value, axes: Sequence[int], *, keep: bool) -> Value:
        """Reduce along axes (0 … rank-1), which stay with size 1 if `keep`; none reduces nothing."""
        if not axes:
            return x
        self._check_types(operator, (x,))
        ordered = tuple(sorted(axes))
        shape = tuple(size for axis, size in enumerate(x.shape) if axis not in ordered)
        kept = tuple(Extent.of(1) if axis in ordered else size for axis, size in enumerate(x.shape))
        if x.elements is not None:
            found = symbolic.reduce(operator, x.elements, ordered)
            if found is not None:
                reduced = self._from_elements(found, x.type)
                return self.reshape(reduced, kept) if keep else reduced
        reduced = self._atomic(operator, (x,), x.type, shape, ordered)
        return self.reshape(reduced, kept) if keep else reduced

    def extreme_or(self, operator: str, x: Value, axes: Sequence[int], default: float) -> Value:
        """Return the largest (reduce_max) or smallest along axes, `default` where that is infinite."""
        found = self.reduce(operator, x, axes, keep=False)
        return self.where(self.is_inf(found), self.scalar(default, x.type), found)

    def arg_max(self, x: Value, axis: int) -> Value:
        """Return the int64 position of the first maximum along an axis, which goes; NaN is the largest."""
        self._check_types("arg_max", (x,))
        self._check_not_empty(x, (axis,))
        return self._atomic("arg_max", (x,), DataType.INT64, x.shape[:axis] + x.shape[axis + 1 :], (axis,))

    def arg_min(self, x: Value, axis: int) -> Value:
        """Return the int64 position of the first minimum along an axis, which goes; NaN is the smallest."""
        # Of integers the bits are turned round: the smallest has no negative.
        return self.arg_max(self.unary("neg" if x.type in FLOATS else "not", x), axis)

    def arg_sort(self, x: Value, axis: int) -> Value:
        """Return from where each element comes that puts an axis in order: ascending, stable, NaN last."""
        self._check_types("arg_sort", (x,))
        return self._atomic("arg_sort", (x,), DataType.INT64, x.shape, (axis,))

    def scatter(self, operator: str, data: Value, indices: Value, updates: Value) -> Value:
        """Put updates at indices along the first axis, or combine them with what is there.

        Args:
            operator: "scatter", "scatter_add", "scatter_mul", "scatter_max" or "scatter_min".
            data: [n, …].
            indices: [k], int32 or int64; negative ones count from the end.
            updates: [k, …].
        """
        if indices.type not in (DataType.INT32, DataType.INT64) or indices.rank != 1 or not data.rank:
            raise Invalid(f"indices are {indices} for {data}, not a vector of int32 or int64")
        if data.type is DataType.STRING:
            table, (old, new) = self._ranked([data, updates])
            return self._of_places(table, self.scatter(operator, old, indices, new))
        self._check_types(operator, (data, updates))
        shape = (*indices.shape, *data.shape[1:])
        if updates.rank != len(shape):
            raise Invalid(f"updates are {updates}, not {shape_text(shape)}")
        for size, wanted in zip(updates.shape, shape, strict=True):
            self.equal(size, wanted)
        updates = self.resized(updates, shape)
        return self._atomic(operator, (data, indices, updates), data.type, data.shape, ())

    def bit_cast(self, x: Value, type_: DataType) -> Value:
        """Return the same bits as elements of another type of as many; any but 0 are true."""
        if x.type is type_:
            return x
        if DataType.STRING in (x.type, type_) or not same_bits(x.type, type_):
            raise Invalid(f"{x} can't be seen as {type_.name.lower()}: elements are of other widths")
        if type_ is DataType.BOOL:
            bits = self.bit_cast(x, DataType.UINT8)
            return self.unary("not", self.binary("eq", bits, self.scalar(0, DataType.UINT8)))
        return self.elementwise("bit_cast", x, result=type_)

    # What a few of them make up

    def ceil(self, x: Value) -> Value:
        """Round up."""
        return self.unary("neg", self.unary("floor", self.unary("neg", x)))

    def is_nan(self, x: Value) -> Value:
        """Tell where there is no number: only that isn't equal to itself."""
        return self.unary("not", self.binary("eq", x, x))

    def is_inf(self, x: Value) -> Value:
        """Tell where numbers are infinite."""
        return self.binary("eq", self.unary("abs", x), self.scalar(np.inf, x.type))

    def sign(self, x: Value) -> Value:
        """Return -1, 0 or 1; NaN stays."""
        if x.elements is not None:
            found = symbolic.sign(x.elements, self.bounds)
            if found is not None:
                return self._from_elements(found, x.type)
        zero = self.scalar(0, x.type)
        above = self.cast(self.binary("lt", zero, x), x.type)
        if x.type in UNSIGNED:
            return above
        result = self.binary("sub", above, self.cast(self.binary("lt", x, zero), x.type))
        return self.where(self.is_nan(x), x, result) if x.type in FLOATS else result

    def fmod(self, x: Value, y: Value) -> Value:
        """Return the remainder with the sign of x, as C's fmod and the % of integers."""
        if x.type not in FLOATS:
            return self.binary("sub", x, self.binary("mul", self.binary("div", x, y), y))
        size = self.binary("mod", self.unary("abs", x), self.unary("abs", y))
        # −0.0 is no less than 0, but equal to what is left of it.
        left = self.where(self.binary("eq", size, x), x, size)
        negative = self.binary("lt", x, self.scalar(0, x.type))
        return self.where(negative, self.unary("neg", size), left)

    def _check_not_empty(self, x: Value, axes: tuple[int, ...]) -> None:
        for axis in axes:
            if (sizes := self._refuted(x.shape[axis], 1)) is not None:
                raise Invalid(f"axis {axis} of {x} is empty{where_text(sizes)}: it has no extreme")

    def cumulative_sum(self, x: Value, axis: int) -> Value:
        """Return the running sum along an axis."""
        self._check_types("cumulative_sum", (x,))
        return self._atomic("cumulative_sum", (x,), x.type, x.shape, (axis,))

    def gather(self, data: Value, indices: Value, axis: int) -> Value:
        """Take slices of `data` along an axis; negative indices count from the end."""
        if indices.type not in (DataType.INT32, DataType.INT64):
            raise Invalid(f"indices are {indices}, not int32 or int64")
        if data.type is DataType.STRING:
            table, (places,) = self._ranked([data])
            return self._of_places(table, self.gather(places, indices, axis))
        shape = self._shape(data.shape[:axis] + indices.shape + data.shape[axis + 1 :])
        if data.elements is not None and indices.known is not None:
            self._check_indices(data, indices.known, axis)
            # A scalar index would give the element itself instead of an array of it.
            taken = np.take(data.elements, indices.known.reshape(-1), axis=axis)
            sizes = [*data.elements.shape[:axis], *indices.known.shape, *data.elements.shape[axis + 1 :]]
            return self._from_elements(taken.reshape(sizes), data.type)
        if data.known is None and indices.known is not None and indices.known.size == 1:
            self._check_indices(data, indices.known, axis)
            return self._slice_of_one(data, int(indices.known.reshape(-1)[0]), axis, shape)
        return self._atomic("gather", (data, indices), data.type, shape, (axis,))

    def _check_indices(self, data: Value, indices: Array, axis: int) -> None:
        size = data.shape[axis].constant
        if size is not None and indices.size and not (-size <= indices.min() and indices.max() < size):
            raise Invalid(f"an index is outside of {-size} to {size - 1}, the range of axis {axis}")

    def _slice_of_one(self, data: Value, index: int, axis: int, shape: Shape) -> Value:
        strides = contiguous_strides(data.shape)
        start = Extent.of(index) + (data.shape[axis] if index < 0 else 0)
        sizes = (*data.shape[:axis], Extent.of(1), *data.shape[axis + 1 :])
        destination = contiguous_strides(sizes)
        move = Move(data, sizes, strides, start * strides[axis], destination, Extent.of(0))
        return self.raster(data.type, shape, [move])

    def matmul(self, a: Value, b: Value) -> Value:
        """Multiply (…, m, k) by (…, k, n); leading axes broadcast. Ranks are at least 2."""
        self._check_types("matmul", (a, b))
        columns, rows = a.shape[-1], b.shape[-2]
        if columns != rows:
            if columns.constant is not None and rows.constant is not None:
                raise Invalid(f"{a} can't be multiplied by {b}: {columns} columns, {rows} rows")
            self.equal(columns, rows)
        leading = self.common_shape(a.shape[:-2], b.shape[:-2])
        left = self.broadcast(a, (*leading, a.shape[-2], columns), fold=False)
        right = self.resized(b, (*leading, columns, b.shape[-1]))
        return self._atomic("matmul", (left, right), a.type, (*leading, a.shape[-2], b.shape[-1]), ())

    # Movement

    def raster(
        self, type_: DataType, shape: Shape, moves: Sequence[Move], fill: float | None = None
    ) -> Value:
        """Write a value from regions of others; `fill` first, where they don't cover it."""
        self._shape(shape)
        if type_ is DataType.STRING:
            return self._raster_of_strings(shape, moves, fill)
        kept = [compacted(move) for move in moves if all(size.constant != 0 for size in move.sizes)]
        for move in kept:
            if len(move.sizes) > MOST_AXES:
                raise Invalid(f"data would be moved along more than {MOST_AXES} axes")
            self._check_reach(move.source.shape, move.offset, move.sizes, move.strides)
            self._check_reach(shape, move.destination, move.sizes, move.destination_strides)
        filling = None if fill is None else np.array(fill).astype(numpy_type(type_))
        if filling is None and not kept:
            filling = np.zeros((), numpy_type(type_))  # nothing to write: the value is empty
        if (folded := self._fold_raster(type_, shape, kept, filling)) is not None:
            return folded
        return self._move(type_, shape, kept, filling)

    def _raster_of_strings(self, shape: Shape, moves: Sequence[Move], fill: float | None) -> Value:
        """Move places in a table; a fill is the empty string."""
        blank = self.constant(np.array("", np.object_))
        sources = [move.source for move in moves] + ([blank] if fill is not None or not moves else [])
        table, places = self._ranked(sources)
        if len(places) > len(moves):
            whole = self.broadcast(places[-1], shape, fold=False)
            strides = contiguous_strides(shape)
            first = [Move(whole, shape, strides, Extent.of(0), strides, Extent.of(0))]
        else:
            first = []
        moved = [replace(move, source=place) for move, place in zip(moves, places, strict=False)]
        return self._of_places(table, self.raster(DataType.INT64, shape, [*first, *moved]))

    def _check_reach(self, shape: Shape, offset: Extent, sizes: Shape, strides: Shape) -> None:
        """Check that a region stays inside an array, at all sizes that are tried."""
        if sizes == shape and offset.constant == 0 and strides == contiguous_strides(shape):
            return
        numbers = (count(shape), offset, *sizes, *strides)
        names = {name for number in numbers for name in number.dimensions}
        for at in self.bounds.samples(names) if names else ({},):
            total, start, *rest = (number.evaluate(at) for number in numbers)
            if 0 in rest[: len(sizes)]:
                continue
            steps = [(size - 1) * stride for size, stride in zip(rest, rest[len(sizes) :], strict=False)]
            low = start + sum(step for step in steps if step < 0)
            high = start + sum(step for step in steps if step > 0)
            if low < 0 or high >= total:
                raise Invalid(f"it reaches outside of an array of shape {shape_text(shape)}{where_text(at)}")

    def _fold_raster(
        self, type_: DataType, shape: Shape, moves: list[Move], fill: Array | None
    ) -> Value | None:
        sizes = static(shape)
        if sizes is None:
            return None
        array: np.ndarray[Any, Any]
        parts: list[Any]
        if all(move.source.known is not None for move in moves):
            limit = max(
                [
                    FOLDED_GROWTH_BYTES,
                    *(move.source.known.nbytes for move in moves if move.source.known is not None),
                ]
            )
            if not self._may_fold(type_, shape, limit):
                return None
            array, parts = np.empty(sizes, numpy_type(type_)), [move.source.known for move in moves]
        else:
            parts = [self.elements(move.source) for move in moves]
            if any(part is None for part in parts) or count(shape).constant not in range(
                symbolic.MOST_ELEMENTS + 1
            ):
                return None
            array = symbolic.elements_of([0] * int(np.prod(sizes)), sizes)
        if fill is not None:
            array[...] = Extent.of(int(fill)) if array.dtype == np.object_ else fill
        for part, move in zip(parts, moves, strict=True):
            numbers = [static(extents_) for extents_ in (move.sizes, move.strides, move.destination_strides)]
            offset, destination = move.offset.constant, move.destination.constant
            if None in numbers or offset is None or destination is None:
                return None
            box, strides, steps = (number for number in numbers if number is not None)
            source = reference.strided(part, offset, box, strides)
            reference.strided(array, destination, box, steps)[...] = source
        return self._from_elements(array, type_) if array.dtype == np.object_ else self.constant(array)

    def move(self, x: Value, shape: Shape, strides: Shape, offset: Extent | int = 0) -> Value:
        """Return the elements of `x` at offset + Σ ik·stride_k as a dense value of `shape`."""
        move = Move(x, shape, strides, Extent.of(offset), contiguous_strides(shape), Extent.of(0))
        return self.raster(x.type, shape, [move])

    def joined(self, values: Sequence[Value], axis: int) -> Value:
        """Return values joined along an axis that they have; their other sizes must be equal."""
        first = values[0]
        total = Extent.of(0)
        for value in values:
            if value.type is not first.type or value.rank != first.rank:
                raise Invalid(f"{first} and {value} can't be joined along axis {axis}")
            for place, (size, other) in enumerate(zip(first.shape, value.shape, strict=True)):
                if place == axis or size == other:
                    continue
                if size.constant is not None and other.constant is not None:
                    raise Invalid(f"{first} and {value} can't be joined along axis {axis}")
                self.equal(size, other)
            total = total + value.shape[axis]
        shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
        strides = contiguous_strides(shape)
        moves, start = [], Extent.of(0)
        for value in values:
            own = contiguous_strides(value.shape)
            box = (*shape[:axis], value.shape[axis], *shape[axis + 1 :])
            moves.append(Move(value, box, own, Extent.of(0), strides, start * strides[axis]))
            start = start + value.shape[axis]
        return first if len(values) == 1 else self.raster(first.type, shape, moves)

    def flip(self, x: Value, axis: int) -> Value:
        """Return `x` with an axis in reverse order."""
        strides = list(contiguous_strides(x.shape))
        offset = (x.shape[axis] - 1) * strides[axis]
        strides[axis] = -strides[axis]
        return self.move(x, x.shape, tuple(strides), offset)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Return `x` with its axes in another order."""
        order = tuple(order)
        if order == tuple(range(x.rank)):
            return x
        return self.move(x, tuple(x.shape[axis] for axis in order), permuted_strides(x.shape, order))

    def broadcast(self, x: Value, shape: Shape, *, fold: bool = True) -> Value:
        """Repeat `x` to a shape that it broadcasts to; a constant stays small unless `fold`."""
        if x.shape == shape:
            return x
        strides = self._repeating(x, shape)
        if fold or x.known is None or x.type is DataType.STRING:
            return self.move(x, shape, strides)
        zero = Extent.of(0)
        return self._move(x.type, shape, [Move(x, shape, strides, zero, contiguous_strides(shape), zero)])

    def _repeating(self, x: Value, shape: Shape) -> Shape:
        """Return strides that read `x` as a value of a shape that it broadcasts to: 0 where it repeats."""
        if x.rank > len(shape):
            raise Invalid(f"{x} doesn't broadcast to {shape_text(shape)}")
        strides = [Extent.of(0)] * (len(shape) - x.rank)
        sizes = zip(x.shape, shape[len(strides) :], contiguous_strides(x.shape), strict=True)
        for size, target, stride in sizes:
            if size.constant == 1 and target.constant != 1:
                strides.append(Extent.of(0))
            elif self._same(size, target):
                strides.append(stride)
            elif size.constant is not None and target.constant is not None:
                raise Invalid(f"{x} doesn't broadcast to {shape_text(shape)}")
            elif size.constant is not None:
                self.equal(target, size)
                strides.append(stride)
            else:
                self.equal((size - 1) * (size - target), Extent.of(0))
                strides.append(stride * self.not_one(size))
        return tuple(strides)

    def reshape(self, x: Value, shape: Shape) -> Value:
        """Return the elements of `x`, in their order, in another shape of as many."""
        if x.shape == shape:
            return x
        before, after = count(x.shape), count(self._shape(shape))
        if before.constant is not None and after.constant is not None and before != after:
            raise Invalid(f"{x} can't be reshaped to {shape_text(shape)}: {before} elements, not {after}")
        if before != after and (sizes := self._refuted(before, after) or self._refuted(after, before)):
            raise Invalid(f"{x} can't be reshaped to {shape_text(shape)}{where_text(sizes)}")
        self.equal(before, after)
        if (fixed := static(shape)) is not None and before == after:
            if x.known is not None:
                return Value(x.type, shape, known=x.known.reshape(fixed))
            if x.elements is not None:
                return Value(x.type, shape, elements=x.elements.reshape(fixed))
        one = (Extent.of(1),)
        return self.raster(x.type, shape, [Move(x, (after,), one, Extent.of(0), one, Extent.of(0))])

    def _check_types(self, operator: str, inputs: Sequence[Value]) -> None:
        first = inputs[0]
        for other in inputs[1:]:
            if other.type is not first.type:
                raise Invalid(f"inputs {first} and {other} are not of one type")
        if family(first.type) not in ATOMICS[operator].types:
            raise Invalid(f"elements of type {first.type.name.lower()} are not supported")

    def _atomic(
        self, operator: str, inputs: tuple[Value, ...], type_: DataType, shape: Shape, axes: tuple[int, ...]
    ) -> Value:
        self._shape(shape)
        known = [value.known for value in inputs if value.known is not None]
        if len(known) == len(inputs) and self._may_fold(type_, shape):
            return self.constant(reference.compute(operator, known, axes, type_))
        return self._compute(operator, inputs, type_, shape, axes)

    def resized(self, x: Value, shape: Shape) -> Value:
        """Return `x` broadcast to a shape, some sizes of which are only known to be equal to its own."""
        if x.shape != shape:
            zero, strides = Extent.of(0), self._repeating(x, shape)
            return self._move(x.type, shape, [Move(x, shape, strides, zero, contiguous_strides(shape), zero)])
        return x

    def _as_int64(self, value: Value) -> Value:
        return self.cast(value, DataType.INT64)

    def _made(self, value: Value | Held) -> Value | Held | None:
        if isinstance(value, Held):
            return None if value.items is None else self._made_of_items(value)
        if value.elements is not None:
            return self._materialise(value)
        return self._made_of_places(value) if value.type is DataType.STRING else None

    def _materialise(self, value: Value) -> Value:
        assert value.elements is not None
        scalars = [self._scalar(element) for element in value.elements.reshape(-1)]
        moves = [
            Move(scalar, (), (), Extent.of(0), (), Extent.of(position))
            for position, scalar in enumerate(scalars)
        ]
        return self.cast(self.raster(DataType.INT64, value.shape, moves), value.type)

    def _scalar(self, extent: Extent) -> Value:
        """Return an extent as a scalar that is computed at run time: a dimension is a sum of so many ones."""
        if extent.constant is not None:
            return self.scalar(extent.constant, DataType.INT64)
        known = next((layer.scalars[extent] for layer in self._layers if extent in layer.scalars), None)
        if known is None:
            total: Value | None = None
            for monomial, coefficient in extent.terms:
                part = self.scalar(coefficient, DataType.INT64)
                for atom in monomial:
                    part = self.binary("mul", part, self._factor(atom))
                total = part if total is None else self.binary("add", total, part)
            assert total is not None
            known = self._layers[-1].scalars[extent] = total
        return known

    def _factor(self, atom: str | Term) -> Value:
        if isinstance(atom, str):
            one = self.scalar(1, DataType.INT64)
            ones = self.broadcast(one, (Extent.dimension(atom),), fold=False)
            return self.reduce("reduce_sum", ones, (0,), keep=False)
        left, right = self._scalar(atom.left), self._scalar(atom.right)
        if atom.operator in ("minimum", "maximum"):
            return self.binary(atom.operator[:3], left, right)
        rest = self.binary("mod", left, right)
        if atom.operator == "modulo":
            return rest
        return self.binary("div", self.binary("sub", left, rest), right)

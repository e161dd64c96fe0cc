"""Atomic operators, folded where what they read is known, or only depends on dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.atomic import ATOMICS
from libs.runtime.elements import same_bits
from libs.runtime.plan import DataType
from services.engine.domain import reference, symbolic
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.moves import Moves
from services.engine.domain.reference import Array
from services.engine.domain.values import (
    STORED_FLOATS,
    Move,
    Shape,
    Value,
    broadcast_shapes,
    count,
    shape_text,
    where_text,
)


class Atomics(Moves):
    """The part of `Builder` that writes atomic operators."""

    # Elementwise

    def unary(self, operator: str, x: Value) -> Value:
        """Apply an elementwise operator of one input."""
        return self.elementwise(operator, x)

    def binary(self, operator: str, x: Value, y: Value) -> Value:
        """Apply an elementwise operator of two inputs, which broadcast."""
        return self.elementwise(operator, x, y)

    def where(self, condition: Value, x: Value, y: Value) -> Value:
        """Return x where the condition holds, y elsewhere; all three broadcast."""
        return self.elementwise("where", condition, x, y)

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

    # Along axes

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

    def arg_max(self, x: Value, axis: int) -> Value:
        """Return the int64 position of the first maximum along an axis, which goes; NaN is the largest."""
        self._check_types("arg_max", (x,))
        self._check_not_empty(x, (axis,))
        return self._atomic("arg_max", (x,), DataType.INT64, x.shape[:axis] + x.shape[axis + 1 :], (axis,))

    def arg_sort(self, x: Value, axis: int) -> Value:
        """Return from where each element comes that puts an axis in order: ascending, stable, NaN last."""
        self._check_types("arg_sort", (x,))
        return self._atomic("arg_sort", (x,), DataType.INT64, x.shape, (axis,))

    def _check_not_empty(self, x: Value, axes: tuple[int, ...]) -> None:
        for axis in axes:
            if (sizes := self._refuted(x.shape[axis], 1)) is not None:
                raise Invalid(f"axis {axis} of {x} is empty{where_text(sizes)}: it has no extreme")

    def cumulative_sum(self, x: Value, axis: int) -> Value:
        """Return the running sum along an axis."""
        self._check_types("cumulative_sum", (x,))
        return self._atomic("cumulative_sum", (x,), x.type, x.shape, (axis,))

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

    # By indices

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

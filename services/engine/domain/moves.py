"""Movement: values written from regions of others, folded where they are known when the plan is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain import reference, symbolic
from services.engine.domain.broadcasting import Broadcasting
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.reference import Array, numpy_type
from services.engine.domain.values import (
    MOST_AXES,
    Move,
    Shape,
    Value,
    compacted,
    count,
    permuted_strides,
    shape_text,
    static,
    where_text,
)

FOLDED_GROWTH_BYTES = 1 << 20
"""A constant that movement would make larger than this, and than its sources, is not folded."""


class Moves(Broadcasting):
    """The part of `Builder` that moves data."""

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

    def stack(self, values: Sequence[Value]) -> Value:
        """Return values of one type and shape stacked along a new first axis."""
        first = values[0]
        for value in values[1:]:
            if value.type is not first.type or value.rank != first.rank:
                raise Invalid(f"{first} and {value} can't be stacked")
            for size, other in zip(first.shape, value.shape, strict=True):
                self.equal(size, other)
        strides, step = contiguous_strides(first.shape), count(first.shape)
        moves = [
            Move(value, first.shape, strides, Extent.of(0), strides, step * place)
            for place, value in enumerate(values)
        ]
        return self.raster(first.type, (Extent.of(len(values)), *first.shape), moves)

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

    def resized(self, x: Value, shape: Shape) -> Value:
        """Return `x` broadcast to a shape, some sizes of which are only known to be equal to its own."""
        if x.shape != shape:
            zero, strides = Extent.of(0), self._repeating(x, shape)
            return self._move(x.type, shape, [Move(x, shape, strides, zero, contiguous_strides(shape), zero)])
        return x

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

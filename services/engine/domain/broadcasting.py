"""The shape that several broadcast to, where sizes may only be known in a call."""

from __future__ import annotations

from collections.abc import Sequence

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain import symbolic
from services.engine.domain.composed import Source
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.sizes import Sizes
from services.engine.domain.values import Shape, Value, shape_text

_LONG_SIZE = 300
"""Characters of a formula."""


class Broadcasting(Sizes):
    """The part of `Builder` that says to which shape values broadcast, and how they are read there."""

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

    def not_one(self, size: Extent) -> Extent:
        """Return 0 where a size is 1, and 1 where it isn't."""
        away = symbolic.maximum(size - 1, 1 - size, self.bounds)
        return symbolic.minimum(Extent.of(1), away, self.bounds)

    def _same(self, a: Extent, b: Extent) -> bool:
        return a == b or (a, b) in self.bounds.equal or (b, a) in self.bounds.equal

    def _either(self, a: Extent, b: Extent) -> Extent:
        """Return b where a is 1, and a elsewhere."""
        size = b + (a - b) * self.not_one(a)
        if len(str(size)) < _LONG_SIZE:
            return size
        # What is added up from many of these gets a name: it is computed, and read as what data decide.
        return self._dimension(Source(self._number(self.extent(size, DataType.INT64)), element=0))

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

"""Numbers that become values, and values that become sizes; values of other types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.atomic import ATOMICS
from libs.runtime.elements import family
from libs.runtime.plan import DataType
from services.engine.domain import reference, symbolic
from services.engine.domain.composed import Source
from services.engine.domain.extents import Extent
from services.engine.domain.reference import numpy_type
from services.engine.domain.strings import Strings
from services.engine.domain.symbolic import MOST_ELEMENTS
from services.engine.domain.values import Shape, Value, count


class Sizes(Strings):
    """The part of `Builder` that turns numbers and sizes into values, and back."""

    def scalar(self, value: float, type_: DataType) -> Value:
        """Return one number as a value of no axes."""
        return self.constant(np.array(value).astype(numpy_type(type_)))

    def integer(self, value: int) -> Value:
        """Return one int64 that is known."""
        return self.scalar(value, DataType.INT64)

    def integers(self, values: Sequence[Extent | int]) -> Value:
        """Return a list of integers, which may depend on dimensions, as an int64 vector."""
        return self._from_elements(symbolic.elements_of(values, (len(values),)), DataType.INT64)

    def extent(self, extent: Extent | int, type_: DataType) -> Value:
        """Return one integer, which may depend on dimensions, as a scalar of any type."""
        elements = symbolic.elements_of([extent], ())
        return self.cast(self._from_elements(elements, DataType.INT64), type_)

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
        self._check_types("cast", (x,))
        return self._atomic("cast", (x,), type_, x.shape, ())

    def sizes(self, value: Value) -> Shape:
        """Return the elements of an integer vector as sizes, in row-major order.

        At run time none may be below 0. What is known when the plan is made costs nothing; otherwise each
        is a dimension that data decide, and what uses it runs after what computes it. Raises Invalid for
        more than 256 elements, or an unknown number, and for sizes that are surely below 0.
        """
        found = self.elements(value)
        if found is not None:
            known: Shape = tuple(found.reshape(-1))
            for size in known:
                if self.bounds.range(size)[1] < 0:
                    raise Invalid(f"a size is {size}; it must be at least 0")
            return known
        elements = count(value.shape).constant
        if elements is None or elements > MOST_ELEMENTS:
            raise Invalid(
                f"{value} is no short list of sizes, of a length that is known when the plan is made"
            )
        number = self._number(self.cast(value, DataType.INT64))
        return tuple(self._dimension(Source(number, element=place)) for place in range(elements))

    def size(self, value: Value) -> Extent:
        """Return a single integer as a size; see `sizes`."""
        found = self.sizes(value)
        if len(found) != 1:
            raise Invalid(f"{value} is not one number")
        return found[0]

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

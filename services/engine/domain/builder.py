"""Writes a `Program`: atomic operators and rasters, folding what is known when the plan is made.

Rules of decomposition call it with `Value`s. A value that is known, or whose elements only depend on
dimensions, costs nothing until something that isn't reads it.

A builder is built up in layers, each in a file of its own, each using those below it:

    Builder       builder.py        what a few operators make up; values that are computed after all
    Loops         loops.py
    Flow          flow.py           branches
    Lists         lists.py          sequences and optionals
    Atomics       atomics.py        atomic operators
    Moves         moves.py          rasters, and what they are good for
    Broadcasting  broadcasting.py   common shapes
    Sizes         sizes.py          numbers as values, values as sizes
    Strings       strings.py
    Host          host.py           host operators
    Writer        writer.py         numbers of values, constants, blocks, limits
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from libs.runtime.plan import DataType
from services.engine.domain import symbolic
from services.engine.domain.extents import Extent, Term
from services.engine.domain.loops import Loops
from services.engine.domain.values import FLOATS, UNSIGNED, Held, Move, Value


class Builder(Loops):
    """Writes one program. Not thread-safe.

    Every method raises Invalid for types, shapes or sizes that the operator doesn't take; whoever calls the
    rule adds the node's name.
    """

    # What a few operators make up

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

    def extreme_or(self, operator: str, x: Value, axes: Sequence[int], default: float) -> Value:
        """Return the largest (reduce_max) or smallest along axes, `default` where that is infinite."""
        found = self.reduce(operator, x, axes, keep=False)
        return self.where(self.is_inf(found), self.scalar(default, x.type), found)

    def arg_min(self, x: Value, axis: int) -> Value:
        """Return the int64 position of the first minimum along an axis, which goes; NaN is the smallest."""
        # Of integers the bits are turned round: the smallest has no negative.
        return self.arg_max(self.unary("neg" if x.type in FLOATS else "not", x), axis)

    # Values of which it is only known how they are computed

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

"""The plan's table of extents: formulas as operations over earlier entries, each distinct one once."""

from __future__ import annotations

from collections.abc import Sequence

from libs.runtime import plan as plans
from libs.runtime.plan import Operation
from services.engine.domain.extents import Atom, Extent, Monomial

_OPERATIONS = {
    "floor_divide": Operation.FLOOR_DIVIDE,
    "modulo": Operation.MODULO,
    "minimum": Operation.MINIMUM,
    "maximum": Operation.MAXIMUM,
}


class ExtentTable:
    """Grows with what is asked of it. Not for several threads."""

    def __init__(self, dimensions: Sequence[str]) -> None:
        """`dimensions`: names in the plan's order."""
        self._dimensions = {name: index for index, name in enumerate(dimensions)}
        self._entries: dict[plans.Extent, int] = {}
        self._known: dict[Extent, int] = {}

    @property
    def extents(self) -> tuple[plans.Extent, ...]:
        """The entries so far."""
        return tuple(self._entries)

    def index(self, extent: Extent) -> int:
        """Return the number of the entry that holds `extent`; raises KeyError for an unknown dimension."""
        known = self._known.get(extent)
        if known is None:
            known = self._known[extent] = self._sum(extent)
        return known

    def _entry(self, operation: Operation, value: int = 0, left: int = 0, right: int = 0) -> int:
        return self._entries.setdefault(plans.Extent(operation, value, left, right), len(self._entries))

    def _constant(self, value: int) -> int:
        return self._entry(Operation.CONSTANT, value)

    def _sum(self, extent: Extent) -> int:
        total: int | None = None
        for monomial, coefficient in extent.terms:
            part = self._product(monomial, abs(coefficient) if total is not None else coefficient)
            if total is None:
                total = part
            else:
                operation = Operation.ADD if coefficient > 0 else Operation.SUBTRACT
                total = self._entry(operation, left=total, right=part)
        return self._constant(0) if total is None else total

    def _product(self, monomial: Monomial, coefficient: int) -> int:
        if not monomial:
            return self._constant(coefficient)
        first, *others = monomial
        total = self._atom(first)
        for atom in others:
            total = self._entry(Operation.MULTIPLY, left=total, right=self._atom(atom))
        if coefficient != 1:
            total = self._entry(Operation.MULTIPLY, left=total, right=self._constant(coefficient))
        return total

    def _atom(self, atom: Atom) -> int:
        if isinstance(atom, str):
            return self._entry(Operation.DIMENSION, left=self._dimensions[atom])
        left, right = self.index(atom.left), self.index(atom.right)
        return self._entry(_OPERATIONS[atom.operator], left=left, right=right)

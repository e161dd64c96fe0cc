"""Integers that depend on named dimensions, in a normal form: polynomials over dimensions and terms.

`Extent` supports +, -, *, //, %, with ints on either side, and is equal to another exactly when both have the
same normal form. `//` and `%` simplify where the division is exact; otherwise they become terms of their own.
What can't be decided from the normal form is asked of `Bounds` (`bounds.py`), which knows each dimension's
range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Operator = Literal["floor_divide", "modulo", "minimum", "maximum"]


@dataclass(frozen=True)
class Term:
    """A function of two extents that has no polynomial form."""

    operator: Operator
    left: Extent
    right: Extent

    # Formulas nest deep, and are looked up often.
    @cached_property
    def _hash(self) -> int:
        return hash((self.operator, self.left, self.right))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def key(self) -> str:
        """Text that orders terms and tells them apart."""
        signs = {"floor_divide": "//", "modulo": "%"}
        if self.operator in signs:
            return f"(({self.left}) {signs[self.operator]} ({self.right}))"
        return f"{'min' if self.operator == 'minimum' else 'max'}({self.left}, {self.right})"


Atom = str | Term
"""The name of a dimension, or a term."""
Monomial = tuple[Atom, ...]
"""Factors in order; a power repeats its factor."""


def _key(atom: Atom) -> str:
    return atom if isinstance(atom, str) else atom.key


def _order(monomial: Monomial) -> tuple[int, list[str]]:
    return -len(monomial), [_key(atom) for atom in monomial]


@dataclass(frozen=True)
class Extent:
    """A polynomial: `terms` are (monomial, coefficient ≠ 0) pairs in a fixed order; () is 0."""

    terms: tuple[tuple[Monomial, int], ...]

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    @staticmethod
    def of(value: Extent | int) -> Extent:
        """Return `value` as an extent."""
        if isinstance(value, Extent):
            return value
        return Extent((((), value),) if value else ())

    @staticmethod
    def dimension(name: str) -> Extent:
        """Return the size of a named dimension."""
        return Extent((((name,), 1),))

    @staticmethod
    def _sum(parts: Iterable[tuple[Monomial, int]]) -> Extent:
        total: dict[Monomial, int] = {}
        for monomial, coefficient in parts:
            total[monomial] = total.get(monomial, 0) + coefficient
        kept = [(monomial, coefficient) for monomial, coefficient in total.items() if coefficient]
        if len(kept) < 2:
            return Extent(tuple(kept))
        return Extent(tuple(sorted(kept, key=lambda pair: _order(pair[0]))))

    @staticmethod
    def _term(operator: Operator, left: Extent, right: Extent) -> Extent:
        return Extent((((Term(operator, left, right),), 1),))

    @property
    def constant(self) -> int | None:
        """The value, if it depends on nothing."""
        if not self.terms:
            return 0
        return self.terms[0][1] if self.terms[0][0] == () else None

    @cached_property
    def dimensions(self) -> frozenset[str]:
        """Names of the dimensions that it depends on."""
        names: set[str] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                names |= {atom} if isinstance(atom, str) else atom.left.dimensions | atom.right.dimensions
        return frozenset(names)

    def __add__(self, other: Extent | int) -> Extent:
        other = Extent.of(other)
        if not self.terms or not other.terms:
            return self if self.terms else other
        return Extent._sum((*self.terms, *other.terms))

    __radd__ = __add__

    def __neg__(self) -> Extent:
        return Extent(tuple((monomial, -coefficient) for monomial, coefficient in self.terms))

    def __sub__(self, other: Extent | int) -> Extent:
        return self + -Extent.of(other)

    def __rsub__(self, other: int) -> Extent:
        return Extent.of(other) + -self

    def __mul__(self, other: Extent | int) -> Extent:
        other = Extent.of(other)
        for factor, scale in ((self, other.constant), (other, self.constant)):
            if scale is not None:
                # The order of the terms doesn't depend on their coefficients.
                return Extent(tuple((monomial, x * scale) for monomial, x in factor.terms if scale))
        return Extent._sum(
            (tuple(sorted((*a, *b), key=_key)), x * y) for a, x in self.terms for b, y in other.terms
        )

    __rmul__ = __mul__

    def exact_quotient(self, divisor: Extent | int) -> Extent | None:
        """Return self / divisor if that is a polynomial for a divisor of one monomial; None otherwise."""
        divisor = Extent.of(divisor)
        if self == divisor and self.terms:
            return Extent.of(1)
        if len(divisor.terms) != 1:
            return self._long_division(divisor) if divisor.terms else None
        (factors, scale), parts = divisor.terms[0], []
        for monomial, coefficient in self.terms:
            left = list(monomial)
            for factor in factors:
                if factor not in left:
                    return None
                left.remove(factor)
            if coefficient % scale:
                return None
            parts.append((tuple(left), coefficient // scale))
        return Extent._sum(parts)

    def _long_division(self, divisor: Extent) -> Extent | None:
        rest, quotient = self, Extent.of(0)
        lead = Extent((divisor.terms[0],))
        for _ in range(16):
            if not rest.terms:
                return quotient
            part = Extent((rest.terms[0],)).exact_quotient(lead)
            if part is None:
                return None
            quotient, rest = quotient + part, rest - part * divisor
        return None

    def __floordiv__(self, other: Extent | int) -> Extent:
        divisor = Extent.of(other)
        if divisor.constant == 0:
            raise ZeroDivisionError("an extent is divided by 0")
        exact = self.exact_quotient(divisor)
        if exact is not None:
            return exact
        if self.constant is not None and divisor.constant is not None:
            return Extent.of(self.constant // divisor.constant)
        return Extent._term("floor_divide", self, divisor)

    def __mod__(self, other: Extent | int) -> Extent:
        divisor = Extent.of(other)
        if divisor.constant == 0:
            raise ZeroDivisionError("an extent is divided by 0")
        if self.exact_quotient(divisor) is not None:
            return Extent.of(0)
        if self.constant is not None and divisor.constant is not None:
            return Extent.of(self.constant % divisor.constant)
        return Extent._term("modulo", self, divisor)

    def __rfloordiv__(self, other: int) -> Extent:
        return Extent.of(other) // self

    def evaluate(self, dimensions: Mapping[str, int]) -> int:
        """Return its value; raises KeyError for an unknown dimension, ZeroDivisionError by 0."""
        total = 0
        for monomial, coefficient in self.terms:
            product = coefficient
            for atom in monomial:
                product *= dimensions[atom] if isinstance(atom, str) else _apply(atom, dimensions)
            total += product
        return total

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        words = []
        for monomial, coefficient in self.terms:
            factors = [_key(atom) for atom in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            words.append(("-" if coefficient < 0 else "+", "*".join(factors)))
        first, *others = words
        return (
            ("-" if first[0] == "-" else "") + first[1] + "".join(f" {sign} {text}" for sign, text in others)
        )


_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {
    "floor_divide": lambda a, b: a // b,
    "modulo": lambda a, b: a % b,
    "minimum": min,
    "maximum": max,
}


def _apply(term: Term, dimensions: Mapping[str, int]) -> int:
    return _FUNCTIONS[term.operator](term.left.evaluate(dimensions), term.right.evaluate(dimensions))


def minimum(a: Extent | int, b: Extent | int) -> Extent:
    """Return the smaller of two extents."""
    return _choose("minimum", a, b)


def maximum(a: Extent | int, b: Extent | int) -> Extent:
    """Return the larger of two extents."""
    return _choose("maximum", a, b)


def _choose(operator: Literal["minimum", "maximum"], a: Extent | int, b: Extent | int) -> Extent:
    a, b = Extent.of(a), Extent.of(b)
    difference = (a - b).constant
    if difference is not None:
        return a if (difference <= 0) == (operator == "minimum") else b
    return Extent._term(operator, a, b)


def product(sizes: Iterable[Extent | int]) -> Extent:
    """Return the product of sizes: 1 for none."""
    total = Extent.of(1)
    for size in sizes:
        total = total * size
    return total


def contiguous_strides(shape: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """Return the strides, in elements, of a dense row-major array."""
    strides: list[Extent] = []
    step = Extent.of(1)
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))

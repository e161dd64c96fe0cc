"""Element numbers as digits: the algebra that composes regions.

A region of a raster writes element base + Σ d_m·w_m of a value for all digits 0 ≤ d_m < size_m; the weights
w_m are its destination strides. What reads that value reads elements offset + Σ i_k·s_k. Each s_k, and the
offset less the base, is split over the weights by long division, so that digit m is a linear function of the
reader's indices: D_m(i) = c_m + Σ_k q_mk·i_k. Where every D_m stays in [0, size_m), the reader reads exactly
what the region wrote, and its digits are the region's indices.

Whether elements are *outside* of a region needs the digits to be unique. They are where each D_m, together
with [0, size_m), spans at most the radix, w_{m-1} / w_m. An axis that runs over a radix is split at it first.
The approach is that of MNN's geometric computing (Lv et al., "Walle", OSDI 2022), over polynomials.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.domain.bounds import Bounds
from services.engine.domain.extents import Atom, Extent

_MOST_DIVISIONS = 32


@dataclass(frozen=True, slots=True)
class Weight:
    """One digit of a region: its weight, how many values it takes, and the step in the region's source."""

    weight: Extent
    size: Extent
    source: Extent
    radix: Extent | None
    """How many values it could take; None where it isn't known."""


@dataclass(frozen=True, slots=True)
class Digit:
    """A digit as a linear function of the reader's indices."""

    constant: Extent
    factors: tuple[Extent, ...]
    """One for each axis of the reader."""

    def span(self, sizes: tuple[Extent, ...], bounds: Bounds) -> tuple[Extent, Extent] | None:
        """Return the (lowest, highest) value over all indices; None where a factor's sign isn't known."""
        low = high = self.constant
        for factor, size in zip(self.factors, sizes, strict=True):
            if bounds.at_least(factor, 0):
                high = high + factor * (size - 1)
            elif bounds.at_least(-factor, 0):
                low = low + factor * (size - 1)
            else:
                return None
        return low, high


def divide(value: Extent, divisor: Extent) -> tuple[Extent, Extent]:
    """Return (quotient, rest) with value = quotient·divisor + rest, the rest free of the divisor's lead.

    Coefficients are divided towards zero, so that small numbers of either sign are rests.
    """
    (factors, scale), quotient = divisor.terms[0], Extent.of(0)
    for _ in range(_MOST_DIVISIONS):
        for monomial, coefficient in value.terms:
            left = list(monomial)
            whole = abs(coefficient) // abs(scale) * (1 if (coefficient > 0) == (scale > 0) else -1)
            if not whole or not all(_take(left, factor) for factor in factors):
                continue
            part = Extent(((tuple(left), whole),))
            quotient, value = quotient + part, value - part * divisor
            break
        else:
            break
    return quotient, value


def _take(left: list[Atom], factor: Atom) -> bool:
    if factor not in left:
        return False
    left.remove(factor)
    return True


def digits_of(offset: Extent, strides: tuple[Extent, ...], weights: tuple[Weight, ...]) -> list[Digit] | None:
    """Return a digit for each weight, of element offset + Σ ik·stride_k; None where something is left."""
    columns = []
    for value in (offset, *strides):
        column = []
        for weight in weights:
            quotient, value = divide(value, weight.weight)
            column.append(quotient)
        if value.terms:
            return None
        columns.append(column)
    constants, *factors = columns
    return [Digit(constants[m], tuple(column[m] for column in factors)) for m in range(len(weights))]


def carry(
    digits: list[Digit], sizes: tuple[Extent, ...], weights: tuple[Weight, ...], bounds: Bounds
) -> list[Digit] | None:
    """Return the digits moved by whole radixes, last first, so that they are unique; None where they aren't.

    The constants that long division finds may be a radix off: 5 is 1·8 - 3 as well as 0·8 + 5.
    """
    result = list(digits)
    for m in range(len(weights) - 1, 0, -1):
        radix = weights[m].radix
        if radix is None:
            return None
        for shift in (0, 1, -1):
            moved = Digit(result[m].constant - radix * shift, result[m].factors)
            if _unique(moved, sizes, weights[m].size, radix, bounds):
                break
        else:
            return None
        result[m] = moved
        above = result[m - 1]
        result[m - 1] = Digit(above.constant + shift, above.factors)
    return result


def _unique(digit: Digit, sizes: tuple[Extent, ...], size: Extent, radix: Extent, bounds: Bounds) -> bool:
    span = digit.span(sizes, bounds)
    if span is None:
        return False
    low, high = span
    # The widest of the two ranges' ends, each against each, must lie within one radix.
    return (
        bounds.at_least(radix - 1 - (high - low), 0)
        and bounds.at_least(radix - 1 - high, 0)
        and bounds.at_least(radix - 1 - (size - 1 - low), 0)
        and bounds.at_least(radix, size)
    )

"""The sizes that a plan is looked at: those that are asked for, and the smallest for the others."""

from __future__ import annotations

from collections.abc import Mapping

from libs.common.errors import Invalid
from libs.common.names import shown
from libs.common.suggest import did_you_mean
from libs.runtime.plan import Operation, Plan

LARGEST_SIZE = 1 << 31


def sizes_of(plan: Plan, wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the size of each dimension of a checked plan, of those too that data decide in its parts.

    Dimensions that aren't in `wanted` take their smallest size, or that of one which they must be equal to;
    those that data decide 1.

    Raises:
        Invalid: BAD_SIZE for a dimension that there isn't, a size that the plan isn't made for, and two that
            differ and must be equal.
    """
    own = {dimension.name: (dimension.minimum, dimension.maximum) for dimension in plan.dimensions}
    parts = (plan,) if plan.composition is None else plan.composition.parts
    data = {
        dimension.name: (dimension.minimum, min(dimension.maximum, LARGEST_SIZE))
        for part in parts
        for dimension in part.dimensions
        if dimension.name not in own
    }
    known = data | own
    for name, size in wanted.items():
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise Invalid(
                f"size of {shown(name)}: the dimensions are {there}{did_you_mean(name, known)}",
                reason="BAD_SIZE",
            )
        low, high = known[name]
        if not low <= size <= high:
            raise Invalid(
                f"size of {shown(name)}: {size} is not in {low} to {high}, which the plan is made for",
                reason="BAD_SIZE",
            )
    sizes = {name: max(low, 1) if name in data else low for name, (low, _) in known.items()} | dict(wanted)
    for left, right in _equal_pairs(parts):
        if left in wanted and right in wanted and wanted[left] != wanted[right]:
            raise Invalid(
                f"sizes of {shown(left)} and {shown(right)} are {wanted[left]} and {wanted[right]}; they "
                "must be equal",
                reason="BAD_SIZE",
            )
        giver, taker = (right, left) if right in wanted else (left, right)
        if taker not in wanted:
            sizes[taker] = sizes[giver]
    return sizes


def _equal_pairs(parts: tuple[Plan, ...]) -> list[tuple[str, str]]:
    """Return the names of dimensions that must be equal as they are."""
    pairs = []
    for part in parts:
        for equality in part.equalities:
            left, right = (part.extents[extent] for extent in (equality.left, equality.right))
            if left.operation is right.operation is Operation.DIMENSION:
                pairs.append((part.dimensions[left.left].name, part.dimensions[right.left].name))
    return pairs

"""Axes and shapes as callers give them."""

from __future__ import annotations

import operator as operators
from collections.abc import Collection
from typing import Any, SupportsIndex

from libs.common.errors import Invalid
from libs.compute.backend import Shape, Size, int_or_none, product

_LONG = 80
"""Characters of a thing in a message."""


def axis_of(axis: Any, rank: int, call: str = "") -> int:
    """Return an axis counted from 0; negative ones count from the end.

    Raises Invalid for another, in the name of the function that is called.
    """
    try:
        place = operators.index(axis)
    except TypeError:
        raise Invalid(f"{_of(call)}axis {shown(axis)} is no integer") from None
    if not -rank <= place < rank:
        text = f"axis {shown(place)} is out of range: there are {rank} axes, {-rank} to {rank - 1}"
        raise Invalid(f"{_of(call)}{text}")
    return place % rank


def _of(call: str) -> str:
    return f"{call}: " if call else ""


def whole_of(thing: Any, call: str, name: str, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> int:
    """Return an integer, such as a number of times, that must lie within limits.

    Raises Invalid for another, in the name of the function that is called and of its argument.
    """
    try:
        number = operators.index(thing)
    except TypeError:
        raise Invalid(f"{call}: {name} is {shown(thing)}; it is an integer") from None
    if not low <= number <= high:
        raise Invalid(f"{call}: {name} is {shown(number)}; it is an integer from {low} to {high}")
    return number


def flag_of(thing: Any, call: str, name: str) -> bool:
    """Return what is true or false; raises Invalid where that can't be told."""
    try:
        return bool(thing)
    except (ValueError, Invalid):
        raise Invalid(f"{call}: {name} is {shown(thing)}; it is True or False") from None


def one_of(thing: Any, options: Collection[Any], call: str, name: str) -> Any:
    """Return one of several words; raises Invalid for anything else."""
    if (thing is None or isinstance(thing, str)) and thing in options:
        return thing
    words = ", ".join(repr(each) for each in options)
    raise Invalid(f"{call}: {name} is {shown(thing)}; it is one of {words}")


def shown(thing: object) -> str:
    """Return a thing for messages, cut short."""
    text = repr(thing)
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"


def axes_of(axis: Any, rank: int, call: str = "") -> tuple[int, ...]:
    """Return axes counted from 0, of one, several, or None for all.

    Raises Invalid for one that comes twice.
    """
    if axis is None:
        return tuple(range(rank))
    given = axis if isinstance(axis, tuple | list) else (axis,)
    found = tuple(axis_of(each, rank, call) for each in given)
    if len(set(found)) != len(found):
        raise Invalid(f"{_of(call)}axes {tuple(given)} name one twice")
    return found


def filled(shape: Shape, count: Size) -> Shape:
    """Return a shape with the size that is -1 replaced by what is left of a number of elements."""
    sizes = tuple(operators.index(size) if isinstance(size, SupportsIndex) else size for size in shape)
    open_ = [place for place, size in enumerate(sizes) if int_or_none(size) == -1]
    if len(open_) > 1:
        raise Invalid(f"shape {list(sizes)} has more than one size that is left open")
    if not open_:
        return sizes
    rest = product([size for place, size in enumerate(sizes) if place != open_[0]])
    if int_or_none(rest) == 0:
        raise Invalid(f"{count} elements can't be given the shape {list(sizes)}: a size is 0")
    return (*sizes[: open_[0]], count // rest, *sizes[open_[0] + 1 :])

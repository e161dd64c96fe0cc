"""Axes and shapes as callers give them."""

from __future__ import annotations

import operator as operators
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, SupportsIndex

import numpy as np

from libs.common.errors import Invalid
from libs.compute.backend import Shape, Size, int_or_none, product

_LONG = 80
"""Characters of a thing in a message."""
_MOST = (1 << 63) - 1


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


def whole_of(thing: Any, call: str, name: str, low: int = -(1 << 63), high: int = _MOST) -> int:
    """Return an integer, such as a number of times, that must lie within limits.

    Raises Invalid for another, in the name of the function that is called and of its argument.
    """
    try:
        number = operators.index(thing)
    except TypeError:
        raise Invalid(f"{call}: {name} is {shown(thing)}; it is an integer") from None
    if not low <= number <= high:
        limits = (
            f"from {low} to {high}" if high < _MOST else f"of {low} or more" if number < low else "of 64 bits"
        )
        raise Invalid(f"{call}: {name} is {shown(number)}; it is an integer {limits}")
    return number


def flag_of(thing: Any, call: str, name: str) -> bool:
    """Return what is true or false; raises Invalid where that can't be told."""
    if thing is True or thing is False:
        return bool(thing)
    try:
        return bool(thing)
    except (ValueError, Invalid):
        raise Invalid(f"{call}: {name} is {shown(thing)}; it is True or False") from None


def listed(thing: Any, call: str, name: str) -> list[Any]:
    """Return what a list, or an array of 1 axis or more, holds; raises Invalid for anything else."""
    if isinstance(thing, str | bytes | dict):
        raise Invalid(f"{call}: {name} is {shown(thing)}; it is a list")
    try:
        return list(thing)
    except TypeError:
        raise Invalid(f"{call}: {name} is {shown(thing)}; it is a list") from None


def is_listed(thing: Any) -> bool:
    """Tell whether a thing is several: a list, or an array of 1 axis or more."""
    return isinstance(thing, list | tuple | range) or getattr(thing, "ndim", 0) > 0


def wholes_of(thing: Any, call: str, name: str, low: int = -(1 << 63), high: int = _MOST) -> list[int]:
    """Return integers that lie within limits, of one or several. Raises Invalid as `whole_of` does."""
    given = listed(thing, call, name) if is_listed(thing) else [thing]
    return [whole_of(each, call, name, low, high) for each in given]


def number_of(thing: Any, call: str, name: str) -> float:
    """Return a real number; raises Invalid for anything else."""
    try:
        if isinstance(thing, str | bytes):
            raise TypeError
        return float(thing)
    except (TypeError, ValueError, OverflowError):
        raise Invalid(f"{call}: {name} is {shown(thing)}; it is a number") from None


def size_of(thing: Any, call: str, name: str) -> Size:
    """Return an integer, or a formula of sizes as it is; raises Invalid for what can be neither."""
    if isinstance(thing, np.inexact | float | complex | str | bytes | list | tuple | dict | slice | None):
        raise Invalid(f"{call}: {name} holds {shown(thing)}, which is no integer")
    return whole_of(thing, call, name) if isinstance(thing, SupportsIndex) else thing


@contextmanager
def naming(call: str) -> Iterator[None]:
    """Refuse in the name of a function what those refuse that it makes use of."""
    try:
        yield
    except Invalid as error:
        text = str(error)
        raise Invalid(
            text if text.startswith(f"{call}: ") else f"{call}: {text}",
            reason=error.reason,
            metadata=error.metadata,
        ) from None


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

"""Types of what a model hands from node to node where its shape isn't known: how two of them are one."""

from __future__ import annotations

from services.engine.domain.composed import HeldType
from services.engine.domain.extents import Extent
from services.engine.domain.graph import LooseTensor, OptionalOf, SequenceOf
from services.engine.domain.values import Held, Value

Thing = Value | Held
"""Whatever a model hands from node to node."""
_ONE = Extent.of(1)


def loose(thing: Thing) -> HeldType:
    """Return the type of anything."""
    return LooseTensor(thing.type, thing.rank) if isinstance(thing, Value) else thing.type


def joined(a: HeldType | None, b: HeldType | None) -> HeldType | None:
    """Return the type of what may be either; None for nothing, and for two that don't go together."""
    if a == b or b is None:
        return a
    if a is None:
        return b
    match a, b:
        case LooseTensor(), LooseTensor() if a.type is b.type:
            return LooseTensor(a.type, a.rank if a.rank == b.rank else None)
        case SequenceOf(), SequenceOf():
            return SequenceOf(joined(a.element, b.element))
        case OptionalOf(), OptionalOf():
            element = joined(a.element, b.element)
            return OptionalOf(None if isinstance(element, OptionalOf) else element)
    return None


def scalar_or_one(a: Thing, b: Thing) -> bool:
    """Tell whether two tensors have one element each, but not surely in as many axes: none, or one."""
    shapes = [thing.shape if isinstance(thing, Value) else thing.flat for thing in (a, b)]
    few = all(shape is not None and (isinstance(shape, Value) or shape in ((), (_ONE,))) for shape in shapes)
    return few and (shapes[0] != shapes[1] or isinstance(shapes[0], Value))

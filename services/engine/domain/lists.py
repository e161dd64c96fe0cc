"""Sequences and optionals; what is known of them when the plan is made costs nothing."""

from __future__ import annotations

from collections.abc import Sequence

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain.atomics import Atomics
from services.engine.domain.graph import LooseTensor, OptionalOf, SequenceOf
from services.engine.domain.held_types import Thing, joined, loose
from services.engine.domain.values import Held, Value


class Lists(Atomics):
    """The part of `Builder` that knows sequences and optionals."""

    def sequence(self, items: Sequence[Thing], element: LooseTensor | SequenceOf | None = None) -> Held:
        """Return a sequence of what is at hand; it costs nothing until something reads it that has to run."""
        known = tuple(items)
        types = [loose(item) for item in known]
        common = types[0] if types else element
        for type_ in types[1:]:
            common = joined(common, type_)
        return Held(SequenceOf(common), known)

    def optional(self, item: Thing | None, element: LooseTensor | SequenceOf | None = None) -> Held:
        """Return an optional with `item`, or with nothing."""
        if item is None:
            return Held(OptionalOf(element), ())
        type_ = loose(item)
        return Held(OptionalOf(None if isinstance(type_, OptionalOf) else type_), (item,))

    def _made_of_items(self, held: Held) -> Held:
        type_ = held.type
        assert held.items is not None
        (made,) = self.host("sequence_empty", (), [type_])
        for item in held.items:
            (made,) = self.host("sequence_insert", (made, item), [type_])
        assert isinstance(made, Held)
        return made

    def length(self, held: Thing) -> Value:
        """Return how many items a sequence (or optional) has, an int64 scalar."""
        held = self._list(held)
        if held.items is not None:
            return self.integer(len(held.items))
        (length,) = self.host("sequence_length", [held], [(DataType.INT64, ())])
        assert isinstance(length, Value)
        return length

    def at(self, held: Thing, position: Value) -> Thing:
        """Return the item at a position, which counts from the end where it is negative."""
        held = self._list(held)
        if held.items is not None and position.known is not None:
            place = int(position.known.reshape(-1)[0])
            if not -len(held.items) <= place < len(held.items):
                raise Invalid(f"position {place} is outside of a sequence of {len(held.items)}")
            return held.items[place]
        element = held.type.element if isinstance(held.type, SequenceOf | OptionalOf) else None
        if element is None:
            raise Invalid("it isn't known what the sequence holds")
        (item,) = self.host("sequence_at", [held, position], [element])
        return item

    def inserted(self, held: Thing, item: Thing, position: Value | None = None) -> Held:
        """Return the sequence with an item before a position, or at the end."""
        held = self._list(held)
        type_ = held.type
        assert isinstance(type_, SequenceOf)
        own = loose(item)
        element = joined(type_.element, own)
        if element is None:
            raise Invalid(f"{item} can't be put into {held}")
        if held.items is not None and (position is None or position.known is not None):
            items = list(held.items)
            place = _known(position, len(items))
            if not -len(items) <= place <= len(items):
                raise Invalid(f"position {place} is outside of a sequence of {len(items)}")
            items.insert(place, item)
            return Held(SequenceOf(element), tuple(items))
        inputs = [held, item] if position is None else [held, item, position]
        (made,) = self.host("sequence_insert", inputs, [SequenceOf(element)])
        assert isinstance(made, Held)
        return made

    def erased(self, held: Thing, position: Value | None = None) -> Held:
        """Return the sequence without the item at a position, or the last."""
        held = self._list(held)
        if held.items is not None and (position is None or position.known is not None):
            items = list(held.items)
            place = _known(position, -1)
            if not -len(items) <= place < len(items):
                raise Invalid(f"position {place} is outside of a sequence of {len(items)}")
            del items[place]
            return Held(held.type, tuple(items))
        (made,) = self.host("sequence_erase", [held] if position is None else [held, position], [held.type])
        assert isinstance(made, Held)
        return made

    def concatenated(self, held: Thing, axis: int, new_axis: bool) -> Thing:
        """Return the tensors of a sequence joined along an axis, or stacked along a new one."""
        held = self._list(held)
        element = held.type.element if isinstance(held.type, SequenceOf) else None
        if not isinstance(element, LooseTensor):
            raise Invalid(f"{held} holds no tensors")
        rank = None if element.rank is None else element.rank + int(new_axis)
        (joined,) = self.host(
            "sequence_concat", [held], [LooseTensor(element.type, rank)], integers=[axis, int(new_axis)]
        )
        return joined

    def _list(self, held: Thing) -> Held:
        if not isinstance(held, Held) or isinstance(held.type, LooseTensor):
            raise Invalid(f"{held} is not a sequence")
        return held


def _known(position: Value | None, default: int) -> int:
    return default if position is None or position.known is None else int(position.known.reshape(-1)[0])

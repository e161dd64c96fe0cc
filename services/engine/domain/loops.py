"""Loops: a block that runs round after round, written for types that hold in every round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain.composed import BlockCode, HeldType, LoopInstruction
from services.engine.domain.extents import Extent
from services.engine.domain.flow import Flow
from services.engine.domain.graph import LooseTensor, OptionalOf
from services.engine.domain.held_types import Thing, joined, loose
from services.engine.domain.values import Held, Value

UNROLLED = 16
"""So many rounds of a body are written one after the other."""
_TRUE = np.array(True)


@dataclass(frozen=True, slots=True)
class Round:
    """What a loop's body gives back."""

    condition: Value | None
    """Whether there is a next round; None: as long as the trip count says."""
    carried: Sequence[Thing]
    collected: Sequence[Value] = ()


class Loops(Flow):
    """The part of `Builder` that writes loops."""

    def loop(
        self,
        trips: Value | Extent | None,
        condition: Value | None,
        carried: Sequence[Thing],
        body: Callable[[Value, Value, list[Thing]], Round],
    ) -> tuple[list[Thing], list[Value]]:
        """Run `body` round after round; return what is carried out, and stacks of what was collected.

        Args:
            trips: how many rounds at most, one integer; None: no limit.
            condition: whether there is a first round, one boolean; None: there is.
            carried: what goes into the first round.
            body: writes a round; gets its number from 0 (int64), the condition, and what is carried. It is
                called more than once where sizes turn out to change from round to round.

        Raises Invalid where what is carried changes its type.
        """
        count_ = trips if isinstance(trips, Value) or trips is None else self.integers([trips])
        count_number = None if count_ is None else self._number(count_)
        known = None if condition is None else condition.known
        # A condition that is always true costs nothing.
        first = None if condition is None or (known is not None and known.all()) else self._number(condition)
        types: list[HeldType | Value] = [item if isinstance(item, Value) else item.type for item in carried]
        open_axes: list[set[int]] = [set() for _ in carried]
        while True:
            outcome = self._try_body(types, open_axes, body)
            if isinstance(outcome, _Written):
                break
            types = outcome
        code, results, inner, always = outcome.code, outcome.results, outcome.inner, outcome.always
        initial = tuple(self._number(item) for item in carried)
        finals: list[Thing] = [self._fresh(type_, axes) for type_, axes in zip(types, open_axes, strict=True)]
        stacked = [
            self._stack(result, trips if always and first is None else None, inner)
            for result in results[1 + len(carried) :]
        ]
        numbers = tuple(self._number(output) for output in (*finals, *stacked))
        self._write(LoopInstruction(count_number, first, code, initial, numbers, self.origin))
        collected = [self._tensor(stack) for stack in stacked]
        seen = zip(finals, open_axes, types, strict=True)
        return (
            [self._seen(final, axes, type_) for final, axes, type_ in seen],
            [value for value in collected if isinstance(value, Value)],
        )

    def repeat(
        self,
        rounds: Extent,
        carried: Sequence[Thing],
        body: Callable[[Value, list[Thing]], tuple[Sequence[Thing], Sequence[Value]]],
    ) -> tuple[list[Thing], list[Value]]:
        """Run `body` so many times; return what is carried out, and what was collected, stacked along axis 0.

        It gets the number of its round, an int64, and what is carried, and returns what is carried on, and
        what is collected. Few rounds are written one after the other.
        """
        if rounds.constant is None or not 0 < rounds.constant <= UNROLLED:
            return self.loop(
                rounds, None, carried, lambda number, _, state: Round(None, *body(number, state))
            )
        state, stacks = list(carried), list[list[Value]]()
        for number in range(rounds.constant):
            carried_on, collected = body(self.constant(np.array(number, np.int64)), state)
            state = list(carried_on)
            stacks.append(list(collected))
        return state, [self.stack(each) for each in zip(*stacks, strict=True)]

    def _try_body(
        self,
        types: list[HeldType | Value],
        open_axes: list[set[int]],
        body: Callable[[Value, Value, list[Thing]], Round],
    ) -> _Written | list[HeldType | Value]:
        """Write the body; return it, or wider types (and wider `open_axes`) that it must be written for."""
        number, going = Value(DataType.INT64, ()), Value(DataType.BOOL, ())
        raw = [self._fresh(type_, axes) for type_, axes in zip(types, open_axes, strict=True)]
        seen: list[Thing] = []
        always = [True]

        def write() -> Sequence[Thing]:
            for thing, axes, type_ in zip(raw, open_axes, types, strict=True):
                seen.append(self._seen(thing, axes, type_))
            outcome = body(number, going, list(seen))
            condition = outcome.condition
            if condition is None:
                condition = self.constant(_TRUE)
            elif condition is not going:
                always[0] = condition.known is not None and bool(condition.known.all())
            carried = [
                self.optional(after) if _wraps(before.type, after) else after
                for before, after in zip(raw, outcome.carried, strict=True)
            ]
            return [condition, *carried, *outcome.collected]

        code, results, inner = self._in_block([number, going, *raw], write)
        if len(results) < 1 + len(types):
            raise Invalid(f"a loop carries {len(types)} values, its body gives {len(results) - 1}")
        wider, changed = list(types), False
        for place, (before, after) in enumerate(zip(seen, results[1 : 1 + len(types)], strict=True)):
            if isinstance(before, Value) and isinstance(after, Value) and before.type is after.type:
                if before.rank == after.rank:
                    moved = {
                        axis
                        for axis, (one, other) in enumerate(zip(before.shape, after.shape, strict=True))
                        if one != other and axis not in open_axes[place]
                    }
                    open_axes[place] |= moved
                    changed |= bool(moved)
                    continue
                wider[place] = LooseTensor(before.type)
                changed = True
                continue
            common = joined(loose(before), loose(after))
            if common is None:
                raise Invalid(f"{before} is carried into a round, {after} out of it")
            if isinstance(before, Value) or common != before.type:
                wider[place] = common
                changed = True
        return wider if changed else _Written(code, results, inner, always[0])

    def _seen(self, thing: Thing, open_axes: set[int], type_: HeldType | Value) -> Thing:
        """Return a parameter, or what is carried out, as others see it: open axes have sizes of their own."""
        if not isinstance(type_, Value):
            return self._tensor(thing)
        shape = (None if axis in open_axes else size for axis, size in enumerate(type_.shape))
        return self._narrowed(thing, tuple(shape))

    def _fresh(self, type_: HeldType | Value, open_axes: set[int]) -> Thing:
        if not isinstance(type_, Value):
            return Held(type_)
        if open_axes:
            return Held(LooseTensor(type_.type, type_.rank))
        return Value(type_.type, type_.shape)

    def _stack(self, result: Thing, trips: Value | Extent | None, inner: frozenset[str]) -> Thing:
        """Return a fresh value for a stack of results; sizes that aren't surely the same get their own."""
        if not isinstance(result, Value):
            raise Invalid(
                f"{result} is collected from round to round, which only tensors of known rank can be"
            )
        rounds = trips if isinstance(trips, Extent) else None
        if isinstance(trips, Value) and (found := self.elements(trips)) is not None:
            rounds = found.reshape(-1)[0]
        sure = all(_plain(size) and not size.dimensions & inner for size in result.shape)
        if rounds is not None and sure and self.bounds.at_least(rounds, 0):
            return Value(result.type, self._shape((rounds, *result.shape)))
        return Held(LooseTensor(result.type, result.rank + 1))


@dataclass(frozen=True, slots=True)
class _Written:
    code: BlockCode
    results: list[Thing]
    inner: frozenset[str]
    always: bool
    """Whether each round wants a next one."""


def _wraps(type_: object, thing: Thing) -> bool:
    """Tell whether a thing is carried as an optional that it isn't itself."""
    return isinstance(type_, OptionalOf) and not (
        isinstance(thing, Held) and isinstance(thing.type, OptionalOf)
    )


def _plain(size: Extent) -> bool:
    """Tell whether a register's type can say this size."""
    return size.constant is not None or (
        len(size.dimensions) == 1 and size == Extent.dimension(next(iter(size.dimensions)))
    )

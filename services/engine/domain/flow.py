"""What isn't straight: sizes that data decide, branches, loops, sequences, and host operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain.composed import (
    BlockCode,
    BranchInstruction,
    HeldType,
    HostInstruction,
    LoopInstruction,
    Source,
)
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.graph import LooseTensor, OptionalOf, SequenceOf
from services.engine.domain.symbolic import MOST_ELEMENTS
from services.engine.domain.values import Held, Move, Shape, Value, count
from services.engine.domain.writer import Writer

Thing = Value | Held
"""Whatever a model hands from node to node."""
UNROLLED = 16
"""So many rounds of a body are written one after the other."""
_TRUE = np.array(True)
_ONE = Extent.of(1)


@dataclass(frozen=True, slots=True)
class Round:
    """What a loop's body gives back."""

    condition: Value | None
    """Whether there is a next round; None: as long as the trip count says."""
    carried: Sequence[Thing]
    collected: Sequence[Value] = ()


class Flow(Writer):
    """The part of `Builder` that writes control flow and host operators."""

    # Sizes that data decide

    def sizes(self, value: Value) -> Shape:
        """Return the elements of an integer vector as sizes, in row-major order.

        At run time none may be below 0. What is known when the plan is made costs nothing; otherwise each
        is a dimension that data decide, and what uses it runs after what computes it. Raises Invalid for
        more than 256 elements, or an unknown number, and for sizes that are surely below 0.
        """
        found = self.elements(value)
        if found is not None:
            known: Shape = tuple(found.reshape(-1))
            for size in known:
                if self.bounds.range(size)[1] < 0:
                    raise Invalid(f"a size is {size}; it must be at least 0")
            return known
        elements = count(value.shape).constant
        if elements is None or elements > MOST_ELEMENTS:
            raise Invalid(
                f"{value} is no short list of sizes, of a length that is known when the plan is made"
            )
        number = self._number(self._as_int64(value))
        return tuple(self._dimension(Source(number, element=place)) for place in range(elements))

    def size(self, value: Value) -> Extent:
        """Return a single integer as a size; see `sizes`."""
        found = self.sizes(value)
        if len(found) != 1:
            raise Invalid(f"{value} is not one number")
        return found[0]

    def _as_int64(self, value: Value) -> Value:
        raise NotImplementedError

    # Host operators

    def host(
        self,
        operator: str,
        inputs: Sequence[Thing],
        outputs: Sequence[HeldType | tuple[DataType, Shape]],
        *,
        integers: Sequence[int] = (),
        texts: Sequence[str] = (),
    ) -> list[Thing]:
        """Apply a host operator.

        `outputs` are what it gives: a type and shape for a tensor of known rank, whose sizes may be given
        by what the operator promises; a loose tensor of a rank gets sizes that data decide.
        """
        numbers = tuple(self._number(value) for value in inputs)
        things: list[Thing] = [
            Value(output[0], self._shape(output[1])) if isinstance(output, tuple) else Held(output)
            for output in outputs
        ]
        written = tuple(self._number(thing) for thing in things)
        self._write(HostInstruction(operator, numbers, written, tuple(integers), tuple(texts), self.origin))
        return [self._tensor(thing) for thing in things]

    def _tensor(self, thing: Thing) -> Thing:
        """Return a loose tensor whose rank is known as a value; anything else as it is."""
        if isinstance(thing, Held) and isinstance(thing.type, LooseTensor) and thing.type.rank is not None:
            return self.ranked(thing, thing.type.rank)
        return thing

    # Sequences and optionals

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

    # Branches and loops

    def branch(
        self, condition: Value, then: Callable[[], Sequence[Thing]], otherwise: Callable[[], Sequence[Thing]]
    ) -> list[Thing]:
        """Return what `then` gives where the condition, one boolean, holds; else what `otherwise` does."""
        if condition.type is not DataType.BOOL:
            raise Invalid(f"a condition is {condition}, not a boolean")
        if condition.known is not None:
            return list(then() if condition.known.reshape(-1)[0] else otherwise())
        number = self._number(condition)
        first, ours, inner = self._in_block((), then)
        second, theirs, others = self._in_block((), otherwise)
        if len(ours) != len(theirs):
            raise Invalid(f"one branch gives {len(ours)} values, the other {len(theirs)}")
        either = [place for place, pair in enumerate(zip(ours, theirs, strict=True)) if _scalar_or_one(*pair)]
        if either:
            first, ours, inner = self._in_block((), lambda: self._with_flat(then(), either))
            second, theirs, others = self._in_block((), lambda: self._with_flat(otherwise(), either))
        raw: list[Thing] = []
        shapes: list[tuple[Extent | None, ...]] = []
        for a, b in zip(ours, theirs, strict=True):
            shape = self._common(a, b, inner | others)
            if isinstance(a, Value) and None not in shape and loose(a) == loose(b):
                raw.append(Value(a.type, tuple(size for size in shape if size is not None)))
            elif (type_ := joined(loose(a), loose(b))) is not None:
                raw.append(Held(type_))
            else:
                raise Invalid(f"{a} and {b} can't be the same value")
            shapes.append(shape)
        numbers = tuple(self._number(output) for output in raw)
        self._write(BranchInstruction(number, first, second, numbers, self.origin))
        results = [self._narrowed(output, shape) for output, shape in zip(raw, shapes, strict=True)]
        for place, flat in zip(either, results[len(results) - len(either) :], strict=True):
            held = results[place]
            assert isinstance(held, Held)
            assert isinstance(flat, Value)
            results[place] = known = Held(held.type, flat=flat)
            self._aliases[self._number(known)] = self._number(held)
        return results[: len(results) - len(either)]

    def _with_flat(self, results: Sequence[Thing], places: Sequence[int]) -> list[Thing]:
        """Return results, and after them some again as vectors of one."""
        flat = []
        for place in places:
            thing = results[place]
            if isinstance(thing, Value):
                whole = Move(thing, (_ONE,), (_ONE,), Extent.of(0), (_ONE,), Extent.of(0))
                thing = Held(loose(thing), flat=self.raster(thing.type, (_ONE,), [whole]))
            assert thing.flat is not None
            flat.append(thing.flat)
        return [*results, *flat]

    def _common(self, a: Thing, b: Thing, inner: frozenset[str]) -> tuple[Extent | None, ...]:
        """Return the sizes that two tensors of one rank have in common; None where they differ."""
        if not isinstance(a, Value) or not isinstance(b, Value) or a.rank != b.rank:
            return ()
        return tuple(
            one if one == other and not one.dimensions & inner else None
            for one, other in zip(a.shape, b.shape, strict=True)
        )

    def _narrowed(self, thing: Thing, shape: tuple[Extent | None, ...]) -> Thing:
        """Return a loose tensor of known rank as a value; sizes that are None get dimensions of their own."""
        if isinstance(thing, Value) or not isinstance(thing.type, LooseTensor) or thing.type.rank is None:
            return thing
        number = self._number(thing)
        sizes = tuple(
            self._dimension(Source(number, axis=axis)) if size is None else size
            for axis, size in enumerate(shape or (None,) * thing.type.rank)
        )
        value = Value(thing.type.type, sizes)
        self._aliases[self._number(value)] = number
        return value

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

    def stack(self, values: Sequence[Value]) -> Value:
        """Return values of one type and shape stacked along a new first axis."""
        first = values[0]
        for value in values[1:]:
            if value.type is not first.type or value.rank != first.rank:
                raise Invalid(f"{first} and {value} can't be stacked")
            for size, other in zip(first.shape, value.shape, strict=True):
                self.equal(size, other)
        strides, step = contiguous_strides(first.shape), count(first.shape)
        moves = [
            Move(value, first.shape, strides, Extent.of(0), strides, step * place)
            for place, value in enumerate(values)
        ]
        return self.raster(first.type, (Extent.of(len(values)), *first.shape), moves)

    def raster(
        self, type_: DataType, shape: Shape, moves: Sequence[Move], fill: float | None = None
    ) -> Value:
        """Write a value from regions of others; `fill` first, where they don't cover it."""
        raise NotImplementedError

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

    def integers(self, values: Sequence[Extent | int]) -> Value:
        """Return a list of integers, which may depend on dimensions, as an int64 vector."""
        raise NotImplementedError


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


def _scalar_or_one(a: Thing, b: Thing) -> bool:
    """Tell whether two tensors have one element each, but not surely in as many axes: none, or one."""
    shapes = [thing.shape if isinstance(thing, Value) else thing.flat for thing in (a, b)]
    few = all(shape is not None and (isinstance(shape, Value) or shape in ((), (_ONE,))) for shape in shapes)
    return few and (shapes[0] != shapes[1] or isinstance(shapes[0], Value))


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

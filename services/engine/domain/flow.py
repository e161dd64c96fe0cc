"""Branches: two blocks of which a call runs one, and what either gives back as one value."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain.composed import BranchInstruction, Source
from services.engine.domain.extents import Extent
from services.engine.domain.graph import LooseTensor
from services.engine.domain.held_types import Thing, joined, loose, scalar_or_one
from services.engine.domain.lists import Lists
from services.engine.domain.values import Held, Move, Value

_ONE = Extent.of(1)


class Flow(Lists):
    """The part of `Builder` that writes branches."""

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
        either = [place for place, pair in enumerate(zip(ours, theirs, strict=True)) if scalar_or_one(*pair)]
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

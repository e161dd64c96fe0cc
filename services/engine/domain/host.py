"""Host operators: what isn't computed by parts of plans, but by the runtime itself, on whole values."""

from __future__ import annotations

from collections.abc import Sequence

from libs.runtime.plan import DataType
from services.engine.domain.composed import HeldType, HostInstruction
from services.engine.domain.graph import LooseTensor
from services.engine.domain.held_types import Thing
from services.engine.domain.values import Held, Shape, Value
from services.engine.domain.writer import Writer


class Host(Writer):
    """The part of `Builder` that writes host operators."""

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

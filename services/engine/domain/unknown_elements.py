"""Sequences that start empty, and nobody said of what: they hold what they are joined with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from libs.runtime import plan as plans
from services.engine.domain.composed import Composed, HeldType
from services.engine.domain.graph import OptionalOf, SequenceOf
from services.engine.domain.held_types import joined
from services.engine.domain.program import ValueType


def settled(composed: Composed, blocks: Sequence[plans.Block]) -> Composed:
    """Return a program whose sequences and optionals have elements of the types that blocks give them.

    What is joined with nothing of a known type stays as it is: it is empty in every call.
    """
    values = list(composed.values)
    pairs = [pair for pair in _handed(blocks) if any(map(_is_open, (values[pair[0]], values[pair[1]])))]
    changed = True
    while changed:
        changed = False
        for pair in pairs:
            one, other = (values[value] for value in pair)
            if one == other or isinstance(one, ValueType) or isinstance(other, ValueType):
                continue
            both = joined(one, other)
            for value in pair:
                # Only ever more is known: what contradicts itself is for the plan's check to refuse.
                if both is not None and _is_open(values[value]) and _known(both) > _known(values[value]):
                    values[value], changed = both, True
    return replace(composed, values=tuple(values))


def _known(type_: ValueType | HeldType | None) -> int:
    """Return how many levels of a type are known."""
    levels = 0
    while isinstance(type_, SequenceOf | OptionalOf):
        levels, type_ = levels + 1, type_.element
    return levels + (type_ is not None)


def _is_open(type_: ValueType | HeldType | None) -> bool:
    while isinstance(type_, SequenceOf | OptionalOf):
        type_ = type_.element
    return type_ is None


def _handed(blocks: Sequence[plans.Block]) -> Iterator[tuple[int, int]]:
    """Yield pairs of values, one of which becomes the other."""
    for block in blocks:
        for action in block.actions:
            match action.kind:
                case plans.Branch(then_block=then, else_block=otherwise, outputs=outputs):
                    yield from zip(blocks[then].results, outputs, strict=True)
                    yield from zip(blocks[otherwise].results, outputs, strict=True)
                case plans.Loop(body=body, initial=initial, outputs=outputs):
                    parameters, results = blocks[body].parameters[2:], blocks[body].results[1:]
                    for each in zip(initial, parameters, results, outputs, strict=False):
                        yield from ((each[0], other) for other in each[1:])
                case plans.Host(
                    operator="sequence_insert" | "sequence_erase", inputs=inputs, outputs=outputs
                ):
                    yield inputs[0], outputs[0]

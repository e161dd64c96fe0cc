"""Runs a `Composed` program the plain way, block by block, before it is parted: an oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.ledger import Items
from libs.runtime.plan import DataType
from services.engine.domain.composed import (
    AnyInstruction,
    BlockCode,
    BranchInstruction,
    Composed,
    EqualInstruction,
    HostInstruction,
    LoopInstruction,
    sizes_in,
)
from services.engine.domain.extents import Extent
from services.engine.domain.graph import LooseTensor, OptionalOf
from services.engine.domain.program import (
    ComputeInstruction,
    NamedValue,
    Program,
    RasterInstruction,
    ValueType,
)
from services.engine.domain.reference import interpret_step, numpy_type

Host = Callable[[HostInstruction, Sequence[Any]], Sequence[Any]]
"""Applies a host operator."""
_MOST_ROUNDS = 100_000
_NOTHING = ValueType(DataType.BOOL, ())


def interpret_blocks(composed: Composed, inputs: Mapping[str, Any], host: Host) -> dict[str, Any]:
    """Run a program on the given inputs and return its outputs by name: arrays, lists, None.

    Raises Invalid for what goes wrong on the way, with the origin.
    """
    run = _Run(composed, host)
    values = {number: array for number, array in composed.constants.items()}
    for named in composed.inputs:
        if named.name not in inputs:
            raise Invalid(f"input {named.name!r} is missing")
        values[named.value] = run.taken(named, inputs[named.name])
    run.block(composed.body, values)
    return {named.name: run.given(named, values) for named in composed.outputs}


class _Run:
    def __init__(self, composed: Composed, host: Host) -> None:
        self._composed = composed
        self._host = host
        self._named: dict[str, tuple[int, int]] = {}
        for named in composed.inputs:
            kind = composed.values[named.value]
            for axis, size in enumerate(kind.shape if isinstance(kind, ValueType) else ()):
                for name in size.dimensions:
                    if size == Extent.dimension(name):
                        self._named.setdefault(name, (named.value, axis))

    def taken(self, named: NamedValue, given: Any) -> Any:
        if isinstance(self._composed.values[named.value], OptionalOf):
            return Items() if given is None else Items([_thing(given)])
        return _thing(given)

    def given(self, named: NamedValue, values: Mapping[int, Any]) -> Any:
        value = values[self._base(named.value)]
        if isinstance(self._composed.values[named.value], OptionalOf):
            return value[0] if value else None
        return value

    def _base(self, value: int) -> int:
        while value in self._composed.aliases:
            value = self._composed.aliases[value]
        return value

    def block(self, code: BlockCode, values: dict[int, Any]) -> list[Any]:
        for instruction in code.instructions:
            try:
                self._instruction(instruction, values)
            except Invalid as error:
                raise Invalid(f"{instruction.origin}: {error}") from error
        return [values[self._base(value)] for value in code.results]

    def _sizes(self, names: frozenset[str], values: Mapping[int, Any]) -> dict[str, int]:
        sizes = {}
        for name in names:
            source = self._composed.sources.get(name)
            if source is None:
                value, axis = self._named[name]
                sizes[name] = values[value].shape[axis]
            elif source.axis is not None:
                sizes[name] = values[self._base(source.value)].shape[source.axis]
            else:
                size = int(values[self._base(source.value)].reshape(-1)[source.element])
                if size < 0:
                    raise Invalid(f"a size is {size}")
                sizes[name] = size
        return sizes

    def _instruction(self, instruction: AnyInstruction, values: dict[int, Any]) -> None:
        composed = self._composed
        match instruction:
            case ComputeInstruction() | RasterInstruction():
                extents = list(sizes_in(instruction, composed.values))
                names = frozenset().union(*(extent.dimensions for extent in extents))
                kinds = tuple(kind if isinstance(kind, ValueType) else _NOTHING for kind in composed.values)
                program = Program(kinds, (), (), {}, ())
                seen = {**values}
                for alias in composed.aliases:
                    if (base := self._base(alias)) in values:
                        seen[alias] = values[base]
                interpret_step(program, instruction, seen, self._sizes(names, values))
                written = (
                    instruction.outputs
                    if isinstance(instruction, ComputeInstruction)
                    else (instruction.output,)
                )
                values.update((value, seen[value]) for value in written)
            case EqualInstruction():
                names = instruction.left.dimensions | instruction.right.dimensions
                sizes = self._sizes(names, values)
                if instruction.left.evaluate(sizes) != instruction.right.evaluate(sizes):
                    raise Invalid(f"sizes {instruction.left} and {instruction.right} differ: {sizes}")
            case HostInstruction():
                given = [values[self._base(value)] for value in instruction.inputs]
                values.update(zip(instruction.outputs, self._host(instruction, given), strict=True))
            case BranchInstruction():
                holds = bool(values[self._base(instruction.condition)].reshape(-1)[0])
                chosen = instruction.then_block if holds else instruction.else_block
                values.update(zip(instruction.outputs, self.block(chosen, dict(values)), strict=True))
            case LoopInstruction():
                self._loop(instruction, values)

    def _loop(self, loop: LoopInstruction, values: dict[int, Any]) -> None:
        trips = None if loop.trip_count is None else int(values[self._base(loop.trip_count)].reshape(-1)[0])
        going = loop.condition is None or bool(values[self._base(loop.condition)].reshape(-1)[0])
        state = [values[self._base(value)] for value in loop.initial]
        collected: list[list[Any]] = [[] for _ in loop.outputs[len(state) :]]
        number = 0
        while going and (trips is None or number < trips):
            if number >= _MOST_ROUNDS:
                raise Invalid(f"a loop takes more than {_MOST_ROUNDS} rounds")
            inner = dict(values)
            first = [np.array(number, np.int64), np.array(going)]
            inner.update(zip(loop.body.parameters, [*first, *state], strict=True))
            condition, *results = self.block(loop.body, inner)
            going = bool(condition.reshape(-1)[0])
            state = results[: len(state)]
            for stack, item in zip(collected, results[len(state) :], strict=True):
                stack.append(item)
            number += 1
        values.update(zip(loop.outputs, state, strict=False))
        for output, stack in zip(loop.outputs[len(state) :], collected, strict=True):
            values[output] = np.stack(stack) if stack else self._empty(output)

    def _empty(self, output: int) -> Any:
        kind = self._composed.values[output]
        if isinstance(kind, ValueType):
            return np.zeros([0, *(size.constant or 0 for size in kind.shape[1:])], numpy_type(kind.type))
        assert isinstance(kind, LooseTensor)
        return np.zeros([0] * (kind.rank or 1), numpy_type(kind.type))


def _thing(given: Any) -> Any:
    return Items(map(_thing, given)) if isinstance(given, list | tuple) else np.asarray(given)

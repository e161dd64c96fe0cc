"""Assembling: parts as plans, and blocks over registers, become the plan of a model with control flow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from libs.runtime import plan as plans
from libs.runtime.plan import DataType
from services.engine.domain.composed import Composed, HeldType
from services.engine.domain.extents import Extent
from services.engine.domain.graph import LooseTensor, OptionalOf, SequenceOf
from services.engine.domain.lower import lower_part
from services.engine.domain.partition import Partitioned
from services.engine.domain.program import ValueType
from services.engine.domain.unknown_elements import settled


def assemble(partitioned: Partitioned, *, model_digest: str, producer: str) -> plans.Plan:
    """Return the plan of a program in parts; raises BadProgram as `lower` does."""
    composed = settled(partitioned.composed, partitioned.blocks)
    numbers: dict[int, int] = {}
    for value in _registers(partitioned):
        numbers.setdefault(value, len(numbers))
    dimensions = [name for name in composed.bounds.ranges if name not in composed.bounds.data]
    return plans.Plan(
        model_digest=model_digest,
        producer=producer,
        dimensions=tuple(plans.Dimension(name, *composed.bounds.ranges[name]) for name in dimensions),
        composition=plans.Composition(
            parts=tuple(lower_part(part) for part in partitioned.parts),
            registers=tuple(_register(composed, value) for value in numbers),
            inputs=tuple(plans.NamedRegister(named.name, numbers[named.value]) for named in composed.inputs),
            outputs=tuple(
                plans.NamedRegister(named.name, numbers[_base(composed, named.value)])
                for named in composed.outputs
            ),
            blocks=tuple(_block(block, numbers) for block in partitioned.blocks),
        ),
    )


def _base(composed: Composed, value: int) -> int:
    while value in composed.aliases:
        value = composed.aliases[value]
    return value


def _registers(partitioned: Partitioned) -> Iterator[int]:
    composed = partitioned.composed
    yield from (named.value for named in composed.inputs)
    for block in partitioned.blocks:
        yield from block.parameters
        for action in block.actions:
            yield from _of(action.kind)
        yield from block.results
    yield from (_base(composed, named.value) for named in composed.outputs)


def _of(kind: plans.Run | plans.Branch | plans.Loop | plans.Host) -> Iterator[int]:
    match kind:
        case plans.Run():
            yield from kind.inputs
            yield from (source.register for source in kind.dimensions)
        case plans.Host():
            yield from kind.inputs
        case plans.Branch():
            yield kind.condition
        case plans.Loop():
            yield from (value for value in (kind.trip_count, kind.condition) if value is not None)
            yield from kind.initial
    yield from kind.outputs


def _register(composed: Composed, value: int) -> plans.Register:
    type_ = register_type(composed, composed.values[value])
    constant = composed.constants.get(value)
    if constant is None:
        return plans.Register(type_)
    if constant.dtype == np.object_:
        return plans.Register(type_, b"", tuple(str(text) for text in constant.reshape(-1)))
    little = constant.astype(constant.dtype.newbyteorder("<"), copy=False)
    return plans.Register(type_, np.ascontiguousarray(little).tobytes())


def register_type(composed: Composed, kind: ValueType | HeldType | None) -> plans.RegisterType:
    """Return the type of a register that holds such a value."""
    match kind:
        case ValueType():
            return plans.TensorType(kind.type, tuple(_size(composed, size) for size in kind.shape))
        case LooseTensor():
            return plans.TensorType(kind.type, None if kind.rank is None else (None,) * kind.rank)
        case SequenceOf():
            return plans.SequenceType(register_type(composed, kind.element))
        case OptionalOf():
            return plans.OptionalType(register_type(composed, kind.element))
    # A sequence that is always empty is one of anything.
    return plans.TensorType(DataType.FLOAT32)


def _size(composed: Composed, size: Extent) -> int | str | None:
    if size.constant is not None:
        return size.constant
    name = next(iter(size.dimensions))
    known = size == Extent.dimension(name) and name not in composed.bounds.data
    return name if known else None


def _block(block: plans.Block, numbers: dict[int, int]) -> plans.Block:
    def new(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(numbers[value] for value in values)

    def moved(
        kind: plans.Run | plans.Branch | plans.Loop | plans.Host,
    ) -> plans.Run | plans.Branch | plans.Loop | plans.Host:
        match kind:
            case plans.Run():
                sources = tuple(
                    replace(source, register=numbers[source.register]) for source in kind.dimensions
                )
                return replace(kind, inputs=new(kind.inputs), outputs=new(kind.outputs), dimensions=sources)
            case plans.Host():
                return replace(kind, inputs=new(kind.inputs), outputs=new(kind.outputs))
            case plans.Branch():
                return replace(kind, condition=numbers[kind.condition], outputs=new(kind.outputs))
            case plans.Loop():
                return replace(
                    kind,
                    trip_count=None if kind.trip_count is None else numbers[kind.trip_count],
                    condition=None if kind.condition is None else numbers[kind.condition],
                    initial=new(kind.initial),
                    outputs=new(kind.outputs),
                )

    actions = tuple(replace(action, kind=moved(action.kind)) for action in block.actions)
    return plans.Block(new(block.parameters), actions, new(block.results))

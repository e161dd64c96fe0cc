"""A program with control flow: blocks of instructions over values, as decomposition writes them.

Straight instructions are those of `program`; the others run blocks, or work on what isn't a dense array of
numbers: sequences, strings, tensors whose number of axes isn't known. A *data dimension* is a size that is
known once its source
is: the size of an axis of a value, or an element of an int64 value. `partition` makes straight programs of
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from services.engine.domain.bounds import Bounds
from services.engine.domain.extents import Extent
from services.engine.domain.graph import LooseTensor, OptionalOf, SequenceOf
from services.engine.domain.program import (
    ComputeInstruction,
    NamedValue,
    RasterInstruction,
    ValueType,
)

HeldType = LooseTensor | SequenceOf | OptionalOf
"""What isn't a tensor of known rank."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a data dimension comes from: one of `axis` and `element` is set."""

    value: int
    axis: int | None = None
    element: int | None = None


@dataclass(frozen=True, slots=True)
class HostInstruction:
    """A host operator of `libs.runtime.atomic.HOST`."""

    operator: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    integers: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    origin: str = ""


@dataclass(frozen=True, slots=True)
class EqualInstruction:
    """Demands that two sizes are equal."""

    left: Extent
    right: Extent
    origin: str = ""

    outputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchInstruction:
    """Runs one of two blocks without parameters; the outputs are its results."""

    condition: int
    then_block: BlockCode
    else_block: BlockCode
    outputs: tuple[int, ...]
    origin: str = ""


@dataclass(frozen=True, slots=True)
class LoopInstruction:
    """Runs a block repeatedly, as `isthmus.engine.v1.Loop` says."""

    trip_count: int | None
    condition: int | None
    body: BlockCode
    initial: tuple[int, ...]
    outputs: tuple[int, ...]
    origin: str = ""


AnyInstruction = (
    ComputeInstruction
    | RasterInstruction
    | HostInstruction
    | EqualInstruction
    | BranchInstruction
    | LoopInstruction
)


@dataclass(frozen=True, slots=True)
class BlockCode:
    """Instructions in an order in which they can run; they may read values of the blocks around."""

    parameters: tuple[int, ...]
    instructions: tuple[AnyInstruction, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Composed:
    """A model's program; values are numbered over all its blocks."""

    values: tuple[ValueType | HeldType, ...]
    inputs: tuple[NamedValue, ...]
    outputs: tuple[NamedValue, ...]
    constants: Mapping[int, npt.NDArray[np.generic]]
    body: BlockCode
    sources: Mapping[str, Source] = field(default_factory=dict)
    """By data dimension."""
    aliases: Mapping[int, int] = field(default_factory=dict)
    """Values that are others, of which more is known."""
    bounds: Bounds = field(default_factory=lambda: Bounds({}))


def blocks_of(instruction: AnyInstruction) -> tuple[BlockCode, ...]:
    """Return the blocks that an instruction runs."""
    if isinstance(instruction, BranchInstruction):
        return instruction.then_block, instruction.else_block
    return (instruction.body,) if isinstance(instruction, LoopInstruction) else ()


def written_by(instruction: AnyInstruction) -> tuple[int, ...]:
    """Return the values that an instruction writes, those within its blocks apart."""
    return (instruction.output,) if isinstance(instruction, RasterInstruction) else instruction.outputs


def read_directly(instruction: AnyInstruction) -> Iterator[int]:
    """Yield the values that an instruction reads, those that its blocks or its sizes read apart."""
    match instruction:
        case ComputeInstruction():
            yield from (view.value for view in instruction.inputs)
        case RasterInstruction():
            yield from (region.source.value for region in instruction.regions)
        case HostInstruction():
            yield from instruction.inputs
        case BranchInstruction():
            yield instruction.condition
        case LoopInstruction():
            yield from (
                value for value in (instruction.trip_count, instruction.condition) if value is not None
            )
            yield from instruction.initial
        case EqualInstruction():
            return


def sizes_in(instruction: AnyInstruction, values: tuple[ValueType | HeldType, ...]) -> Iterator[Extent]:
    """Yield every formula that a straight instruction depends on."""
    if isinstance(instruction, EqualInstruction):
        yield instruction.left
        yield instruction.right
        return
    if isinstance(instruction, ComputeInstruction):
        views = list(instruction.inputs)
    elif isinstance(instruction, RasterInstruction):
        views = [region.source for region in instruction.regions]
        for region in instruction.regions:
            yield region.destination_offset
            yield from region.destination_strides
    else:
        return
    for view in views:
        yield view.offset
        for axis in view.axes:
            yield axis.size
            yield axis.stride
        yield from _shape(values[view.value])
    for output in written_by(instruction):
        yield from _shape(values[output])


def _shape(type_: ValueType | HeldType) -> tuple[Extent, ...]:
    return type_.shape if isinstance(type_, ValueType) else ()

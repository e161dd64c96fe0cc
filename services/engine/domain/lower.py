"""Lowering: a program's values get places in memory, its formulas a table, and out comes the plan."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from libs.runtime import plan as plans
from libs.runtime.atomic import ATOMICS
from libs.runtime.elements import ITEM_BYTES, family
from services.engine.domain.check_program import BadProgram
from services.engine.domain.extents import Extent, product
from services.engine.domain.memory import Memory, Span, place
from services.engine.domain.merge.rewrite import outputs_of, views_of
from services.engine.domain.program import (
    ComputeInstruction,
    Instruction,
    NamedValue,
    Program,
    RasterInstruction,
    ValueView,
    whole,
)
from services.engine.domain.table import ExtentTable


def lower(program: Program, *, model_digest: str, producer: str) -> plans.Plan:
    """Return the plan of a program; its dimensions in the order of the inputs.

    Raises:
        BadProgram: when an output has no instruction of its own, or values aren't all in use.
    """
    return _Lowering(program, _input_dimensions(program)).plan(model_digest, producer)


def lower_part(program: Program) -> plans.Plan:
    """Return the plan of a part; its dimensions in the order of names. Raises BadProgram as `lower`."""
    return _Lowering(program, sorted(program.bounds.ranges)).plan("", "")


def item_bytes(program: Program, value: int) -> int:
    """Return the size of one element of a value."""
    return ITEM_BYTES[program.values[value].type]


def value_bytes(program: Program, value: int) -> Extent:
    """Return the size of a value."""
    return product(program.values[value].shape) * item_bytes(program, value)


def spans_of(program: Program) -> list[Span]:
    """Return which values need memory, in the order in which they are written; inputs are there from -1."""
    births = {named.value: -1 for named in program.inputs}
    deaths = dict(births)
    for index, instruction in enumerate(program.instructions):
        for value in outputs_of(instruction):
            births[value] = deaths[value] = index
        for view in views_of(instruction):
            deaths[view.value] = index
    for named in program.outputs:
        deaths[named.value] = len(program.instructions)
    return [
        Span(value, birth, deaths[value], value_bytes(program, value), _taken(program, value, births, deaths))
        for value, birth in births.items()
    ]


def _taken(program: Program, value: int, births: Mapping[int, int], deaths: Mapping[int, int]) -> int | None:
    """Return a value that isn't needed once this one is written, and that this one may lie over.

    It is neither a constant nor an input, as large, and read as it is.
    """
    birth = births[value]
    instruction = program.instructions[birth] if birth >= 0 else None
    if not isinstance(instruction, ComputeInstruction):
        return None
    atomic, output = ATOMICS[instruction.operator], program.values[value]
    if family(output.type) not in atomic.in_place:
        return None
    size = product(output.shape)
    for position in atomic.replaceable:
        taken = instruction.inputs[position].value
        if births.get(taken, -1) < 0 or deaths[taken] != birth:
            continue
        as_it_is = all(
            other in atomic.replaceable and view == whole(taken, output.shape)
            for other, view in enumerate(instruction.inputs)
            if view.value == taken
        )
        if as_it_is and product(program.values[taken].shape) == size:
            return taken
    return None


class _Lowering:
    def __init__(self, program: Program, names: list[str]) -> None:
        self._program = program
        self._names = names
        self._table = ExtentTable(self._names)

    def plan(self, model_digest: str, producer: str) -> plans.Plan:
        program, table = self._program, self._table
        memory = place(spans_of(program))
        equalities = tuple(
            plans.Equality(table.index(left), table.index(right), origin)
            for left, right, origin in program.equalities
        )
        return plans.Plan(
            model_digest=model_digest,
            producer=producer,
            dimensions=tuple(plans.Dimension(name, *program.bounds.ranges[name]) for name in self._names),
            tensors=tuple(self._tensor(value, memory) for value in range(len(program.values))),
            inputs=tuple(self._port(named) for named in program.inputs),
            outputs=tuple(self._port(named) for named in program.outputs),
            buffers=tuple(plans.Buffer(table.index(size)) for size in memory.buffers),
            steps=tuple(self._step(instruction) for instruction in program.instructions),
            equalities=equalities,
            # Last: the others write the table.
            extents=table.extents,
        )

    def _port(self, named: NamedValue) -> plans.Port:
        return plans.Port(named.name, named.value)

    def _tensor(self, value: int, memory: Memory) -> plans.Tensor:
        kind = self._program.values[value]
        shape = tuple(self._table.index(size) for size in kind.shape)
        constant = self._program.constants.get(value)
        if constant is not None:
            little = constant.astype(constant.dtype.newbyteorder("<"), copy=False)
            return plans.Tensor(kind.type, shape, constant=np.ascontiguousarray(little).tobytes())
        if value not in memory.places:
            raise BadProgram(f"value {value} is neither a constant nor written: merging leaves none such")
        buffer, offset = memory.places[value]
        return plans.Tensor(kind.type, shape, placement=plans.Placement(buffer, self._table.index(offset)))

    def _view(self, view: ValueView) -> plans.View:
        index = self._table.index
        axes = tuple(plans.Axis(index(axis.size), index(axis.stride)) for axis in view.axes)
        return plans.View(view.value, index(view.offset), axes)

    def _step(self, instruction: Instruction) -> plans.Step:
        index = self._table.index
        if isinstance(instruction, RasterInstruction):
            kind: plans.Compute | plans.Raster = plans.Raster(
                instruction.output,
                tuple(
                    plans.Region(
                        self._view(region.source),
                        index(region.destination_offset),
                        tuple(index(stride) for stride in region.destination_strides),
                    )
                    for region in instruction.regions
                ),
                b"" if instruction.fill is None else _little(instruction.fill),
            )
        else:
            kind = plans.Compute(
                instruction.operator,
                tuple(self._view(view) for view in instruction.inputs),
                instruction.outputs,
                instruction.axes,
            )
        return plans.Step(
            kind,
            index(calculations(self._program, instruction)),
            index(moved_bytes(self._program, instruction)),
            instruction.origin,
        )


def _input_dimensions(program: Program) -> list[str]:
    """Return the dimensions that inputs have, in the inputs' order."""
    names: dict[str, None] = {}
    for named in program.inputs:
        for size in program.values[named.value].shape:
            names.update(dict.fromkeys(sorted(size.dimensions)))
    return list(names)


def _little(fill: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    return fill.astype(fill.dtype.newbyteorder("<")).tobytes()


def calculations(program: Program, instruction: Instruction) -> Extent:
    """Return the elementary calculations of an instruction: the Q of the cost formula."""
    if isinstance(instruction, RasterInstruction):
        return Extent.of(0)
    atomic = ATOMICS[instruction.operator]
    if atomic.kind == "matmul":
        elements = product((*program.values[instruction.outputs[0]].shape, instruction.inputs[0].shape[-1]))
    elif atomic.kind == "reduce":
        elements = product(instruction.inputs[0].shape)
    else:
        elements = product(program.values[instruction.outputs[0]].shape)
    return elements * atomic.calculations


def moved_bytes(program: Program, instruction: Instruction) -> Extent:
    """Return the bytes that an instruction reads and writes, repeated ones (stride 0) read once."""
    if isinstance(instruction, RasterInstruction):
        total = Extent.of(0)
        if instruction.fill is not None:
            total = value_bytes(program, instruction.output)
        for region in instruction.regions:
            written = product(region.source.shape) * item_bytes(program, instruction.output)
            total = total + written + _read(program, region.source)
        return total
    total = sum((value_bytes(program, output) for output in instruction.outputs), Extent.of(0))
    if ATOMICS[instruction.operator].kind == "gather":
        # Of its data it reads what it writes.
        return total * 2 + _read(program, instruction.inputs[1])
    return sum((_read(program, view) for view in instruction.inputs), total)


def _read(program: Program, view: ValueView) -> Extent:
    return product(axis.size for axis in view.axes if axis.stride.terms) * item_bytes(program, view.value)

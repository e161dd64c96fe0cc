"""Horizontal merging: of equal constants, computations and rasters, one is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import replace

from services.engine.domain.merge.regions import canonical
from services.engine.domain.merge.rewrite import joined_origin, outputs_of, with_views
from services.engine.domain.program import (
    Instruction,
    NamedValue,
    Program,
    RasterInstruction,
    ValueView,
)


def merge_horizontally(program: Program) -> Program:
    """Return the program with equal things done once."""
    kept: dict[Hashable, int] = {}
    same: dict[int, int] = {}
    constants = {}
    for number, array in program.constants.items():
        key = (program.values[number], hashlib.sha256(array.tobytes()).digest())
        same[number] = kept.setdefault(key, number)
        if same[number] == number:
            constants[number] = array

    def change(view: ValueView) -> ValueView:
        value = same.get(view.value, view.value)
        return view if value == view.value else replace(view, value=value)

    instructions: list[Instruction] = []
    places: dict[int, int] = {}
    for instruction in program.instructions:
        instruction = with_views(instruction, change)
        (output,) = outputs_of(instruction)
        if isinstance(instruction, RasterInstruction):
            instruction = replace(
                instruction, regions=tuple(canonical(each, program.bounds) for each in instruction.regions)
            )
        first = kept.setdefault(_key(program, instruction, output), output)
        if first != output:
            same[output] = first
            at = places[first]
            earlier = instructions[at]
            instructions[at] = replace(earlier, origin=joined_origin(earlier.origin, instruction.origin))
            continue
        places[output] = len(instructions)
        instructions.append(instruction)
    outputs = tuple(NamedValue(named.name, same.get(named.value, named.value)) for named in program.outputs)
    return replace(program, constants=constants, instructions=tuple(instructions), outputs=outputs)


def _key(program: Program, instruction: Instruction, output: int) -> Hashable:
    kind = program.values[output]
    if isinstance(instruction, RasterInstruction):
        fill = None if instruction.fill is None else instruction.fill.tobytes()
        return kind, instruction.regions, fill
    return kind, instruction.operator, instruction.inputs, instruction.axes

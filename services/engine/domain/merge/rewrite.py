"""Small tools for passes over programs: replacing what is read, dropping what isn't, numbering anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from services.engine.domain.program import (
    Instruction,
    NamedValue,
    Program,
    RasterInstruction,
    ValueView,
)


def views_of(instruction: Instruction) -> Iterator[ValueView]:
    """Yield what an instruction reads."""
    if isinstance(instruction, RasterInstruction):
        for region in instruction.regions:
            yield region.source
    else:
        yield from instruction.inputs


def outputs_of(instruction: Instruction) -> tuple[int, ...]:
    """Return the values that an instruction writes."""
    return (instruction.output,) if isinstance(instruction, RasterInstruction) else instruction.outputs


def with_views(instruction: Instruction, change: Callable[[ValueView], ValueView]) -> Instruction:
    """Return the instruction with each view that it reads changed."""
    if isinstance(instruction, RasterInstruction):
        regions = tuple(replace(region, source=change(region.source)) for region in instruction.regions)
        return replace(instruction, regions=regions)
    return replace(instruction, inputs=tuple(change(view) for view in instruction.inputs))


def joined_origin(*origins: str) -> str:
    """Return the origins of what became one instruction, each once, in order."""
    parts = [part for origin in origins for part in origin.split(" + ") if part]
    return " + ".join(dict.fromkeys(parts))


def origins_of(program: Program) -> dict[str, int]:
    """Return the position at which each ONNX node first turns up."""
    order: dict[str, int] = {}
    for instruction in program.instructions:
        for part in instruction.origin.split(" + "):
            order.setdefault(part, len(order))
    return order


def with_ordered_origins(program: Program, order: dict[str, int]) -> Program:
    """Return the program with the nodes in each origin in their order."""
    instructions = []
    for instruction in program.instructions:
        parts = sorted(instruction.origin.split(" + "), key=lambda part: order.get(part, len(order)))
        instructions.append(replace(instruction, origin=" + ".join(parts)))
    return replace(program, instructions=tuple(instructions))


def without_dead(program: Program) -> Program:
    """Return the program without instructions and constants that no output needs."""
    needed = {named.value for named in program.outputs}
    kept: list[Instruction] = []
    for instruction in reversed(program.instructions):
        if not needed.isdisjoint(outputs_of(instruction)):
            needed.update(view.value for view in views_of(instruction))
            kept.append(instruction)
    constants = {number: array for number, array in program.constants.items() if number in needed}
    return replace(program, instructions=tuple(reversed(kept)), constants=constants)


def renumbered(program: Program) -> Program:
    """Return the program with only the values in use, numbered in the order they are written."""
    new: dict[int, int] = {}

    def number(values: Iterable[int]) -> None:
        for value in values:
            new.setdefault(value, len(new))

    number(named.value for named in program.inputs)
    number(program.constants)
    for instruction in program.instructions:
        number(outputs_of(instruction))

    def change(view: ValueView) -> ValueView:
        return replace(view, value=new[view.value])

    instructions: list[Instruction] = []
    for instruction in program.instructions:
        moved = with_views(instruction, change)
        if isinstance(moved, RasterInstruction):
            instructions.append(replace(moved, output=new[moved.output]))
        else:
            instructions.append(replace(moved, outputs=tuple(new[value] for value in moved.outputs)))
    old = {place: value for value, place in new.items()}
    return replace(
        program,
        values=tuple(program.values[old[place]] for place in range(len(new))),
        inputs=tuple(NamedValue(named.name, new[named.value]) for named in program.inputs),
        outputs=tuple(NamedValue(named.name, new[named.value]) for named in program.outputs),
        constants={new[number]: array for number, array in program.constants.items()},
        instructions=tuple(instructions),
    )

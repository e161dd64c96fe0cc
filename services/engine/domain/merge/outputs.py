"""The ends of a program: copies of results give way to the results; each output is a value of its own."""

from __future__ import annotations

from dataclasses import replace

from libs.runtime.atomic import ATOMICS
from services.engine.domain.extents import Extent, contiguous_strides, product
from services.engine.domain.merge.compose import reshaped
from services.engine.domain.merge.regions import canonical
from services.engine.domain.merge.rewrite import joined_origin, outputs_of, with_views
from services.engine.domain.program import (
    ComputeInstruction,
    Instruction,
    MoveRegion,
    NamedValue,
    Program,
    RasterInstruction,
    ValueType,
    ValueView,
    whole,
)


def settle_outputs(program: Program) -> Program:
    """Return the program with results written where they are wanted, and nothing given out twice."""
    return _separate(_without_copies(program))


def _without_copies(program: Program) -> Program:
    """Let computes write outputs themselves where a raster only gives their result another shape."""
    producers = {value: step for step in program.instructions for value in outputs_of(step)}
    wanted = {named.value for named in program.outputs}
    values, same = list(program.values), dict[int, int]()
    turned_steps: dict[int, ComputeInstruction] = {}
    for step in program.instructions:
        if not isinstance(step, RasterInstruction) or step.output not in wanted:
            continue
        source = _copied(program, step)
        producer = producers.get(source) if source is not None else None
        if source is None or source in wanted or not isinstance(producer, ComputeInstruction):
            continue
        shape = values[step.output].shape
        if values[source].shape != shape:
            turned = _in_shape(program, producer, shape)
            if turned is None:
                continue
            turned_steps[source] = replace(turned, origin=joined_origin(producer.origin, step.origin))
            values[source] = ValueType(values[source].type, shape)
        same[step.output] = source
        wanted.add(source)

    def change(view: ValueView) -> ValueView:
        # Both are dense and hold the same elements, so that places in one are places in the other.
        return replace(view, value=same.get(view.value, view.value))

    instructions: list[Instruction] = []
    for step in program.instructions:
        (output,) = outputs_of(step)
        if output not in same:
            instructions.append(with_views(turned_steps.get(output, step), change))
    outputs = tuple(NamedValue(named.name, same.get(named.value, named.value)) for named in program.outputs)
    return replace(program, values=tuple(values), instructions=tuple(instructions), outputs=outputs)


def _copied(program: Program, raster: RasterInstruction) -> int | None:
    """Return the value that a raster copies whole, element by element in order; None if it does otherwise."""
    if len(raster.regions) != 1:
        return None
    region = canonical(raster.regions[0], program.bounds)
    one, count = Extent.of(1), product(program.values[raster.output].shape)
    axes = region.source.axes
    flat = len(axes) == 1 and axes[0].stride == one and region.destination_strides == (one,)
    size = axes[0].size if flat else one
    if (not flat and axes) or region.source.offset.terms or region.destination_offset.terms:
        return None
    source = region.source.value
    return source if size == count == product(program.values[source].shape) else None


def _in_shape(
    program: Program, step: ComputeInstruction, shape: tuple[Extent, ...]
) -> ComputeInstruction | None:
    """Return an elementwise step with its result in another shape; None where its views don't allow it."""
    if ATOMICS[step.operator].kind != "elementwise":
        return None
    inputs = []
    for view in step.inputs:
        turned = reshaped(view, shape, program.bounds)
        if turned is None:
            return None
        inputs.append(turned)
    return replace(step, inputs=tuple(inputs))


def _separate(program: Program) -> Program:
    """Copy outputs that are inputs, constants or other outputs, so that each is a result of its own."""
    taken = {named.value for named in program.inputs} | program.constants.keys()
    values, instructions, outputs = list(program.values), list(program.instructions), []
    for named in program.outputs:
        value = named.value
        if value in taken:
            kind = values[value]
            region = MoveRegion(whole(value, kind.shape), Extent.of(0), contiguous_strides(kind.shape))
            value = len(values)
            values.append(kind)
            instructions.append(
                RasterInstruction(
                    value, (canonical(region, program.bounds),), origin=f"{named.name} (output)"
                )
            )
        taken.add(value)
        outputs.append(NamedValue(named.name, value))
    return replace(program, values=tuple(values), instructions=tuple(instructions), outputs=tuple(outputs))

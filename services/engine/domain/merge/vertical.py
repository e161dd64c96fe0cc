"""Vertical merging: readers of rasters read the rasters' sources, and rasters that nothing reads any more go.

A composed raster moves no more than its reader did, so composing always pays: what the producer moved is
saved. A compute's input becomes a view only where its operator works well on it (`accepts`).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from libs.runtime.atomic import ATOMICS
from services.engine.domain.bounds import Bounds
from services.engine.domain.check_program import MAX_RANK
from services.engine.domain.merge.compose import MAX_REGIONS, compose_region, compose_view
from services.engine.domain.merge.regions import canonical, is_dense
from services.engine.domain.merge.rewrite import joined_origin, without_dead
from services.engine.domain.program import (
    ComputeInstruction,
    Instruction,
    MoveRegion,
    Program,
    RasterInstruction,
    ValueView,
)

_MOST_LEVELS = 64
"""Rasters that one reader is taken through: a chain in which not every link could be composed before."""


def merge_vertically(program: Program) -> Program:
    """Return a program that moves less and means the same."""
    bounds = program.bounds
    rasters: dict[int, RasterInstruction] = {}
    instructions: list[Instruction] = []
    for instruction in program.instructions:
        if isinstance(instruction, RasterInstruction):
            merged = _through_rasters(instruction, rasters, bounds)
            rasters[merged.output] = merged
            instructions.append(merged)
        else:
            instructions.append(_absorb(instruction, rasters, program.constants, bounds))
    return without_dead(replace(program, instructions=tuple(instructions)))


def _through_rasters(
    raster: RasterInstruction, rasters: dict[int, RasterInstruction], bounds: Bounds
) -> RasterInstruction:
    raster = replace(raster, regions=tuple(canonical(region, bounds) for region in raster.regions))
    stuck: set[MoveRegion] = set()
    for _ in range(_MOST_LEVELS):
        for index, region in enumerate(raster.regions):
            producer = rasters.get(region.source.value)
            if producer is None or region in stuck:
                continue
            composed = compose_region(region, producer, bounds)
            if composed is not None and composed.fills and not _can_fill(raster, index, producer):
                composed = None
            if composed is None or len(raster.regions) + len(composed.regions) > MAX_REGIONS:
                stuck.add(region)
                continue
            raster = RasterInstruction(
                raster.output,
                (*raster.regions[:index], *composed.regions, *raster.regions[index + 1 :]),
                producer.fill if composed.fills else raster.fill,
                joined_origin(producer.origin, raster.origin),
            )
            break
        else:
            break
    return raster


def _can_fill(raster: RasterInstruction, index: int, producer: RasterInstruction) -> bool:
    """Tell whether the producer's fill may fill the whole of `raster` before its regions are written.

    Regions before this one would show where only the fill should, so that it must be the first.
    """
    if index != 0 or producer.fill is None:
        return False
    return raster.fill is None or raster.fill.tobytes() == producer.fill.tobytes()


def accepts(operator: str, index: int, view: ValueView, bounds: Bounds) -> bool:
    """Tell whether an operator works as well on a view as on a dense copy of it.

    Elementwise operators, reductions and scans take any strides: each element is read once. A matrix product
    goes to BLAS as it is when one of the last two axes is contiguous and the other's step at least as long;
    numpy copies anything else on each call, or multiplies element by element in older versions. Gathering
    copies its whole data first unless they are dense.
    """
    kind = ATOMICS[operator].kind
    if kind == "gather":
        return index != 0 or is_dense(view)
    if kind != "matmul":
        return True
    rows, columns = view.axes[-2:]
    return any(
        inner.stride.constant == 1
        # Of one row the step doesn't matter.
        and (outer.size.constant == 1 or bounds.at_least(outer.stride, inner.size))
        for inner, outer in ((columns, rows), (rows, columns))
    )


def _absorb(
    step: ComputeInstruction,
    rasters: dict[int, RasterInstruction],
    constants: Container[int],
    bounds: Bounds,
) -> ComputeInstruction:
    inputs, origins = [], []
    for index, view in enumerate(step.inputs):
        found, chain = view, view
        for _ in range(_MOST_LEVELS):
            producer = rasters.get(chain.value)
            through = compose_view(chain, producer, bounds) if producer is not None else None
            if producer is None or through is None:
                break
            chain = through
            # A number repeated for several readers came from none of them.
            if chain.value not in constants:
                origins.append(producer.origin)
            if len(chain.axes) <= MAX_RANK and accepts(step.operator, index, chain, bounds):
                found = chain
        inputs.append(found)
    if tuple(inputs) == step.inputs:
        return step
    return replace(step, inputs=tuple(inputs), origin=joined_origin(*reversed(origins), step.origin))

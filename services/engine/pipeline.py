"""From the bytes of an ONNX file to a plan, stage by stage; each stage's result is checked before the next.

    read        bytes → graph                       services.engine.reading
    decompose   graph → program of whole values     services.engine.domain.decompose
    merge       program → fewer instructions        services.engine.domain.merge
    lower       program → plan                      services.engine.domain.lower
    verify      plan against ONNX Runtime           services.engine.verify

It runs in a process of its own (`services.engine.worker`), since it works on files of anybody's making.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from libs.common.errors import Invalid
from libs.runtime.check import check_plan
from libs.runtime.layout import check_layouts
from libs.runtime.plan import Plan
from services.engine.domain.assemble import assemble
from services.engine.domain.check_program import check_program
from services.engine.domain.composed import Composed
from services.engine.domain.decompose.walk import decompose
from services.engine.domain.describe import describe
from services.engine.domain.explanation import Origins
from services.engine.domain.lower import lower
from services.engine.domain.merge import merge
from services.engine.domain.model import Stage
from services.engine.domain.partition import Partitioned, partition
from services.engine.domain.program import Program, RasterInstruction
from services.engine.domain.sizing import sizes_of
from services.engine.reading import read_model

T = TypeVar("T")
_NO_SIZES: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Compiled:
    """A plan, and what it was before."""

    plan: Plan
    origins: Origins


class Stages:
    """Times stages and tells of them as they end."""

    def __init__(self, on_stage: Callable[[Stage], None]) -> None:
        self._on_stage = on_stage

    def run(self, name: str, work: Callable[[], T], summary: Callable[[T], str]) -> T:
        """Do a stage's work."""
        start = time.monotonic()
        result = work()
        self._on_stage(Stage(name, time.monotonic() - start, summary(result)))
        return result


def compile_model(
    data: bytes,
    dimensions: Mapping[str, tuple[int, int]],
    producer: str,
    stages: Stages,
    folder: Path | None = None,
    *,
    sizes: Mapping[str, int] = _NO_SIZES,
) -> Compiled:
    """Return the plan of an ONNX model, not yet verified.

    Args:
        data: the file.
        dimensions: smallest and largest size of symbolic dimensions; others take the defaults.
        producer: whom the plan names as its maker.
        stages: told of each stage that ends.
        folder: holds the files that the model keeps its data in; None where it has none.
        sizes: of dimensions, at which the figures of what was decomposed are told; others are the smallest.

    Raises:
        Invalid: when the file isn't a model that can be read, naming the node or value; for sizes that the
            plan isn't made for.
        BadProgram: when a stage of ours breaks the rules.
    """
    graph = stages.run(
        "read",
        lambda: read_model(data, dimensions, folder),
        lambda graph: f"{_several(len(graph.nodes), 'node')} of opset {graph.opset}",
    )

    def take_apart() -> Program | Partitioned:
        written = decompose(graph)
        program = partition(written) if isinstance(written, Composed) else written
        for part in _parts(program):
            check_program(part, "decompose")
        return program

    program = stages.run("decompose", take_apart, _contents)

    def put_together() -> Program | Partitioned:
        if isinstance(program, Partitioned):
            merged: Program | Partitioned = replace(
                program, parts=tuple(merge(part) for part in program.parts)
            )
        else:
            merged = merge(program)
        for part in _parts(merged):
            check_program(part, "merge")
        return merged

    merged = stages.run("merge", put_together, _contents)

    def place() -> Plan:
        if isinstance(merged, Partitioned):
            plan = assemble(merged, model_digest=graph.digest, producer=producer)
        else:
            plan = lower(merged, model_digest=graph.digest, producer=producer)
        try:
            check_plan(plan)
            check_layouts(plan)
        except Invalid as error:
            bounds = ", ".join(f"{d.name} from {d.minimum} to {d.maximum}" for d in plan.dimensions)
            raise Invalid(
                f"the model makes no plan for {bounds or 'its sizes'} ({error}); give smaller bounds",
                reason="BAD_BOUNDS",
            ) from error
        return plan

    plan = stages.run("lower", place, _size)
    return Compiled(plan, describe(graph, program, sizes_of(plan, sizes)))


def _parts(program: Program | Partitioned) -> tuple[Program, ...]:
    return program.parts if isinstance(program, Partitioned) else (program,)


def _rasters(program: Program) -> int:
    return sum(isinstance(step, RasterInstruction) for step in program.instructions)


def _contents(program: Program | Partitioned) -> str:
    parts = _parts(program)
    rasters = sum(map(_rasters, parts))
    computes = sum(len(part.instructions) for part in parts) - rasters
    text = f"{_several(computes, 'atomic operator')}, {_several(rasters, 'raster')}"
    if isinstance(program, Partitioned):
        text += f" in {_several(len(parts), 'part')} and {_several(len(program.blocks), 'block')}"
    return text


def _size(plan: Plan) -> str:
    parts = plan.composition.parts if plan.composition else (plan,)
    steps, tensors = sum(len(part.steps) for part in parts), sum(len(part.tensors) for part in parts)
    return f"{_several(steps, 'step')}, {_several(tensors, 'tensor')}"


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"

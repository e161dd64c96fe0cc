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
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from libs.common.errors import Invalid
from libs.runtime.check import check_plan
from libs.runtime.layout import check_layouts
from libs.runtime.plan import Plan
from services.engine.domain.check_program import check_program
from services.engine.domain.decompose.walk import decompose
from services.engine.domain.explain import Origins
from services.engine.domain.lower import lower
from services.engine.domain.merge import merge
from services.engine.domain.model import Stage
from services.engine.domain.program import Program, RasterInstruction
from services.engine.reading import read_model

T = TypeVar("T")


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
    data: bytes, dimensions: Mapping[str, tuple[int, int]], producer: str, stages: Stages
) -> Compiled:
    """Return the plan of an ONNX model, not yet verified.

    Args:
        data: the file.
        dimensions: smallest and largest size of symbolic dimensions; others take the defaults.
        producer: whom the plan names as its maker.
        stages: told of each stage that ends.

    Raises:
        Invalid: when the file isn't a model that can be read, naming the node or value.
        BadProgram: when a stage of ours breaks the rules.
    """
    graph = stages.run(
        "read",
        lambda: read_model(data, dimensions),
        lambda graph: f"{_several(len(graph.nodes), 'node')} of opset {graph.opset}",
    )

    def take_apart() -> Program:
        program = decompose(graph)
        check_program(program, "decompose")
        return program

    program = stages.run("decompose", take_apart, _contents)

    def put_together() -> Program:
        merged = merge(program)
        check_program(merged, "merge")
        return merged

    merged = stages.run("merge", put_together, _contents)

    def place() -> Plan:
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

    plan = stages.run(
        "lower",
        place,
        lambda plan: f"{_several(len(plan.steps), 'step')}, {_several(len(plan.tensors), 'tensor')}",
    )
    operators = Counter(node.operator for node in graph.nodes)
    return Compiled(plan, Origins(dict(sorted(operators.items())), _rasters(program)))


def _rasters(program: Program) -> int:
    return sum(isinstance(step, RasterInstruction) for step in program.instructions)


def _contents(program: Program) -> str:
    rasters = _rasters(program)
    computes = len(program.instructions) - rasters
    return f"{_several(computes, 'atomic operator')}, {_several(rasters, 'raster')}"


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"

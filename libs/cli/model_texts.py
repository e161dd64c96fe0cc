"""Explanations of models in words and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from isthmus.engine.v1 import engine_pb2
from libs.cli.output import counted, human_bytes
from libs.cli.tensors import type_name
from libs.runtime.atomic import ATOMICS, RASTER

_Group = engine_pb2.GroupSpec


@dataclass(frozen=True, slots=True)
class FigureRow:
    """A figure before merging, where it is known, and after it."""

    label: str
    before: int | None
    after: int
    before_text: str
    after_text: str


def figure_rows(found: engine_pb2.Explanation) -> list[FigureRow]:
    """Return the figures of an explanation; none of an engine that doesn't tell them."""
    if not found.HasField("after"):
        return []
    before = found.before if found.HasField("before") else None
    rows = []
    for label, is_bytes, of in _FIGURES:
        first, second = None if before is None else of(before), of(found.after)
        if label.startswith("memory, planned") and not first:
            # 0: too large to be planned before merging.
            first = None
        rows.append(FigureRow(label, first, second, _text(first, is_bytes), _text(second, is_bytes)))
    return rows


def _text(value: int | None, is_bytes: bool) -> str:
    if value is None:
        return "-"
    return human_bytes(value) if is_bytes else f"{value:,}"


def operator_counts(figures: engine_pb2.Figures) -> dict[str, int]:
    """Return how often each operator occurs."""
    return {each.operator: each.count for each in figures.operators}


def step_count(operators: Iterable[engine_pb2.OperatorCount]) -> int:
    """Return how many steps there are; branches and loops are none, but have some."""
    return sum(each.count for each in operators if each.operator not in ("branch", "loop"))


_FIGURES = (
    ("steps", False, lambda figures: step_count(figures.operators)),
    ("of them rasters", False, lambda figures: operator_counts(figures).get(RASTER, 0)),
    ("regions of rasters", False, lambda figures: figures.region_count),
    ("bytes moved", True, lambda figures: figures.moved_bytes),
    ("of them by rasters", True, lambda figures: figures.raster_bytes),
    ("calculations", False, lambda figures: figures.calculations),
    ("memory, peak", True, lambda figures: figures.peak_bytes),
    ("memory, planned", True, lambda figures: figures.planned_bytes),
    ("memory without reuse", True, lambda figures: figures.unshared_bytes),
)


def shape_text(spec: engine_pb2.TensorSpec) -> str:
    """Return an input or output for people."""
    return f"{spec.name}: {type_name(spec.type)}[{', '.join(spec.shape)}]"


def counts_text(found: Iterable[engine_pb2.OperatorCount]) -> str:
    """Return operators with how often they occur, the most frequent first."""
    counts = sorted(found, key=lambda each: (-each.count, each.operator))
    return ", ".join(f"{each.count} {each.operator}" for each in counts)


def sizes_text(found: engine_pb2.Explanation) -> str:
    """Return the sizes that figures are told at."""
    sizes = ", ".join(f"{name} = {size}" for name, size in sorted(found.sizes.items()))
    return sizes or "the model's own sizes"


def explanation_rows(found: engine_pb2.Explanation) -> list[tuple[str, object]]:
    """Return what is said of a model or plan, by label."""
    dimensions = [f"{each.name} from {each.minimum} to {each.maximum}" for each in found.dimensions]
    after = found.after if found.HasField("after") else None
    calculations = after.calculations if after else sum(step.calculations for step in found.steps)
    moved = after.moved_bytes if after else sum(step.moved_bytes for step in found.steps)
    steps = step_count(found.operators_after)
    nested = [group for group in found.groups if group.kind in (_Group.KIND_BRANCH, _Group.KIND_LOOP)]
    return [
        ("model", found.model_digest),
        ("inputs", tuple(map(shape_text, found.inputs))),
        ("outputs", tuple(map(shape_text, found.outputs))),
        *([("dimensions", ", ".join(dimensions))] if dimensions else []),
        *([("operators", counts_text(found.operators_before))] if found.operators_before else []),
        ("steps", f"{steps}: {counts_text(found.operators_after)}"),
        *([("control flow", _control(found.groups))] if nested else []),
        ("rasters", _rasters(found)),
        ("constants", human_bytes(found.constant_bytes)),
        ("memory", _memory(found)),
        ("work", f"{counted(calculations, 'calculation')}, {human_bytes(moved)} moved"),
        *([("figures at", sizes_text(found))] if found.sizes else []),
    ]


def _memory(found: engine_pb2.Explanation) -> str:
    text = f"{human_bytes(found.buffer_bytes)} of a call"
    unshared = found.after.unshared_bytes
    return f"{text}; {human_bytes(unshared)} without reuse" if found.HasField("after") else text


def _control(groups: Sequence[engine_pb2.GroupSpec]) -> str:
    counts = {
        name: sum(group.kind == kind for group in groups)
        for name, kind in (
            ("part", _Group.KIND_PART),
            ("branch", _Group.KIND_BRANCH),
            ("loop", _Group.KIND_LOOP),
        )
    }
    plurals = {"branch": "branches"}
    told = [
        f"{count} {name if count == 1 else plurals.get(name, name + 's')}"
        for name, count in counts.items()
        if count
    ]
    return ", ".join(told) + "; both sides of a branch count, and one round of a loop"


def _rasters(found: engine_pb2.Explanation) -> str:
    left = f"{found.raster_count_after} left after merging"
    # A plan doesn't say what was merged when it was made.
    return f"{found.raster_count_before} written, {left}" if found.operators_before else left


def group_label(group: engine_pb2.GroupSpec) -> str:
    """Return what a group is."""
    first = group.origin.partition(" + ")[0]
    match group.kind:
        case _Group.KIND_PLAN:
            return "plan"
        case _Group.KIND_PART:
            return f"part: {group.step_count} step{'' if group.step_count == 1 else 's'}"
        case _Group.KIND_BRANCH:
            return f"branch: {first}"
        case _Group.KIND_THEN:
            return "where it holds"
        case _Group.KIND_ELSE:
            return "else"
        case _Group.KIND_LOOP:
            rounds = (
                f"× {group.round_count:,} rounds" if group.round_count else "× as many rounds as data say"
            )
            return f"loop: {first} {rounds}"
    return "group"


def step_kind(step: engine_pb2.StepSpec) -> str:
    """Return "raster", "compute" or "host"."""
    if step.operator == RASTER:
        return "raster"
    return "compute" if step.operator in ATOMICS else "host"


def control_nodes(groups: Iterable[engine_pb2.GroupSpec]) -> dict[str, str]:
    """Return what became of nodes that are branches or loops, by how steps call them."""
    kinds = {_Group.KIND_BRANCH: "a branch", _Group.KIND_LOOP: "a loop"}
    return {
        origin: kinds[group.kind]
        for group in groups
        if group.kind in kinds
        for origin in group.origin.split(" + ")
    }


def is_constant(node: engine_pb2.NodeSpec) -> bool:
    """Tell whether a node only gives what is known when the plan is made, of nothing but itself."""
    return not node.reads and not node.written_count and not node.steps


def became(
    node: engine_pb2.NodeSpec, steps: Sequence[engine_pb2.StepSpec], control: Mapping[str, str]
) -> str:
    """Return what became of an ONNX node; `control` is what `control_nodes` says."""
    whole = control.get(f"{node.name} ({node.operator})", "")
    if not node.steps:
        return whole or ("known when the plan is made" if not node.written_count else "merged away")
    shown = [_step_text(step, steps) for step in node.steps[:6]]
    more = f", and {len(node.steps) - 6} more" if len(node.steps) > 6 else ""
    return (f"{whole}; " if whole else "") + ", ".join(shown) + more


def _step_text(place: int, steps: Sequence[engine_pb2.StepSpec]) -> str:
    if place >= len(steps):
        return str(place)
    others = steps[place].origin.count(" + ")
    shared = f" with {others} other node{'' if others == 1 else 's'}" if others else ""
    return f"{place} {steps[place].operator}{shared}"

"""Pictures of explanations and inspections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isthmus.engine.v1 import engine_pb2
from libs.cli.drawing.charts import Pair, Series
from libs.cli.drawing.columns import Box, Column, Frame
from libs.cli.drawing.picture import Picture, draw
from libs.cli.model_texts import (
    became,
    control_nodes,
    figure_rows,
    group_label,
    is_constant,
    sizes_text,
    step_count,
    step_kind,
)
from libs.cli.output import counted, human_bytes
from libs.cli.tensors import type_name

_ROOT = Frame("", "", None, 0)


def explanation_svg(found: engine_pb2.Explanation, name: str) -> str:
    """Return the picture of an explanation, of a file or digest called `name`."""
    columns = []
    if found.nodes:
        columns.append(_nodes(found))
    columns.append(_steps(found))
    heading = f"{name}: " + ("before and after" if found.nodes else "the plan")
    return draw(
        Picture(
            title=heading,
            subtitle=f"figures at {sizes_text(found)}",
            pairs=tuple(
                Pair(row.label, row.before, row.after, (row.before_text, row.after_text))
                for row in figure_rows(found)
            ),
            columns=tuple(columns),
            moved=_moved(found),
            memory=_memory(found),
        )
    )


def inspection_svg(found: Mapping[str, Any], name: str) -> str:
    """Return the picture of an ONNX file as it is; `found` as `services.engine.local` tells it."""
    faults: dict[str, str] = {}
    for fault in found["faults"]:
        faults.setdefault(fault["node"], fault["reason"])
    nodes = [
        _Node(
            each["name"],
            each["operator"],
            tuple(each["reads"]),
            each["inside"],
            each["operator"] == "Constant",
        )
        for each in found["nodes"]
    ]

    def box(node: _Node, place: int) -> Box:
        title = f"{node.name} ({node.operator})"
        reason = faults.get(node.name)
        kind = "node" if reason is None else "fault"
        return Box(node.operator, node.name, title if reason is None else f"{title}\n{reason}", kind)

    total = sum(found["operators"].values())
    opsets = ", ".join(f"{domain} {version}" for domain, version in found["opsets"].items())
    subtitle = f"{counted(total, 'node')} of {opsets}; {human_bytes(found['parameter_bytes'])} of parameters"
    return draw(Picture(title=name, subtitle=subtitle, columns=(_node_column(nodes, box, "", total),)))


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    operator: str
    reads: tuple[int, ...]
    inside: int | None
    is_constant: bool


def _node_column(
    nodes: Sequence[_Node], box: Callable[[_Node, int], Box], heading: str, total: int
) -> Column:
    """Return ONNX nodes as boxes, those in bodies in frames; constants are left out, since they are many."""
    frames = [_ROOT]
    frame_of: dict[int | None, int] = {None: 0}
    places: dict[int, int] = {}
    boxes: list[Box] = []
    for place, node in enumerate(nodes):
        if node.is_constant:
            continue
        if node.inside not in frame_of:
            assert node.inside is not None
            outer = nodes[node.inside]
            frame_of[node.inside] = len(frames)
            label = f"in {outer.name} ({outer.operator})"
            frames.append(Frame(label, "", frame_of[outer.inside], len(boxes)))
        places[place] = len(boxes)
        reads = tuple(places[read] for read in node.reads if read in places)
        boxes.append(replace(box(node, place), reads=reads, frame=frame_of[node.inside]))
    hidden = len(nodes) - len(boxes)
    text = f"{heading}{total:,} ONNX nodes" + (f", {_constants(hidden)} not drawn" if hidden else "")
    return Column(text, tuple(boxes), tuple(frames), total - hidden)


def _constants(count: int) -> str:
    return f"{count:,} constant{'' if count == 1 else 's'}"


def _nodes(found: engine_pb2.Explanation) -> Column:
    control = control_nodes(found.groups)
    texts = [became(node, found.steps, control) for node in found.nodes]
    whole = {each.inside for each in found.nodes if each.HasField("inside")}
    nodes = [
        _Node(
            each.name,
            each.operator,
            tuple(each.reads),
            each.inside if each.HasField("inside") else None,
            is_constant(each) and place not in whole,
        )
        for place, each in enumerate(found.nodes)
    ]

    def box(node: _Node, place: int) -> Box:
        steps = found.nodes[place].steps
        leaves_nothing = not steps and texts[place] in ("merged away", "known when the plan is made")
        return Box(
            node.operator,
            f"{node.name}{_steps_text(steps)}",
            f"{node.name} ({node.operator})\n{texts[place]}",
            "node",
            faded=leaves_nothing,
        )

    return _node_column(nodes, box, "before: ", sum(each.count for each in found.operators_before))


def _steps_text(steps: Sequence[int]) -> str:
    if not steps:
        return ""
    more = ", …" if len(steps) > 3 else ""
    return f" → {', '.join(map(str, steps[:3]))}{more}"


def _steps(found: engine_pb2.Explanation) -> Column:
    most = max((step.moved_bytes for step in found.steps), default=0) or 1
    boxes = tuple(
        Box(
            first=step.operator,
            second=f"{step.index} · {_tensor(step.output)}",
            title=_step_title(step),
            kind=step_kind(step),
            reads=tuple(step.reads),
            frame=step.group if step.group < len(found.groups) else 0,
            bar=step.moved_bytes / most,
        )
        for step in found.steps
    )
    frames = tuple(
        _ROOT
        if not group.HasField("parent")
        else Frame(
            group_label(group),
            f"{group_label(group)}\nfrom {group.origin}\n{human_bytes(group.figures.moved_bytes)} moved",
            group.parent,
            group.first_step,
            sideways=group.kind == engine_pb2.GroupSpec.KIND_BRANCH,
        )
        for group in found.groups
    )
    total = step_count(found.operators_after)
    heading = f"{'after: ' if found.nodes else ''}{counted(total, 'step')}"
    return Column(heading, boxes, frames or (_ROOT,), total)


def _tensor(spec: engine_pb2.TensorSpec) -> str:
    return f"{type_name(spec.type)}[{', '.join(spec.shape)}]"


def _step_title(step: engine_pb2.StepSpec) -> str:
    regions = f" of {counted(step.region_count, 'region')}" if step.region_count else ""
    return (
        f"{step.index}: {step.operator}{regions} → {_tensor(step.output)}\n"
        f"from {step.origin or 'nothing'}\n{counted(step.calculations, 'calculation')}, "
        f"{human_bytes(step.moved_bytes)} moved, {human_bytes(step.living_bytes)} living"
    )


def _moved(found: engine_pb2.Explanation) -> Series:
    return Series(
        "bytes that each step reads and writes, in the order in which they run; rasters in orange",
        tuple(step.moved_bytes for step in found.steps),
        tuple(step.operator == "raster" for step in found.steps),
        tuple(_step_title(step) for step in found.steps),
        "",
    )


def _memory(found: engine_pb2.Explanation) -> Series:
    figures = found.after
    peak = f"peak {human_bytes(figures.peak_bytes)}"
    return Series(
        f"memory that lives at each step, constants apart: planned {human_bytes(figures.planned_bytes)}, "
        f"without reuse it would be {human_bytes(figures.unshared_bytes)}",
        tuple(step.living_bytes for step in found.steps),
        tuple(step.operator == "raster" for step in found.steps),
        tuple(_step_title(step) for step in found.steps),
        peak,
    )

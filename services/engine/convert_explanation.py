"""Explanations as messages: the part of `convert` that is about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from isthmus.engine.v1 import engine_pb2, plan_pb2
from services.engine.domain.explanation import (
    Explanation,
    Figures,
    GroupText,
    NodeText,
    StepText,
    TensorText,
)

MAX_STEPS_BYTES = 2 * 1024 * 1024
"""Of the steps of an explanation, so that it stays below the limit of a message."""
MAX_NODES_BYTES = 768 * 1024
MAX_GROUPS_BYTES = 512 * 1024
MAX_ORIGIN = 1024
LONGEST_NAME = 256
MAX_NODE_STEPS = 256
_FRAMING_BYTES = 8
_LARGEST = 2**64 - 1
_KINDS = {
    "plan": engine_pb2.GroupSpec.KIND_PLAN,
    "part": engine_pb2.GroupSpec.KIND_PART,
    "branch": engine_pb2.GroupSpec.KIND_BRANCH,
    "then": engine_pb2.GroupSpec.KIND_THEN,
    "else": engine_pb2.GroupSpec.KIND_ELSE,
    "loop": engine_pb2.GroupSpec.KIND_LOOP,
}


class _Message(Protocol):
    def ByteSize(self) -> int: ...  # noqa: N802 - protobuf names it


M = TypeVar("M", bound=_Message)


def explanation(found: Explanation) -> engine_pb2.Explanation:
    """Return an explanation as a message: the first steps, nodes and groups, where they aren't too many."""
    origins = found.origins
    message = engine_pb2.Explanation(
        model_digest=found.model_digest,
        inputs=[_tensor(each) for each in found.inputs],
        outputs=[_tensor(each) for each in found.outputs],
        dimensions=[
            plan_pb2.Dimension(name=each.name, minimum=each.minimum, maximum=each.maximum)
            for each in found.dimensions
        ],
        operators_before=_counts(origins.operators if origins else {}),
        operators_after=_counts(found.operators),
        raster_count_before=origins.rasters if origins else 0,
        raster_count_after=found.rasters,
        constant_bytes=found.constant_bytes,
        buffer_bytes=_count(found.buffer_bytes),
        sizes=found.sizes,
    )
    if origins is not None and origins.before is not None:
        message.before.CopyFrom(_figures(origins.before))
    if found.figures is not None:
        message.after.CopyFrom(_figures(found.figures))
    message.steps.extend(_first(_steps(found.steps), MAX_STEPS_BYTES))
    message.nodes.extend(_first(_nodes(origins.nodes if origins else (), found.became), MAX_NODES_BYTES))
    message.groups.extend(_first(_groups(found.groups), MAX_GROUPS_BYTES))
    return message


def _first(messages: Iterator[M], room: int) -> Iterator[M]:
    """Yield the first messages, as many as fit."""
    for message in messages:
        room -= message.ByteSize() + _FRAMING_BYTES
        if room < 0:
            return
        yield message


def _steps(steps: Sequence[StepText]) -> Iterator[engine_pb2.StepSpec]:
    for index, step in enumerate(steps):
        yield engine_pb2.StepSpec(
            index=index,
            operator=step.operator,
            output=_tensor(step.output),
            origin=step.origin[:MAX_ORIGIN],
            calculations=_count(step.calculations),
            moved_bytes=_count(step.moved_bytes),
            region_count=step.regions,
            reads=step.reads,
            group=step.group,
            living_bytes=_count(step.living_bytes),
        )


def _nodes(nodes: Sequence[NodeText], became: Sequence[tuple[int, ...]]) -> Iterator[engine_pb2.NodeSpec]:
    for index, (node, steps) in enumerate(zip(nodes, became, strict=True)):
        yield engine_pb2.NodeSpec(
            index=index,
            name=node.name[:LONGEST_NAME],
            operator=node.operator[:LONGEST_NAME],
            reads=node.reads,
            written_count=node.written,
            steps=steps[:MAX_NODE_STEPS],
            inside=node.inside,
        )


def _groups(groups: Sequence[GroupText]) -> Iterator[engine_pb2.GroupSpec]:
    for index, group in enumerate(groups):
        yield engine_pb2.GroupSpec(
            index=index,
            kind=_KINDS[group.kind],
            origin=group.origin[:MAX_ORIGIN],
            parent=group.parent,
            first_step=group.first_step,
            step_count=group.step_count,
            round_count=_count(group.rounds),
            reads=group.reads,
            figures=None if group.figures is None else _figures(group.figures),
        )


def _figures(found: Figures) -> engine_pb2.Figures:
    return engine_pb2.Figures(
        operators=_counts(found.operators),
        region_count=_count(found.regions),
        moved_bytes=_count(found.moved_bytes),
        raster_bytes=_count(found.raster_bytes),
        calculations=_count(found.calculations),
        peak_bytes=_count(found.peak_bytes),
        planned_bytes=_count(found.planned_bytes),
        unshared_bytes=_count(found.unshared_bytes),
    )


def _count(value: int) -> int:
    return min(max(value, 0), _LARGEST)


def _tensor(text: TensorText) -> engine_pb2.TensorSpec:
    return engine_pb2.TensorSpec(
        name=text.name, type=plan_pb2.DataType.ValueType(int(text.type)), shape=text.shape
    )


def _counts(counts: Mapping[str, int]) -> list[engine_pb2.OperatorCount]:
    return [engine_pb2.OperatorCount(operator=name, count=count) for name, count in counts.items()]

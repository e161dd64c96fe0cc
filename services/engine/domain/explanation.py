"""What is said of a plan, and of the model it was made of: values for people, without plans or programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from libs.runtime.plan import DataType, Dimension

GroupKind = Literal["plan", "part", "branch", "then", "else", "loop"]
MOST_NODES = 5_000
"""Of those that are told of one by one."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a call takes at given sizes.

    Of a composition each part counts once: both sides of a branch, one round of a loop.

    Attributes:
        operators: how often each atomic operator, "raster", host operator, "branch" and "loop" occurs.
        regions: of all rasters.
        moved_bytes: read and written.
        raster_bytes: those of them that rasters move.
        calculations: elementary ones.
        peak_bytes: the most that live at one time in one part, constants apart.
        planned_bytes: memory that is taken, where values share what others no longer need; 0: not planned.
        unshared_bytes: memory that it would take if each value had a place of its own.
    """

    operators: Mapping[str, int]
    regions: int
    moved_bytes: int
    raster_bytes: int
    calculations: int
    peak_bytes: int
    planned_bytes: int
    unshared_bytes: int

    @property
    def steps(self) -> int:
        """How many there are; branches and loops are none, but have some."""
        return sum(count for name, count in self.operators.items() if name not in ("branch", "loop"))

    @property
    def rasters(self) -> int:
        """How many of the steps only move data."""
        return self.operators.get("raster", 0)


@dataclass(frozen=True, slots=True)
class NodeText:
    """An ONNX node of the model as it was read: functions are in place of their calls.

    Attributes:
        name: as in the model, or "#<position>".
        operator: with its domain where that isn't ONNX's default one.
        reads: the nodes, by their place in the list, whose outputs it reads.
        written: how many steps decomposition wrote for it; 0: what it gives is known when the plan is made.
        inside: the node whose body it is in; None at the top.
    """

    name: str
    operator: str
    reads: tuple[int, ...] = ()
    written: int = 0
    inside: int | None = None

    @property
    def origin(self) -> str:
        """How steps call it."""
        return f"{self.name} ({self.operator})"


@dataclass(frozen=True, slots=True)
class Origins:
    """What is known of the model that a plan was made of."""

    operators: Mapping[str, int]
    """How often each ONNX operator occurs, in bodies too."""
    rasters: int
    """That decomposition wrote."""
    before: Figures | None = None
    """As decomposed, before merging."""
    nodes: tuple[NodeText, ...] = ()
    """The first ones of a large model."""


@dataclass(frozen=True, slots=True)
class TensorText:
    """An array for people; its shape holds numbers and formulas."""

    name: str
    type: DataType
    shape: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepText:
    """A step for people; figures at given sizes.

    Attributes:
        operator: atomic operator, "raster" or host operator.
        output: what it writes.
        origin: ONNX nodes it came from.
        calculations: elementary ones.
        moved_bytes: read and written.
        regions: of a raster.
        reads: earlier steps whose results it reads.
        group: where it is, by its place among the groups.
        living_bytes: memory that its part needs while it runs, constants apart.
    """

    operator: str
    output: TensorText
    origin: str
    calculations: int
    moved_bytes: int
    regions: int
    reads: tuple[int, ...] = ()
    group: int = 0
    living_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GroupText:
    """Steps that belong together: the plan, a part of it, a branch and its sides, a loop.

    Attributes:
        kind: what it is.
        origin: ONNX nodes it came from.
        parent: the group it is in, by its place; None for the plan.
        first_step: how many steps come before it.
        step_count: how many are in it and in the groups within.
        rounds: of a loop, where it is always the same number; 0: data tell.
        reads: steps whose results decide on it: a condition, a number of rounds, sizes.
        figures: sums of what is in it.
    """

    kind: GroupKind
    origin: str
    parent: int | None
    first_step: int
    step_count: int
    rounds: int = 0
    reads: tuple[int, ...] = ()
    figures: Figures | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a plan is made of; figures at `sizes`."""

    model_digest: str
    inputs: tuple[TensorText, ...]
    outputs: tuple[TensorText, ...]
    dimensions: tuple[Dimension, ...]
    steps: tuple[StepText, ...]
    constant_bytes: int
    buffer_bytes: int
    origins: Origins | None = None
    operators: Mapping[str, int] = field(default_factory=dict)
    """How often each atomic operator, "raster", host operator, "branch" and "loop" occurs."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of dimensions; those that data decide are assumed."""
    figures: Figures | None = None
    groups: tuple[GroupText, ...] = ()
    """Each after the one it is in; the first is the plan."""
    became: tuple[tuple[int, ...], ...] = ()
    """For each node of `origins` the steps that do its work, alone or with others."""

    @property
    def rasters(self) -> int:
        """How many rasters there are."""
        return self.operators.get("raster", 0)


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a node, or the model where `node` is "", can't be read."""

    node: str
    operator: str
    reason: str

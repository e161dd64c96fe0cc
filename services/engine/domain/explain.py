"""Says what a plan is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from libs.runtime.extents import evaluate, formulas
from libs.runtime.plan import (
    Branch,
    Compute,
    DataType,
    Dimension,
    Host,
    Loop,
    Plan,
    Port,
    RegisterType,
    Run,
    TensorType,
)


@dataclass(frozen=True, slots=True)
class Origins:
    """What is known of the model that a plan was made of."""

    operators: Mapping[str, int]
    """How often each ONNX operator occurs."""
    rasters: int
    """That decomposition wrote."""


@dataclass(frozen=True, slots=True)
class TensorText:
    """An array for people; its shape holds numbers and formulas."""

    name: str
    type: DataType
    shape: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepText:
    """A step for people; figures at the dimensions' minimum."""

    operator: str
    output: TensorText
    origin: str
    calculations: int
    moved_bytes: int
    regions: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a plan is made of; figures at the dimensions' minimum."""

    model_digest: str
    inputs: tuple[TensorText, ...]
    outputs: tuple[TensorText, ...]
    dimensions: tuple[Dimension, ...]
    steps: tuple[StepText, ...]
    constant_bytes: int
    buffer_bytes: int
    origins: Origins | None = None
    operators: Mapping[str, int] = field(default_factory=dict)
    """How often each atomic operator, and "raster", occurs."""

    @property
    def rasters(self) -> int:
        """How many rasters there are."""
        return self.operators.get("raster", 0)


def explain(plan: Plan, origins: Origins | None = None) -> Explanation:
    """Return what a checked plan is made of; `origins` where the model is known.

    Of a composition the parts are told one after the other, as if each were run once; sizes that data decide
    are taken to be 1.

    Raises:
        Invalid: when a formula of the plan has no value at the dimensions' minimum.
    """
    composition = plan.composition
    if composition is None:
        inputs = _Part(plan, {}).tensors(plan.inputs)
        outputs = _Part(plan, {}).tensors(plan.outputs)
        parts, actions = [_Part(plan, {})], list[str]()
    else:
        inputs, outputs = (
            tuple(_register_text(port.name, composition.registers[port.register].type) for port in ports)
            for ports in (composition.inputs, composition.outputs)
        )
        minima = {dimension.name: dimension.minimum for dimension in plan.dimensions}
        parts = [_Part(part, minima) for part in composition.parts]
        actions = [_action_name(action.kind) for block in composition.blocks for action in block.actions]
    steps = [step for part in parts for step in part.steps()]
    constants = [] if composition is None else [register.constant for register in composition.registers]
    return Explanation(
        model_digest=plan.model_digest,
        inputs=inputs,
        outputs=outputs,
        dimensions=plan.dimensions,
        steps=tuple(steps),
        constant_bytes=sum(part.constant_bytes for part in parts)
        + sum(len(each or b"") for each in constants),
        buffer_bytes=sum(part.buffer_bytes for part in parts),
        origins=origins,
        operators=_counts([*(step.operator for step in steps), *filter(None, actions)]),
    )


def _action_name(kind: Run | Branch | Loop | Host) -> str:
    if isinstance(kind, Host):
        return kind.operator
    return "" if isinstance(kind, Run) else type(kind).__name__.lower()


def _register_text(name: str, type_: RegisterType) -> TensorText:
    if isinstance(type_, TensorType):
        shape = ("...",) if type_.shape is None else tuple("?" if s is None else str(s) for s in type_.shape)
        return TensorText(name, type_.type, shape)
    return _register_text(name, type_.element)


class _Part:
    """A straight plan, at the smallest sizes of its dimensions."""

    def __init__(self, plan: Plan, minima: Mapping[str, int]) -> None:
        sizes = [
            max(minima.get(each.name, each.minimum), 1 if minima.get(each.name) is None else 0)
            for each in plan.dimensions
        ]
        self._plan = plan
        self._values = evaluate(plan.extents, sizes)
        self._texts = formulas(plan.extents, plan.dimensions)

    def _tensor(self, name: str, index: int) -> TensorText:
        found = self._plan.tensors[index]
        return TensorText(name, found.type, tuple(str(self._texts[extent]) for extent in found.shape))

    def tensors(self, ports: Sequence[Port]) -> tuple[TensorText, ...]:
        return tuple(self._tensor(port.name, port.tensor) for port in ports)

    def steps(self) -> Iterator[StepText]:
        for step in self._plan.steps:
            kind = step.kind
            output = kind.outputs[0] if isinstance(kind, Compute) else kind.output
            yield StepText(
                operator=kind.operator if isinstance(kind, Compute) else "raster",
                output=self._tensor(f"t{output}", output),
                origin=step.origin,
                calculations=self._values[step.calculations],
                moved_bytes=self._values[step.moved_bytes],
                regions=0 if isinstance(kind, Compute) else len(kind.regions),
            )

    @property
    def constant_bytes(self) -> int:
        return sum(len(each.constant) for each in self._plan.tensors if each.constant is not None)

    @property
    def buffer_bytes(self) -> int:
        return sum(self._values[buffer.size_bytes] for buffer in self._plan.buffers)


def _counts(names: Sequence[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))

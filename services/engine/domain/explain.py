"""Says what a plan is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from libs.runtime.extents import evaluate, formulas
from libs.runtime.plan import Compute, DataType, Dimension, Plan


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

    Raises:
        Invalid: when a formula of the plan has no value at the dimensions' minimum.
    """
    values = evaluate(plan.extents, [dimension.minimum for dimension in plan.dimensions])
    texts = formulas(plan.extents, plan.dimensions)

    def tensor(name: str, index: int) -> TensorText:
        found = plan.tensors[index]
        return TensorText(name, found.type, tuple(str(texts[extent]) for extent in found.shape))

    steps = []
    for step in plan.steps:
        kind = step.kind
        output = kind.outputs[0] if isinstance(kind, Compute) else kind.output
        steps.append(
            StepText(
                operator=kind.operator if isinstance(kind, Compute) else "raster",
                output=tensor(f"t{output}", output),
                origin=step.origin,
                calculations=values[step.calculations],
                moved_bytes=values[step.moved_bytes],
                regions=0 if isinstance(kind, Compute) else len(kind.regions),
            )
        )
    return Explanation(
        model_digest=plan.model_digest,
        inputs=tuple(tensor(port.name, port.tensor) for port in plan.inputs),
        outputs=tuple(tensor(port.name, port.tensor) for port in plan.outputs),
        dimensions=plan.dimensions,
        steps=tuple(steps),
        constant_bytes=sum(len(each.constant) for each in plan.tensors if each.constant is not None),
        buffer_bytes=sum(values[buffer.size_bytes] for buffer in plan.buffers),
        origins=origins,
        operators=_counts([step.operator for step in steps]),
    )


def _counts(names: Sequence[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))

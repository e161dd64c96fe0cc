"""Plans of the engine, by the plan runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from libs.common.errors import Invalid
from libs.runtime.inputs import PortSpec
from libs.runtime.loading import load_plan
from libs.runtime.program import Program
from services.serving.domain.tensors import NAMES, Array, Signature, TensorSpec

# One for each number of rows that comes often; memory bounds them before that.
_BINDINGS = 64


class PlanBackend:
    """See `services.serving.domain.backend.Backend`."""

    def __init__(self, path: Path, memory_bytes: int) -> None:
        """Load a plan whose buffers may take `memory_bytes`; raise Invalid when it is no sound plan."""
        plan = load_plan(path.read_bytes(), "blob")
        self._program = Program(plan, max_buffer_bytes=memory_bytes, max_bindings=_BINDINGS)
        self.signature = Signature(
            tuple(_spec(port) for port in self._program.inputs),
            tuple(_spec(port) for port in self._program.outputs),
        )
        self.sizes: Mapping[str, tuple[int, int]] = {
            dimension.name: (dimension.minimum, dimension.maximum) for dimension in plan.dimensions
        }

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """See `Backend`."""
        return self._program.run(inputs)


def _spec(port: PortSpec) -> TensorSpec:
    if port.containers or port.shape is None:
        raise Invalid(
            f"{port}: models of sequences, optionals or tensors of any number of axes can't be served"
        )
    return TensorSpec(port.name, NAMES[port.dtype], tuple("" if size == "?" else size for size in port.shape))

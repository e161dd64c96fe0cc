"""Plans of the engine, by the plan runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from libs.common.errors import Invalid
from libs.runtime.inputs import PortSpec
from libs.runtime.loading import load_plan
from libs.runtime.program import Program
from services.serving.domain.tensors import BYTES, NAMES, Array, Signature, TensorSpec, encoded

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
        self._texts_out = [spec.name for spec in self.signature.outputs if spec.datatype == BYTES]
        self.sizes: Mapping[str, tuple[int, int]] = {
            dimension.name: (dimension.minimum, dimension.maximum) for dimension in plan.dimensions
        }

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """See `Backend`; BYTES must be UTF-8, as strings of plans are."""
        outputs = self._program.run(inputs)
        for name in self._texts_out:
            outputs[name] = encoded(outputs[name])
        return outputs


def _spec(port: PortSpec) -> TensorSpec:
    if port.containers or port.shape is None or port.dtype not in NAMES:
        raise Invalid(
            f"blob: {port} isn't served; use tensors of booleans, integers, strings or floats of 16, 32 or "
            "64 bits, with a known number of axes",
            reason="UNSUPPORTED_TYPE",
        )
    return TensorSpec(port.name, NAMES[port.dtype], tuple("" if size == "?" else size for size in port.shape))

"""Runs straight plans: one binding for a call."""

from collections.abc import Mapping

from libs.common.errors import Exhausted
from libs.runtime.bind import Binding
from libs.runtime.faults import TOO_MUCH_WORK
from libs.runtime.inputs import InputReader, PortSpec, port_specs, wrong_shape
from libs.runtime.kernels.fault import Array
from libs.runtime.layout import Layout, lay_out
from libs.runtime.plan import Plan
from libs.runtime.pool import BindingPool
from libs.runtime.work import work_of


class Straight:
    """A straight plan that can be run, from any number of threads at once."""

    def __init__(self, plan: Plan, max_buffer_bytes: int, max_bindings: int, max_work: int | None) -> None:
        self._plan = plan
        self._max_buffer_bytes = max_buffer_bytes
        self._max_work = max_work
        self._reader = InputReader(plan)
        self.inputs: tuple[PortSpec, ...] = self._reader.specs
        self.outputs: tuple[PortSpec, ...] = port_specs(plan, plan.outputs)
        self._names = [port.name for port in plan.outputs]
        self._pool = BindingPool(
            self._lay_out,
            lambda _, layout: Binding(plan, layout),
            max_bytes=max_buffer_bytes,
            max_kept=max_bindings,
        )

    @property
    def held_bytes(self) -> int:
        """Memory of bindings, in use or kept."""
        return self._pool.bytes

    def run(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Compute the outputs, by name; see `libs.runtime.program`."""
        arrays = self._reader.arrays(inputs)
        with self._pool.lend(self._reader.sizes(arrays)) as binding:
            for spec, array, shape in zip(self.inputs, arrays, binding.input_shapes, strict=True):
                if array.shape != shape:
                    raise wrong_shape(spec, array.shape)
            return dict(zip(self._names, binding.run(arrays), strict=True))

    def _lay_out(self, sizes: tuple[int, ...]) -> Layout:
        layout = lay_out(self._plan, sizes, max_buffer_bytes=self._max_buffer_bytes)
        if self._max_work is not None and (work := work_of(self._plan, layout)) > self._max_work:
            pairs = zip(self._plan.dimensions, sizes, strict=True)
            named = ", ".join(f"{dimension.name}={size}" for dimension, size in pairs) or "these inputs"
            text = f"a call for {named} takes {work} calculations, more than {self._max_work}"
            raise Exhausted(text, reason=TOO_MUCH_WORK)
        return layout

"""Runs plans: `Program(decode(data)).run({"input": …})`.

A program checks its plan once. For each combination of sizes it lays the plan out, checks every bound,
takes memory and builds the kernels: a binding. A call copies its inputs in, runs the kernels in a flat loop
and copies the outputs out. Bindings are kept for later calls of the same sizes.
"""

from collections.abc import Mapping

import numpy as np

from libs.common.errors import Exhausted
from libs.runtime.bind import Binding
from libs.runtime.check import check_plan
from libs.runtime.faults import TOO_MUCH_WORK
from libs.runtime.inputs import InputReader, PortSpec, port_specs, wrong_shape
from libs.runtime.kernels.fault import Array
from libs.runtime.layout import MAX_BUFFER_BYTES, Layout, check_layouts, lay_out
from libs.runtime.numpy_types import check_numpy
from libs.runtime.plan import Plan
from libs.runtime.pool import BindingPool
from libs.runtime.work import work_of

MAX_BINDINGS = 8


def warm_up() -> None:
    """Make numpy's linear algebra take the memory that it keeps, tens of MiB, before anybody's is counted.

    Raises ImportError where numpy is too old.
    """
    check_numpy()
    side = np.ones((256, 256), np.float32)
    np.matmul(side, side)


class Program:
    """A plan that can be run, from any number of threads at once."""

    def __init__(
        self,
        plan: Plan,
        *,
        max_buffer_bytes: int = MAX_BUFFER_BYTES,
        max_bindings: int = MAX_BINDINGS,
        max_work: int | None = None,
    ) -> None:
        """Check the plan.

        Args:
            plan: what to run.
            max_buffer_bytes: bound on the memory of all calls together, constants, inputs and outputs apart.
            max_bindings: how many bindings are kept for later calls, at least 0.
            max_work: bound on what one call takes, as `libs.runtime.work` counts it. None where a plan is
                trusted, or runs where a call is killed that takes too long.

        Raises:
            Invalid: BAD_PLAN, naming the place: the plan isn't sound at its smallest or largest sizes.
        """
        check_plan(plan)
        check_layouts(plan)
        self._plan = plan
        self._max_buffer_bytes = max_buffer_bytes
        self._max_work = max_work
        self._reader = InputReader(plan)
        self.outputs: tuple[PortSpec, ...] = port_specs(plan, plan.outputs)
        """In the plan's order."""
        self._pool = BindingPool(
            self._lay_out,
            lambda layout: Binding(plan, layout),
            max_bytes=max_buffer_bytes,
            max_kept=max_bindings,
        )

    @property
    def inputs(self) -> tuple[PortSpec, ...]:
        """In the plan's order."""
        return self._reader.specs

    @property
    def held_bytes(self) -> int:
        """Memory of bindings, in use or kept."""
        return self._pool.bytes

    def run(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Compute the outputs, by name, as arrays of the caller's own.

        `inputs` gives every input once: arrays of the input's very type, or numbers and nested lists, which
        are converted where nothing is lost but precision.

        Raises:
            Invalid: BAD_INPUT for inputs that are missing, unknown or of another type or shape, for sizes
                that the plan wasn't made for, and for values without a result (an index out of range, an
                integer divided by 0); BAD_PLAN where the plan isn't sound at these sizes.
            Exhausted: TOO_MUCH_MEMORY, over `max_buffer_bytes`; TOO_MUCH_WORK, over `max_work`.
        """
        arrays = self._reader.arrays(inputs)
        with self._pool.lend(self._reader.sizes(arrays)) as binding:
            for spec, array, shape in zip(self.inputs, arrays, binding.input_shapes, strict=True):
                if array.shape != shape:
                    raise wrong_shape(spec, array.shape)
            return binding.run(arrays)

    def _lay_out(self, sizes: tuple[int, ...]) -> Layout:
        layout = lay_out(self._plan, sizes, max_buffer_bytes=self._max_buffer_bytes)
        if self._max_work is not None and (work := work_of(self._plan, layout)) > self._max_work:
            pairs = zip(self._plan.dimensions, sizes, strict=True)
            named = ", ".join(f"{dimension.name}={size}" for dimension, size in pairs) or "these inputs"
            text = f"a call for {named} takes {work} calculations, more than {self._max_work}"
            raise Exhausted(text, reason=TOO_MUCH_WORK)
        return layout

"""Runs plans: `Program(decode(data)).run({"input": …})`.

A program checks its plan once. For each combination of sizes it lays the plan out, checks every bound,
takes memory and builds the kernels: a binding. A call copies its inputs in, runs the kernels in a flat loop
and copies the outputs out. Bindings are kept for later calls of the same sizes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from libs.runtime.check import check_plan
from libs.runtime.composed import Composed
from libs.runtime.inputs import PortSpec
from libs.runtime.layout import MAX_BUFFER_BYTES, check_layouts
from libs.runtime.numpy_types import check_numpy
from libs.runtime.plan import Plan
from libs.runtime.straight import Straight

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
            max_bindings: how many bindings are kept for later calls, at least 0. Of a composition: for each
                of its parts, about, and always one for each.
            max_work: bound on what one call takes, as `libs.runtime.work` counts it. None where a plan is
                trusted, or runs where a call is killed that takes too long.

        Raises:
            Invalid: BAD_PLAN, naming the place: the plan isn't sound at its smallest or largest sizes.
        """
        check_plan(plan)
        check_layouts(plan)
        made = Straight if plan.composition is None else Composed
        self._runner: Straight | Composed = made(plan, max_buffer_bytes, max_bindings, max_work)

    @property
    def inputs(self) -> tuple[PortSpec, ...]:
        """In the plan's order."""
        return self._runner.inputs

    @property
    def outputs(self) -> tuple[PortSpec, ...]:
        """In the plan's order."""
        return self._runner.outputs

    @property
    def held_bytes(self) -> int:
        """Memory of bindings, in use or kept."""
        return self._runner.held_bytes

    def run(self, inputs: Mapping[str, object]) -> dict[str, Any]:
        """Compute the outputs, by name, as arrays of the caller's own.

        `inputs` gives every input once: arrays of the input's very type, or numbers and nested lists, which
        are converted where nothing is lost but precision. A sequence is a list, an optional what it holds or
        None, strings are arrays of str; outputs are the same.

        Raises:
            Invalid: BAD_INPUT for inputs that are missing, unknown or of another type or shape, for sizes
                that the plan wasn't made for, and for values without a result (an index out of range, an
                integer divided by 0); BAD_PLAN where the plan isn't sound at these sizes.
            Exhausted: TOO_MUCH_MEMORY, over `max_buffer_bytes`; TOO_MUCH_WORK, over `max_work`.
        """
        return self._runner.run(inputs)

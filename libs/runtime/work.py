"""What a call really takes, whatever its plan says of itself: for a bound on the time of a call.

A plan of a few bytes may ask for years: views repeat elements, and steps are many.
"""

import math

from libs.runtime.layout import ComputeLayout, Layout
from libs.runtime.plan import DataType, Plan

_BLAS = (DataType.FLOAT32, DataType.FLOAT64)
_BLAS_SPEED = 8
"""So many calculations of a product of these types take as long as one of any other kind, or less."""


def work_of(plan: Plan, layout: Layout) -> int:
    """Return the elementary calculations and moves of a call, and of building its binding.

    One takes about a nanosecond on a 2020s x86 core. Eight in a product that goes to BLAS count as one.
    """
    total = 0
    for step in layout.steps:
        elements = math.prod(layout.shapes[step.output])
        if not isinstance(step, ComputeLayout):
            # Each region that might write an element twice is checked by marking what it writes.
            marked = sum(not move.destination.nested for move in step.moves)
            total += elements * (2 + marked) + sum(move.source.elements for move in step.moves)
        elif step.atomic.kind == "matmul":
            each = step.inputs[0].shape[-1] * step.atomic.calculations
            fast = plan.tensors[step.output].type in _BLAS
            total += elements * each // (_BLAS_SPEED if fast else 1)
        elif step.atomic.kind == "reduce":
            total += step.inputs[0].elements * step.atomic.calculations
        else:
            total += elements * step.atomic.calculations
    return total

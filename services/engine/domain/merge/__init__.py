"""Merging: from what decomposition wrote down, one movement at a time, to as few instructions as possible.

horizontal   equal instructions are done once
vertical     readers of rasters read the rasters' sources, as regions or as views
products     products over an axis of 1 are multiplications; those by one matrix over a batch become one
outputs      copies of whole results give way to the results; each output gets a value of its own
"""

from services.engine.domain.merge.horizontal import merge_horizontally
from services.engine.domain.merge.outputs import settle_outputs
from services.engine.domain.merge.products import fold_batches, multiply_outer
from services.engine.domain.merge.rewrite import (
    origins_of,
    renumbered,
    with_ordered_origins,
    without_dead,
)
from services.engine.domain.merge.vertical import merge_vertically
from services.engine.domain.program import Program


def merge(program: Program) -> Program:
    """Return a program that means the same, with fewer instructions and less movement."""
    order = origins_of(program)
    program = merge_horizontally(multiply_outer(without_dead(program)))
    program = merge_vertically(program)
    # Instructions that read through different rasters may only be equal now.
    program = without_dead(merge_horizontally(program))
    return renumbered(with_ordered_origins(settle_outputs(fold_batches(program)), order))

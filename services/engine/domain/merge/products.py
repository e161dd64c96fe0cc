"""Matrix products in the forms that are cheapest.

A product over an axis of 1 sums nothing: [m, 1] by [1, n] is a multiplication with both repeated. And
[b, m, k] by [k, n], repeated b times, is [b·m, k] by [k, n]: one call of BLAS instead of b.
"""

from __future__ import annotations

from dataclasses import replace

from libs.runtime.atomic import ATOMICS
from services.engine.domain.extents import Extent, product
from services.engine.domain.merge.compose import reshaped
from services.engine.domain.merge.vertical import accepts
from services.engine.domain.program import (
    ComputeInstruction,
    Instruction,
    Program,
    ValueType,
    ViewAxis,
)


def multiply_outer(program: Program) -> Program:
    """Return the program with products over an axis of 1 as multiplications."""
    instructions: list[Instruction] = []
    for step in program.instructions:
        if isinstance(step, ComputeInstruction) and ATOMICS[step.operator].kind == "matmul":
            left, right = step.inputs
            if left.axes[-1].size.constant == 1:
                wide = replace(left, axes=(*left.axes[:-1], ViewAxis(right.axes[-1].size, Extent.of(0))))
                rows = ViewAxis(left.axes[-2].size, Extent.of(0))
                tall = replace(right, axes=(*right.axes[:-2], rows, right.axes[-1]))
                step = replace(step, operator="mul", inputs=(wide, tall))
        instructions.append(step)
    return replace(program, instructions=tuple(instructions))


def fold_batches(program: Program) -> Program:
    """Return the program with products by one matrix as one product.

    Their values get the folded shape: their readers' views count elements, so that nothing else changes.
    Outputs of the program keep theirs, and so do the products that give them.
    """
    outputs = {named.value for named in program.outputs}
    values = list(program.values)
    instructions: list[Instruction] = []
    for step in program.instructions:
        if isinstance(step, ComputeInstruction) and step.outputs[0] not in outputs:
            folded = _folded(program, step)
            if folded is not None:
                left, right = folded.inputs
                kind = values[step.outputs[0]].type
                values[step.outputs[0]] = ValueType(kind, (left.axes[0].size, right.axes[1].size))
                step = folded
        instructions.append(step)
    return replace(program, values=tuple(values), instructions=tuple(instructions))


def _folded(program: Program, step: ComputeInstruction) -> ComputeInstruction | None:
    if ATOMICS[step.operator].kind != "matmul":
        return None
    left, right = step.inputs
    if len(left.axes) < 3 or any(axis.stride.terms for axis in right.axes[:-2]):
        return None
    rows = reshaped(left, (product(left.shape[:-1]), left.shape[-1]), program.bounds)
    if rows is None or not accepts(step.operator, 0, rows, program.bounds):
        return None
    return replace(step, inputs=(rows, replace(right, axes=right.axes[-2:])))

"""Matrix products that share their right side over a batch become one product of taller matrices.

[b, m, k] by [k, n], repeated b times, is [b·m, k] by [k, n]: one call of BLAS instead of b.
"""

from __future__ import annotations

from dataclasses import replace

from libs.runtime.atomic import ATOMICS
from services.engine.domain.extents import product
from services.engine.domain.merge.compose import reshaped
from services.engine.domain.merge.vertical import accepts
from services.engine.domain.program import (
    ComputeInstruction,
    Instruction,
    Program,
    ValueType,
)


def fold_batches(program: Program) -> Program:
    """Return the program with such products folded.

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

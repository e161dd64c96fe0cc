"""The operators that can be taken apart, by their ONNX name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from libs.runtime.atomic import ATOMICS, HOST
from libs.runtime.workload import HEADINGS, workload_cells, workload_table
from services.engine.domain.decompose import (
    activation,
    casting,
    control,
    convolution,
    deconvolution,
    einsum,
    elementwise,
    generation,
    indexing,
    learning,
    linear,
    movement,
    normalisation,
    ordering,
    pooling,
    quantisation,
    random,
    recurrent,
    reduction,
    regions,
    resampling,
    sampling,
    scattering,
    sequences,
    signal,
    slicing,
    suppression,
    text,
    training,
)
from services.engine.domain.decompose.operator import Operator

_FAMILIES = (
    activation,
    casting,
    control,
    convolution,
    deconvolution,
    einsum,
    elementwise,
    generation,
    indexing,
    learning,
    linear,
    movement,
    normalisation,
    ordering,
    pooling,
    quantisation,
    random,
    recurrent,
    reduction,
    regions,
    resampling,
    sampling,
    scattering,
    sequences,
    signal,
    slicing,
    suppression,
    text,
    training,
)


def _collected() -> Mapping[str, Operator]:
    operators: dict[str, Operator] = {}
    for family in _FAMILIES:
        for operator in family.OPERATORS:
            assert operator.name not in operators, operator.name
            operators[operator.name] = replace(operator, family=family.__name__.rpartition(".")[2])
    return MappingProxyType(dict(sorted(operators.items())))


REGISTRY = _collected()
"""By name, in order."""


def workload_markdown() -> str:
    """Return the table of kernels with and without decomposition of docs/engine-operators.md."""
    rows = workload_table([operator.kind for operator in REGISTRY.values()], len(ATOMICS), len(HOST))
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    lines += ["| " + " | ".join(workload_cells(label, found)) + " |" for label, found in rows]
    return "\n".join(lines)


def markdown() -> str:
    """Return the table of docs/engine-operators.md."""
    rows = ["| operator | from opset | kind | file |", "|---|---|---|---|"]
    rows += [f"| {op.name} | {op.since} | {op.kind} | {op.family} |" for op in REGISTRY.values()]
    return "\n".join(rows)

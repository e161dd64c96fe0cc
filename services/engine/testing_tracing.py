"""Traces functions into plans, and runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from libs.runtime.plan import Plan
from libs.runtime.program import Program as Runner
from services.engine.domain.assemble import assemble
from services.engine.domain.bounds import Bounds
from services.engine.domain.check_program import check_program
from services.engine.domain.composed import Composed
from services.engine.domain.extents import Extent
from services.engine.domain.lower import lower
from services.engine.domain.merge import merge
from services.engine.domain.partition import partition
from services.engine.domain.program import Program, ValueType
from services.engine.domain.reference import data_type
from services.engine.domain.tracing import Traced, trace

Array = np.ndarray[Any, Any]
_LARGEST = 64


def types_of(arrays: Mapping[str, Array], open_sizes: bool) -> tuple[dict[str, ValueType], Bounds]:
    """Return the types of inputs, and bounds; `open_sizes`: the first size of each is a dimension."""
    types, ranges = {}, {}
    for name, array in arrays.items():
        shape = [Extent.of(size) for size in array.shape]
        if open_sizes and shape:
            # Arrays of as many places are taken to go together.
            dimension = f"n{array.shape[0]}"
            shape[0] = Extent.dimension(dimension)
            ranges[dimension] = (1, _LARGEST)
        types[name] = ValueType(data_type(array.dtype), tuple(shape))
    return types, Bounds(ranges)


def plan_of(written: Program | Composed) -> Plan:
    """Return the plan of a program, each part of it checked before and after merging."""
    digest, producer = "sha256:" + "0" * 64, "tests"
    if isinstance(written, Composed):
        parted = partition(written)
        for part in parted.parts:
            check_program(part, "decompose")
        merged = replace(parted, parts=tuple(merge(part) for part in parted.parts))
        for part in merged.parts:
            check_program(part, "merge")
        return assemble(merged, model_digest=digest, producer=producer)
    check_program(written, "decompose")
    straight = merge(written)
    check_program(straight, "merge")
    return lower(straight, model_digest=digest, producer=producer)


def run_traced(
    function: Traced, arrays: Mapping[str, Array], *, open_sizes: bool = False
) -> dict[str, Array]:
    """Trace a function for these inputs' types, and run the plan on them."""
    types, bounds = types_of(arrays, open_sizes)
    return Runner(plan_of(trace(function, types, bounds))).run(arrays)

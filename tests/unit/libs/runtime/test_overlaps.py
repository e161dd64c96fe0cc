"""Who may lie over whom: an output over what its step reads last, where that is sound."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from libs.common.errors import Invalid
from libs.runtime.layout import check_layouts, lay_out
from libs.runtime.plan import DataType, Extent, Operation, Placement, Plan
from libs.runtime.program import Program
from libs.runtime.testing import PlanBuilder


def _over(plan: PlanBuilder, output: int, taken: int) -> Plan:
    """The plan with a tensor in the place of another."""
    built = plan.build()
    tensors = list(built.tensors)
    tensors[output] = replace(tensors[output], placement=tensors[taken].placement)
    return replace(built, tensors=tuple(tensors))


def test_an_output_may_take_the_place_of_what_its_step_is_the_last_to_read() -> None:
    plan = PlanBuilder()
    x = plan.input("x", [3, 4])
    y = plan.compute("neg", [x], [3, 4])
    w = plan.constant(np.arange(4.0))
    # Read as one long row, and twice.
    z = plan.compute("add", [plan.view(y, [12], [1]), plan.view(y, [12], [1])], [12])
    last = plan.compute("mul", [plan.view(z, [3, 4], [4, 1]), plan.broadcast(w, [3, 4])], [3, 4])
    plan.output("out", last)
    once = _over(plan, z, y)
    tensors = list(once.tensors)
    tensors[last] = replace(tensors[last], placement=tensors[y].placement)
    twice = replace(once, tensors=tuple(tensors))
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    for built in (once, twice):
        check_layouts(built)
        found = Program(built).run({"x": values})["out"]
        np.testing.assert_array_equal(found, -2 * values * np.arange(4, dtype=np.float32))


def _neg(plan: PlanBuilder, shape: list[int], type_: DataType = DataType.FLOAT32) -> int:
    return plan.compute("neg", [plan.input("x", shape, type_)], shape)


def _reversed(plan: PlanBuilder) -> tuple[int, int]:
    y = _neg(plan, [12])
    return plan.compute("abs", [plan.view(y, [12], [-1], 11)], [12]), y


def _twice(plan: PlanBuilder) -> tuple[int, int]:
    y = _neg(plan, [3, 3])
    return plan.compute("add", [y, plan.view(y, [3, 3], [1, 3])], [3, 3]), y


def _needed(plan: PlanBuilder) -> tuple[int, int]:
    y = _neg(plan, [12])
    z = plan.compute("abs", [y], [12])
    plan.output("later", plan.compute("exp", [y], [12]))
    return z, y


def _output(plan: PlanBuilder) -> tuple[int, int]:
    y = _neg(plan, [12])
    plan.output("y", y)
    return plan.compute("abs", [y], [12]), y


def _input(plan: PlanBuilder) -> tuple[int, int]:
    x = plan.input("x", [12])
    return plan.compute("abs", [x], [12]), x


def _larger(plan: PlanBuilder) -> tuple[int, int]:
    y = _neg(plan, [16])
    return plan.compute("abs", [plan.view(y, [12], [1])], [12]), y


def _whole_division(plan: PlanBuilder) -> tuple[int, int]:
    y = _neg(plan, [12], DataType.INT32)
    return plan.compute("div", [y, y], [12]), y


def _product(plan: PlanBuilder) -> tuple[int, int]:
    y = _neg(plan, [3, 3])
    return plan.compute("matmul", [y, plan.input("w", [3, 3])], [3, 3]), y


def _choice(plan: PlanBuilder) -> tuple[int, int]:
    y, z = _neg(plan, [12]), plan.input("z", [12])
    holds = plan.input("c", [12], DataType.BOOL)
    return plan.compute("where", [holds, y, z], [12]), y


def _raster(plan: PlanBuilder) -> tuple[int, int]:
    y = _neg(plan, [12])
    return plan.raster([plan.region(y, [1])], [12], fill=0.0), y


def _updates(plan: PlanBuilder) -> tuple[int, int]:
    y, at = _neg(plan, [3]), plan.input("at", [3], DataType.INT64)
    return plan.compute("scatter", [plan.input("data", [3]), at, y], [3]), y


@pytest.mark.parametrize(
    "make",
    [
        _reversed,
        _twice,
        _needed,
        _output,
        _input,
        _larger,
        _whole_division,
        _product,
        _choice,
        _raster,
        _updates,
    ],
)
def test_an_output_may_not_lie_over_what_is_needed_or_read_in_another_order(
    make: Callable[[PlanBuilder], tuple[int, int]],
) -> None:
    plan = PlanBuilder()
    output, taken = make(plan)
    plan.output("z", output)
    check_layouts(plan.build())
    with pytest.raises(Invalid, match=rf"tensors\[{output}\] overlaps tensors\[{taken}\], which is still"):
        check_layouts(_over(plan, output, taken))


def test_an_output_may_not_lie_partly_over_its_input() -> None:
    plan = PlanBuilder()
    y = _neg(plan, [32])
    z = plan.compute("abs", [y], [32])
    plan.output("z", z)
    built = plan.build()
    placement = built.tensors[y].placement
    assert placement is not None
    moved = Extent(Operation.CONSTANT, 64 + built.extents[placement.offset_bytes].value)
    tensors = list(built.tensors)
    tensors[z] = replace(tensors[z], placement=Placement(0, len(built.extents)))
    broken = replace(built, extents=(*built.extents, moved), tensors=tuple(tensors))
    with pytest.raises(Invalid, match=r"tensors\[2\] overlaps tensors\[1\]"):
        lay_out(broken, [])


def test_many_tensors_in_one_place_are_checked_in_reasonable_time() -> None:
    plan = PlanBuilder()
    value = plan.input("x", [1])
    for _ in range(3000):
        value = plan.compute("neg", [value], [1])
    plan.output("y", value)
    assert len(lay_out(plan.build(), []).steps) == 3000

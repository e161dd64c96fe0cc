"""What a call takes is told from its layout, and bounded before anything is computed."""

import numpy as np
import pytest

from libs.common.errors import Exhausted
from libs.runtime.layout import lay_out
from libs.runtime.plan import DataType, Plan
from libs.runtime.program import Program
from libs.runtime.testing import PlanBuilder, linear_plan
from libs.runtime.work import work_of


def _work(plan: Plan, *sizes: int) -> int:
    return work_of(plan, lay_out(plan, sizes))


def _product(type_: DataType) -> Plan:
    plan = PlanBuilder()
    batch = plan.dimension("batch")
    x, w = plan.input("x", [batch, 32], type_), plan.input("w", [32, 5], type_)
    plan.output("y", plan.compute("matmul", [x, w], [batch, 5]))
    return plan.build()


@pytest.mark.parametrize(
    ("type_", "each"), [(DataType.FLOAT32, 8), (DataType.INT32, 64), (DataType.FLOAT16, 64)]
)
def test_products_count_their_multiplications(type_: DataType, each: int) -> None:
    assert _work(_product(type_), 3) == 3 * 5 * each


def test_repeated_elements_count_each_time() -> None:
    plan = PlanBuilder()
    view = plan.view(plan.input("x", [1]), [1000, 1000], [0, 0])
    plan.output("y", plan.compute("reduce_sum", [view], [], axes=[0, 1]))
    assert _work(plan.build()) == 1_000_000


def test_elementwise_operators_count_what_they_calculate() -> None:
    plan = PlanBuilder()
    plan.output("y", plan.compute("exp", [plan.input("x", [10])], [10]))
    assert _work(plan.build()) == 80


def test_regions_that_must_be_marked_count_the_whole_output() -> None:
    def moving(strides: list[int]) -> Plan:
        plan = PlanBuilder()
        region = plan.region(plan.input("x", [2, 2]), strides)
        plan.output("y", plan.raster([region] * 3, [100], fill=0.0))
        return plan.build()

    assert _work(moving([2, 1])) == 200 + 3 * 4
    assert _work(moving([1, 1])) == 200 + 3 * 4 + 3 * 100


def test_a_call_that_takes_too_much_is_refused_before_it_starts() -> None:
    plan = linear_plan([1.0] * 16)
    program = Program(plan, max_work=_work(plan, 10))
    assert program.run({"x": np.zeros((10, 16), np.float32)})["probability"].shape == (10,)
    with pytest.raises(Exhausted, match=r"batch=11 takes \d+ calculations, more than") as caught:
        program.run({"x": np.zeros((11, 16), np.float32)})
    assert caught.value.reason == "TOO_MUCH_WORK"
    assert program.held_bytes < 4096

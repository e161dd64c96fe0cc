"""What lowering writes down: places, figures, tables."""

import numpy as np
import pytest

from libs.runtime.check import check_plan
from libs.runtime.layout import check_layouts, lay_out
from libs.runtime.plan import Compute, Plan, Raster
from services.engine.domain.explain import explain
from services.engine.domain.explanation import Origins
from services.engine.domain.extents import Extent
from services.engine.domain.lower import lower
from services.engine.domain.merge import merge
from services.engine.domain.program import Program
from services.engine.testing_programs import Sketch

N = Extent.dimension("n")
DIGEST = "sha256:" + "1" * 64


def lowered(program: Program) -> Plan:
    plan = lower(program, model_digest=DIGEST, producer="the test")
    check_plan(plan)
    check_layouts(plan)
    return plan


def dense() -> Program:
    """Return softmax-like work over a dense layer of x [n, 8]."""
    s = Sketch(n=(2, 64))
    x, w = s.input("x", "n", 8), s.constant(np.ones((8, 4), np.float32))
    y = s.compute("exp", s.compute("matmul", x, w))
    total = s.broadcast(s.reshape(s.compute("reduce_sum", y, axes=(1,)), N, 1), N, 4)
    return merge(s.program(y=s.compute("div", y, total)))


def test_a_plan_tells_its_figures() -> None:
    plan = lowered(dense())
    found = explain(plan, Origins({"Softmax": 1}, 2))
    assert [step.operator for step in found.steps] == ["matmul", "exp", "reduce_sum", "div"]
    # At n = 2, the smallest: 2·8·4 multiplications and additions, 8 for each of 8 exponentials, and so on.
    assert [step.calculations for step in found.steps] == [128, 64, 8, 32]
    # x and w read, y written, of 4 bytes each; the sum is read once for each row.
    assert [step.moved_bytes for step in found.steps] == [(16 + 32 + 8) * 4, 64, 40, (8 + 2 + 8) * 4]
    assert found.constant_bytes == 128
    assert [(each.name, each.shape) for each in found.inputs] == [("x", ("n", "8"))]
    assert found.operators == {"div": 1, "exp": 1, "matmul": 1, "reduce_sum": 1}
    assert found.rasters == 0
    assert found.buffer_bytes == lay_out(plan, (2,)).arena_bytes


def test_memory_is_used_again() -> None:
    s = Sketch(n=(1, 64))
    x = s.input("x", "n", 64)
    for _ in range(20):
        x = s.compute("exp", x)
    plan = lowered(merge(s.program(y=x)))
    # One place for the input, one for all that are written over one another.
    assert lay_out(plan, (10,)).arena_bytes == 2 * 10 * 64 * 4
    assert len({plan.tensors[step.kind.outputs[0]].placement for step in plan.steps}) == 1
    # The steps hold both, though the last one is all that is read.
    assert [step.living_bytes for step in explain(plan, sizes={"n": 10}).steps] == [2 * 2560] + 19 * [2560]


def test_memory_that_is_read_in_another_order_is_not_written_over() -> None:
    s = Sketch(n=(1, 64))
    x = s.compute("exp", s.input("x", "n", 64))
    reversed_ = s.slice(x, 1, Extent.of(63), Extent.of(64), -1)
    plan = lowered(merge(s.program(y=s.compute("add", x, reversed_))))
    first, last = (step.kind.outputs[0] for step in plan.steps if isinstance(step.kind, Compute))
    assert plan.tensors[first].placement != plan.tensors[last].placement


def test_what_is_read_again_is_not_written_over() -> None:
    s = Sketch(n=(1, 64))
    first = s.compute("exp", s.input("x", "n", 64))
    second = s.compute("neg", first)
    plan = lowered(merge(s.program(y=s.compute("sub", second, first))))
    exp, neg, sub = (plan.tensors[step.kind.outputs[0]].placement for step in plan.steps)
    assert exp != neg
    assert sub in (exp, neg)


def test_a_raster_keeps_its_regions_and_its_fill() -> None:
    s = Sketch(n=(1, 64))
    plan = lowered(merge(s.program(y=s.pad(s.input("x", "n", 3), 1, 1, 0, 5))))
    (step,) = plan.steps
    assert isinstance(step.kind, Raster)
    assert np.frombuffer(step.kind.fill, "<f4") == [5]
    assert len(step.kind.regions) == 1
    (told,) = explain(plan).steps
    assert (told.operator, told.regions, told.calculations) == ("raster", 1, 0)
    # Filled, then 3 of 4 elements read and written, at n = 1.
    assert told.moved_bytes == 4 * 4 + 2 * 3 * 4


def test_constants_are_little_endian() -> None:
    s = Sketch()
    big = np.arange(3, dtype=">i4")
    c = s.constant(big.astype("=i4"))
    plan = lowered(merge(s.program(y=s.compute("neg", c))))
    (constant,) = [tensor.constant for tensor in plan.tensors if tensor.constant is not None]
    assert constant == big.astype("<i4").tobytes()


def test_dimensions_are_those_of_inputs_in_their_order() -> None:
    s = Sketch(b=(1, 4), a=(2, 9))
    x = s.input("x", "b", "a")
    plan = lowered(merge(s.program(y=s.compute("exp", x))))
    assert [(d.name, d.minimum, d.maximum) for d in plan.dimensions] == [("b", 1, 4), ("a", 2, 9)]
    (step,) = plan.steps
    assert isinstance(step.kind, Compute)


@pytest.mark.parametrize("n", [2, 3, 64])
def test_placements_hold_at_every_size(n: int) -> None:
    layout = lay_out(lowered(dense()), (n,))
    assert layout.arena_bytes % 64 == 0

"""Bounds of views, regions and places, once the sizes are known: right by one, wrong by one."""

from dataclasses import replace

import numpy as np
import pytest

from libs.common.errors import Exhausted, Invalid
from libs.runtime.check import check_plan
from libs.runtime.layout import ComputeLayout, check_layouts, lay_out
from libs.runtime.plan import DataType, Extent, Operation, Placement, Plan
from libs.runtime.program import Program
from libs.runtime.testing import PlanBuilder, linear_plan


def _viewing(sizes: list[int], strides: list[int], offset: int = 0) -> Plan:
    """A plan that reads a tensor of 12 elements through a view."""
    plan = PlanBuilder()
    x = plan.input("x", [12])
    plan.output("y", plan.compute("neg", [plan.view(x, sizes, strides, offset)], sizes))
    return plan.build()


@pytest.mark.parametrize(
    ("sizes", "strides", "offset"),
    [
        ([12], [1], 0),
        ([3, 4], [4, 1], 0),
        ([4, 3], [1, 4], 0),
        ([12], [-1], 11),
        ([6], [2], 1),
        ([5, 12], [0, 1], 0),
        ([1], [1000], 11),
        ([0], [7], 99),
        ([3, 0], [700, 7], -5),
        ([], [], 11),
    ],
)
def test_views_within_the_tensor(sizes: list[int], strides: list[int], offset: int) -> None:
    layout = lay_out(_viewing(sizes, strides, offset), [])
    step = layout.steps[0]
    assert isinstance(step, ComputeLayout)
    assert step.inputs[0].shape == tuple(sizes)


@pytest.mark.parametrize(
    ("sizes", "strides", "offset"),
    [
        ([13], [1], 0),
        ([12], [1], 1),
        ([12], [-1], 10),
        ([12], [-1], 12),
        ([3, 4], [4, 1], 1),
        ([3, 4], [4, 2], 0),
        ([1], [1], 12),
        ([1], [1], -1),
        ([], [], 12),
        ([2], [2**61], 0),
        ([2], [-(2**61)], 0),
        ([7], [2], 0),
    ],
)
def test_views_out_of_the_tensor_are_refused(sizes: list[int], strides: list[int], offset: int) -> None:
    with pytest.raises(Invalid, match=r"steps\[0\]\.inputs\[0\] reaches elements") as caught:
        lay_out(_viewing(sizes, strides, offset), [])
    assert caught.value.reason == "BAD_PLAN"


def test_a_view_of_negative_size_is_refused() -> None:
    plan = PlanBuilder()
    batch = plan.dimension("batch", 1, 10)
    x = plan.input("x", [batch])
    shrunk = plan.extent(Operation.SUBTRACT, batch, plan.size(2))
    plan.output("y", plan.compute("neg", [plan.view(x, [shrunk], [1])], [0]))
    built = plan.build()
    check_plan(built)
    with pytest.raises(Invalid, match=r"has the shape \[-1\]"):
        lay_out(built, [1])
    lay_out(built, [2])


def _moving(size: int, destination: int, stride: int, offset: int, fill: float | None = 0.0) -> Plan:
    plan = PlanBuilder()
    x = plan.input("x", [size])
    plan.output("y", plan.raster([plan.region(x, [stride], offset)], [destination], fill=fill))
    return plan.build()


def test_regions_in_and_out_of_their_tensor() -> None:
    lay_out(_moving(4, 8, 2, 1), [])
    lay_out(_moving(4, 4, -1, 3), [])
    for broken in (_moving(4, 8, 2, 2), _moving(4, 4, -1, 2), _moving(4, 3, 1, 0), _moving(4, 8, 1, -1)):
        with pytest.raises(Invalid, match=r"regions\[0\]\.destination reaches elements"):
            lay_out(broken, [])


def test_a_raster_that_cant_cover_its_output_is_refused() -> None:
    lay_out(_moving(4, 4, 1, 0, fill=None), [])
    with pytest.raises(Invalid, match="writes 4 of 5 elements and fills none"):
        lay_out(_moving(4, 5, 1, 0, fill=None), [])


def _placed(first: int, second: int, size: int, *, reuse: bool = False) -> Plan:
    """x (12 floats) at `first`, its negative at `second` of a buffer; with `reuse` a third in x's place."""
    plan = PlanBuilder()
    x = plan.input("x", [12])
    y = plan.compute("neg", [x], [12])
    z = plan.compute("abs", [y], [12])
    plan.output("z", z)
    built = plan.build()
    extents = [Extent(Operation.CONSTANT, value) for value in (first, second, size)]
    base = len(built.extents)
    tensors = list(built.tensors)
    tensors[x] = replace(tensors[x], placement=Placement(0, base))
    tensors[y] = replace(tensors[y], placement=Placement(0, base + 1))
    tensors[z] = replace(tensors[z], placement=Placement(0, base if reuse else base + 1))
    buffers = (replace(built.buffers[0], size_bytes=base + 2),)
    return replace(built, extents=(*built.extents, *extents), tensors=tuple(tensors), buffers=buffers)


def test_a_place_is_used_again_once_its_tensor_is_done() -> None:
    assert lay_out(_placed(0, 64, 128, reuse=True), []).arena_bytes == 128


@pytest.mark.parametrize(("first", "second"), [(0, 0), (64, 64)])
def test_living_tensors_may_not_overlap(first: int, second: int) -> None:
    with pytest.raises(Invalid, match="overlaps tensors"):
        lay_out(_placed(first, second, 1024, reuse=True), [])


@pytest.mark.parametrize(
    ("second", "size", "message"),
    [
        (65, 1024, "multiple of 64"),
        (-64, 1024, "multiple of 64"),
        (128, 175, "ends at byte 176 of a buffer of 175"),
    ],
)
def test_places_out_of_the_buffer_are_refused(second: int, size: int, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        lay_out(_placed(0, second, size, reuse=True), [])
    lay_out(_placed(0, 128, 176, reuse=True), [])


def test_shapes_that_dont_fit_an_operator_are_refused_at_the_sizes_at_hand() -> None:
    plan = PlanBuilder()
    m, n = plan.dimension("m"), plan.dimension("n")
    x, y = plan.input("x", [m]), plan.input("y", [n])
    plan.output("z", plan.compute("add", [x, y], [m]))
    lay_out(plan.build(), [3, 3])
    with pytest.raises(Invalid, match=r"add of \[3\], \[4\] doesn't give \[3\]"):
        lay_out(plan.build(), [3, 4])
    with pytest.raises(Invalid, match="dimension 'n' is 65; the plan was made for sizes 1 to 64"):
        lay_out(plan.build(), [3, 65])


@pytest.mark.parametrize(
    ("name", "inputs", "axes", "output"),
    [
        ("matmul", [[2, 3], [4, 5]], [], [2, 5]),
        ("matmul", [[2, 3], [3, 5]], [], [5, 2]),
        ("matmul", [[2, 2, 3], [1, 3, 5]], [], [2, 2, 5]),
        ("reduce_sum", [[2, 3]], [0], [2]),
        ("cumulative_sum", [[2, 3]], [0], [3, 2]),
    ],
)
def test_wrong_shapes(name: str, inputs: list[list[int]], axes: list[int], output: list[int]) -> None:
    plan = PlanBuilder()
    tensors = [plan.input(f"i{i}", shape) for i, shape in enumerate(inputs)]
    plan.output("y", plan.compute(name, tensors, output, axes=axes))
    with pytest.raises(Invalid, match=f"{name} of .* doesn't give"):
        lay_out(plan.build(), [])


def _shared_weights(side: int) -> Plan:
    """A product whose matrix on the right serves the whole batch: no memory is behind the repetition."""
    plan = PlanBuilder()
    batch = plan.dimension("batch")
    x = plan.input("x", [batch, 1, side])
    weights = plan.view(plan.input("w", [1]), [batch, side, side], [0, 0, 0])
    plan.output("y", plan.compute("matmul", [x, weights], [batch, 1, side]))
    return plan.build()


def test_memory_is_bounded_for_buffers_and_for_views_written_out() -> None:
    plan = linear_plan([1.0] * 16)
    lay_out(plan, [100], max_buffer_bytes=16_384)
    with pytest.raises(Exhausted, match=r"batch=1000 take .* more than 16 KiB") as caught:
        lay_out(plan, [1000], max_buffer_bytes=16_384)
    assert caught.value.reason == "TOO_MUCH_MEMORY"
    assert lay_out(_shared_weights(64), [64], max_buffer_bytes=1 << 20).arena_bytes < 1 << 20
    with pytest.raises(Exhausted, match=r"inputs\[1\] takes 4 MiB"):
        lay_out(_shared_weights(1024), [1], max_buffer_bytes=1 << 20)
    table = PlanBuilder()
    rows = table.view(table.input("x", [1, 4]), [100_000, 4], [0, 1])
    table.output("y", table.compute("gather", [rows, table.constant([1], DataType.INT64)], [1, 4], axes=[0]))
    with pytest.raises(Exhausted, match=r"inputs\[0\] takes 1.526 MiB"):
        lay_out(table.build(), [], max_buffer_bytes=1 << 20)
    wide = PlanBuilder()
    x = wide.input("x", [1])
    view = wide.view(x, [2**20, 2**20], [0, 0])
    wide.output("y", wide.compute("reduce_sum", [view], [], axes=[0, 1]))
    with pytest.raises(Exhausted, match=r"inputs\[0\] takes 4 TiB"):
        lay_out(wide.build(), [])


@pytest.mark.parametrize("name", ["arg_max"])
def test_where_a_position_is_looked_for_is_bounded(name: str) -> None:
    """numpy copies all of it first, however little memory is behind it."""
    plan = PlanBuilder()
    view = plan.view(plan.input("x", [1]), [2**20], [0])
    plan.output("y", plan.compute(name, [view], [], axes=[0], type_=DataType.INT64))
    lay_out(plan.build(), [], max_buffer_bytes=1 << 22)
    with pytest.raises(Exhausted, match=r"inputs\[0\] takes 4 MiB"):
        lay_out(plan.build(), [], max_buffer_bytes=(1 << 22) - 1)


def test_by_what_is_written_is_bounded() -> None:
    plan = PlanBuilder()
    indices = plan.view(plan.input("i", [1], DataType.INT32), [2**20], [0])
    updates = plan.view(plan.input("u", [1]), [2**20], [0])
    plan.output("y", plan.compute("scatter_add", [plan.input("x", [2]), indices, updates], [2]))
    lay_out(plan.build(), [], max_buffer_bytes=1 << 22)
    with pytest.raises(Exhausted, match=r"inputs\[1\] takes 4 MiB"):
        lay_out(plan.build(), [], max_buffer_bytes=(1 << 22) - 1)


def _empty(sizes: list[int], *, viewed: bool) -> Plan:
    plan = PlanBuilder()
    x = plan.input("x", [1] if viewed else sizes)
    view = plan.view(x, sizes, [0] * len(sizes)) if viewed else plan.whole(x)
    reduced = plan.compute("reduce_sum", [view], [], axes=range(len(sizes)))
    plan.output("y", reduced)
    return plan.build()


@pytest.mark.parametrize("viewed", [False, True])
def test_empty_arrays_have_sizes_that_numpy_takes(viewed: bool) -> None:
    value = np.ones(1, np.float32) if viewed else np.ones((0, 2**20, 2**10), np.float32)
    assert Program(_empty([0, 2**20, 2**10], viewed=viewed)).run({"x": value})["y"] == 0
    for sizes in ([0, 2**40, 2**10], [2**60, 0]):
        with pytest.raises(Exhausted) as caught:
            lay_out(_empty(sizes, viewed=viewed), [])
        assert caught.value.reason == "TOO_MUCH_MEMORY"
    with pytest.raises(Invalid, match="too large for any machine") as refused:
        Program(_empty([0, 2**40, 2**21], viewed=viewed))
    assert refused.value.reason == "BAD_PLAN"


def test_the_corners_are_checked_without_memory() -> None:
    plan = PlanBuilder()
    batch = plan.dimension("batch", 1, 2**40)
    plan.output("y", plan.compute("neg", [plan.input("x", [batch])], [batch]))
    check_layouts(plan.build())
    wrong = PlanBuilder()
    batch = wrong.dimension("batch", 1, 2**40)
    x = wrong.input("x", [batch])
    wrong.output("y", wrong.compute("neg", [wrong.view(x, [1], [1], 0)], [batch]))
    with pytest.raises(Invalid, match="doesn't give"):
        check_layouts(wrong.build())

"""Memory safety against enumeration: what is accepted is exactly what stays in its place."""

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.runtime.layout import lay_out
from libs.runtime.plan import Extent, Operation, Placement, Plan
from libs.runtime.program import Program
from libs.runtime.testing import PlanBuilder

SIZE = 12
SMALL = st.integers(-4, 5)


def _accepted(plan: Plan) -> bool:
    try:
        lay_out(plan, [])
    except Invalid:
        return False
    return True


@given(st.lists(st.tuples(st.integers(0, 4), SMALL), max_size=3), st.integers(-2, 14))
def test_a_view_is_accepted_exactly_when_all_it_reaches_is_there(
    axes: list[tuple[int, int]], offset: int
) -> None:
    sizes, strides = [size for size, _ in axes], [stride for _, stride in axes]
    plan = PlanBuilder()
    x = plan.input("x", [SIZE])
    plan.output("y", plan.compute("neg", [plan.view(x, sizes, strides, offset)], sizes))
    built = plan.build()
    places = [
        offset + sum(i * stride for i, stride in zip(index, strides, strict=True))
        for index in itertools.product(*map(range, sizes))
    ]
    assert _accepted(built) == all(0 <= place < SIZE for place in places)
    if _accepted(built):
        values = np.arange(SIZE, dtype=np.float32)
        assert Program(built).run({"x": values})["y"].ravel().tolist() == (-values[places]).tolist()


@given(st.lists(st.tuples(st.integers(1, 4), SMALL), max_size=2), st.integers(-2, 14), st.booleans())
def test_a_region_is_accepted_exactly_when_it_writes_each_element_in_range_once(
    axes: list[tuple[int, int]], offset: int, filled: bool
) -> None:
    sizes, strides = [size for size, _ in axes], [stride for _, stride in axes]
    plan = PlanBuilder()
    x = plan.input("x", sizes)
    plan.output("y", plan.raster([plan.region(x, strides, offset)], [SIZE], fill=9.0 if filled else None))
    places = [
        offset + sum(i * stride for i, stride in zip(index, strides, strict=True))
        for index in itertools.product(*map(range, sizes))
    ]
    sound = all(0 <= place < SIZE for place in places) and len(set(places)) == len(places)
    sound = sound and (filled or len(places) == SIZE)
    values = np.arange(len(places), dtype=np.float32).reshape(sizes)
    try:
        got = Program(plan.build()).run({"x": values})["y"]
    except Invalid:
        assert not sound
        return
    assert sound
    expected = np.full(SIZE, 9.0)
    expected[places] = values.ravel()
    assert got.tolist() == expected.tolist()


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), min_size=2, max_size=7), st.data())
def test_places_are_accepted_exactly_when_nothing_living_is_shared(
    tensors: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Each tensor takes so many lines of 64 bytes from a line on; each step reads any earlier one."""
    plan = PlanBuilder()
    made = [plan.input("x", [tensors[0][0] * 16])]
    reads = []
    for lines, _ in tensors[1:]:
        source = data.draw(st.sampled_from(made))
        reads.append(source)
        view = plan.view(source, [lines * 16], [0])
        made.append(plan.compute("neg", [view], [lines * 16]))
    plan.output("y", made[-1])
    built = plan.build()
    base = len(built.extents)
    extents = [Extent(Operation.CONSTANT, 64 * line) for _, line in tensors] + [
        Extent(Operation.CONSTANT, 640)
    ]
    moved = replace(
        built,
        extents=(*built.extents, *extents),
        tensors=tuple(replace(t, placement=Placement(0, base + i)) for i, t in enumerate(built.tensors)),
        buffers=(replace(built.buffers[0], size_bytes=base + len(tensors)),),
    )
    last = {made[-1]: len(tensors)}
    for step, source in enumerate(reads):
        last[source] = max(last.get(source, 0), step)
    lives = [range(i - 1, max(last.get(i, 0), i - 1) + 1) for i in range(len(tensors))]
    shared = any(
        set(lives[i]) & set(lives[j])
        and set(range(tensors[i][1], tensors[i][1] + tensors[i][0]))
        & set(range(tensors[j][1], tensors[j][1] + tensors[j][0]))
        for i, j in itertools.combinations(range(len(tensors)), 2)
    )
    assert _accepted(moved) == (not shared)

"""What a plan may not be, whatever the sizes. Each case breaks one rule of a sound plan."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from libs.common.errors import Invalid
from libs.runtime.check import check_plan
from libs.runtime.plan import (
    Axis,
    Buffer,
    Compute,
    DataType,
    Dimension,
    Extent,
    Operation,
    Placement,
    Plan,
    Port,
    Raster,
    Region,
    Step,
    Tensor,
    View,
)
from libs.runtime.testing import DIGEST, PlanBuilder

F32, I64, BOOL = DataType.FLOAT32, DataType.INT64, DataType.BOOL


def _sound() -> Plan:
    """x [batch, 2] → add → t; t → raster → y; c is a constant. Extent 0 is batch, 1 is 2, 2 is 0, 3 is 1."""
    return Plan(
        model_digest=DIGEST,
        producer="test",
        dimensions=(Dimension("batch", 1, 8),),
        extents=(
            Extent(Operation.DIMENSION),
            Extent(Operation.CONSTANT, 2),
            Extent(Operation.CONSTANT, 0),
            Extent(Operation.CONSTANT, 1),
            Extent(Operation.CONSTANT, 64),
            Extent(Operation.CONSTANT, 128),
            Extent(Operation.CONSTANT, 192),
        ),
        tensors=(
            Tensor(F32, (0, 1), placement=Placement(0, 2)),
            Tensor(F32, (0, 1), placement=Placement(0, 4)),
            Tensor(F32, (0, 1), placement=Placement(0, 5)),
            Tensor(F32, (1,), constant=bytes(8)),
        ),
        inputs=(Port("x", 0),),
        outputs=(Port("y", 2), Port("c", 3)),
        buffers=(Buffer(6),),
        steps=(
            Step(Compute("add", (_whole(0), _whole(0)), (1,)), 2, 2, "sum (Add)"),
            Step(Raster(2, (Region(_whole(1), 2, (1, 3)),)), 2, 2),
        ),
    )


def _whole(tensor: int) -> View:
    return View(tensor, 2, (Axis(0, 1), Axis(1, 3)))


def test_the_sound_plan_passes() -> None:
    check_plan(_sound())


def _set(part: str, index: int, **changes: Any) -> Callable[[Plan], Plan]:
    def change(plan: Plan) -> Plan:
        items = list(getattr(plan, part))
        items[index] = replace(items[index], **changes)
        return replace(plan, **{part: tuple(items)})  # type: ignore[arg-type]

    return change


def _kind(index: int, **changes: Any) -> Callable[[Plan], Plan]:
    return lambda plan: _set("steps", index, kind=replace(plan.steps[index].kind, **changes))(plan)


_SOURCE = _whole(1)
CASES: list[tuple[Callable[[Plan], Plan], str]] = [
    (lambda p: replace(p, model_digest="md5:1"), "model_digest must be"),
    (lambda p: replace(p, dimensions=p.dimensions * 65), "dimensions has 65 entries, more than 64"),
    (lambda p: replace(p, dimensions=p.dimensions * 2), r"dimensions\[1\].name 'batch' is there already"),
    (_set("dimensions", 0, minimum=9), "9 and 8, which are no range"),
    (_set("dimensions", 0, name=""), r"dimensions\[0\].name must have 1 to"),
    (_set("extents", 0, left=1), r"extents\[0\].left is 1, but there are 1 dimensions"),
    (_set("extents", 2, operation=Operation.ADD, left=2), r"extents\[2\].left is 2.*before it"),
    (_set("extents", 2, operation=Operation.ADD, right=3), r"extents\[2\].right is 3.*before it"),
    (_set("extents", 1, value=2**62 + 1), "beyond"),
    (
        lambda p: replace(p, extents=(*p.extents, Extent(Operation.MODULO, left=1, right=2))),
        r"extents\[7\] divides by 0",
    ),
    (_set("extents", 1, value=-2), r"tensors\[0\].shape\[1\] is -2"),
    (_set("tensors", 0, shape=(0, 7)), r"shape\[1\] is 7, but there are 7 extents"),
    (_set("tensors", 0, shape=(3,) * 9), "has 9 axes, more than 8"),
    (_set("tensors", 0, placement=None), "either a constant or placed"),
    (_set("tensors", 0, constant=b"1234"), "either a constant or placed"),
    (_set("tensors", 1, placement=Placement(1, 2)), "buffer is 1, but there are 1 buffers"),
    (_set("tensors", 1, placement=Placement(0, 9)), "offset_bytes is 9, but there are 7 extents"),
    (_set("tensors", 3, constant=bytes(7)), r"tensors\[3\] has 7 bytes.*takes 8"),
    (_set("tensors", 3, shape=(0,)), "constant whose shape has dimensions"),
    (_set("tensors", 3, type=BOOL, constant=b"\0\2"), "a BOOL that is neither 0 nor 1"),
    (_set("buffers", 0, size_bytes=7), r"buffers\[0\].size_bytes is 7"),
    (_set("inputs", 0, tensor=4), "tensor is 4, but there are 4 tensors"),
    (_set("inputs", 0, tensor=3), "tensor 3, which is constant"),
    (_set("tensors", 0, shape=(3, 1)), "dimension 'batch' is the size of no axis of an input"),
    (lambda p: replace(p, inputs=(*p.inputs, Port("z", 0))), "tensor 0, which is written already"),
    (lambda p: replace(p, inputs=(*p.inputs, Port("x", 1))), r"inputs\[1\].name 'x' is there already"),
    (lambda p: replace(p, outputs=(*p.outputs, Port("y", 1))), r"outputs\[2\].name 'y' is there already"),
    (lambda p: replace(p, outputs=()), "outputs is empty"),
    (lambda p: replace(p, steps=p.steps[:1]), r"outputs\[0\].tensor is tensor 2, which nothing has written"),
    (_set("steps", 0, calculations=7), r"steps\[0\] \(sum \(Add\)\).calculations is 7"),
    (_set("steps", 0, moved_bytes=7), r"moved_bytes is 7"),
    (_kind(0, operator="ad"), "'ad' is unknown to this runtime: update it; did you mean 'and'"),
    (_kind(0, inputs=(_whole(0),)), "add takes 2 inputs, not 1"),
    (_kind(0, outputs=()), "one output, not 0"),
    (_kind(0, inputs=(_whole(0), _whole(2))), r"inputs\[1\].tensor is tensor 2, which nothing has written"),
    (_kind(0, inputs=(_whole(0), _whole(1))), r"inputs\[1\].tensor is tensor 1, which nothing has written"),
    (_kind(0, outputs=(0,)), "tensor 0, which is written already"),
    (_kind(0, axes=(0,)), "add takes no axes, not 1"),
    (_kind(0, operator="and"), "and doesn't take FLOAT32"),
    (_kind(0, operator="eq"), "eq gives BOOL, but its output is FLOAT32"),
    (_kind(0, inputs=(_whole(0), View(3, 2, (Axis(1, 3),)))), r"rank \[2, 1\] doesn't give"),
    (_kind(0, inputs=(_whole(0), View(0, 2, (Axis(7, 3),) * 2))), r"inputs\[1\].axes is 7"),
    (_kind(0, inputs=(_whole(0), View(0, 9, (Axis(1, 3),) * 2))), r"inputs\[1\].offset is 9"),
    (_kind(1, output=1), "tensor 1, which is written already"),
    (_kind(1, regions=(Region(_SOURCE, 2, (1,)),)), "1 strides for 2 axes"),
    (_kind(1, regions=(Region(_SOURCE, 9, (1, 3)),)), "destination_offset is 9"),
    (_kind(1, regions=(Region(_SOURCE, 2, (1, 8)),)), "destination_strides is 8"),
    (_kind(1, regions=(Region(_whole(2), 2, (1, 3)),)), "tensor 2, which nothing has written"),
    (_kind(1, fill=b"123"), "has 3 bytes, not the 4 of one"),
]


@pytest.mark.parametrize(("change", "message"), CASES, ids=[message for _, message in CASES])
def test_each_broken_rule_is_named(change: Callable[[Plan], Plan], message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        check_plan(change(_sound()))
    assert caught.value.reason == "BAD_PLAN"


def _step(
    name: str, types: list[DataType], ranks: list[int], axes: list[int], out: DataType, rank: int
) -> Plan:
    plan = PlanBuilder()
    inputs = [plan.input(f"i{i}", [2] * r, t) for i, (t, r) in enumerate(zip(types, ranks, strict=True))]
    plan.output("y", plan.compute(name, inputs, [2] * rank, axes=axes, type_=out))
    return plan.build()


@pytest.mark.parametrize(
    "step",
    [
        ("matmul", [F32, F32], [2, 2], [], F32, 2),
        ("matmul", [F32, F32], [4, 4], [], F32, 4),
        ("reduce_sum", [F32], [3], [0, 2], F32, 1),
        ("reduce_sum", [F32], [0], [], F32, 0),
        ("arg_max", [F32], [2], [1], I64, 1),
        ("gather", [BOOL, I64], [2, 3], [1], BOOL, 4),
        ("gather", [F32, DataType.INT32], [2, 0], [0], F32, 1),
        ("cumulative_sum", [I64], [2], [1], I64, 2),
        ("where", [BOOL, I64, I64], [1, 1, 1], [], I64, 1),
        ("cast", [F32], [1], [], BOOL, 1),
        ("bit_cast", [DataType.COMPLEX64], [1], [], I64, 1),
        ("bit_cast", [BOOL], [1], [], DataType.UINT8, 1),
        ("arg_sort", [BOOL], [2], [1], I64, 2),
        ("scatter", [DataType.INT4, I64, DataType.INT4], [2, 1, 2], [], DataType.INT4, 2),
        ("scatter_add", [F32, DataType.INT32, F32], [1, 1, 1], [], F32, 1),
        ("xor", [I64, I64], [1, 1], [], I64, 1),
        ("where", [BOOL, DataType.COMPLEX64, DataType.COMPLEX64], [1, 1, 1], [], DataType.COMPLEX64, 1),
    ],
)
def test_sound_steps(step: tuple[str, list[DataType], list[int], list[int], DataType, int]) -> None:
    check_plan(_step(*step))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (("matmul", [F32, F32], [1, 1], [], F32, 1), "rank"),
        (("matmul", [F32, F32], [2, 3], [], F32, 3), "rank"),
        (("matmul", [F32, DataType.FLOAT64], [2, 2], [], F32, 2), "inputs of one type, not FLOAT32, FLOAT64"),
        (("reduce_sum", [F32], [3], [0, 0], F32, 1), "different axes"),
        (("reduce_sum", [F32], [3], [3], F32, 2), "different axes"),
        (("reduce_sum", [F32], [3], [0], F32, 3), "rank"),
        (("arg_max", [F32], [2], [], I64, 2), "one axis"),
        (("arg_max", [F32], [2], [0, 1], I64, 0), "one axis"),
        (("arg_max", [F32], [2], [1], F32, 1), "gives INT64"),
        (("gather", [F32, F32], [2, 1], [0], F32, 2), "INT32 or INT64 indices, not FLOAT32"),
        (("gather", [F32, I64], [2, 1], [], F32, 2), "one axis"),
        (("gather", [F32, I64], [0, 1], [0], F32, 0), "different axes|rank"),
        (("gather", [F32, I64], [2, 1], [0], F32, 3), "rank"),
        (("cumulative_sum", [F32], [2], [], F32, 2), "one axis"),
        (("where", [F32, F32, F32], [1, 1, 1], [], F32, 1), "chooses by a BOOL"),
        (("where", [BOOL, F32, I64], [1, 1, 1], [], F32, 1), "one type"),
        (("sqrt", [I64], [1], [], I64, 1), "doesn't take INT64"),
        (("neg", [BOOL], [1], [], BOOL, 1), "doesn't take BOOL"),
        (("add", [DataType.BFLOAT16] * 2, [1, 1], [], DataType.BFLOAT16, 1), "doesn't take BFLOAT16"),
        (("cast", [F32], [1], [], DataType.COMPLEX64, 1), "cast can't make COMPLEX64 of FLOAT32"),
        (("cast", [DataType.COMPLEX64], [1], [], F32, 1), "cast doesn't take COMPLEX64"),
        (("bit_cast", [F32], [1], [], I64, 1), "bit_cast can't make INT64 of FLOAT32"),
        (("bit_cast", [DataType.INT8], [1], [], DataType.INT4, 1), "bit_cast can't make INT4 of INT8"),
        (("bit_cast", [DataType.INT4], [1], [], DataType.INT2, 1), "bit_cast can't make INT2 of INT4"),
        (("bit_cast", [DataType.UINT8], [1], [], BOOL, 1), "bit_cast can't make BOOL of UINT8"),
        (("arg_sort", [F32], [2], [], I64, 2), "one axis"),
        (("arg_sort", [F32], [2], [0], F32, 2), "gives INT64"),
        (("scatter", [F32, I64, F32], [2, 2, 2], [], F32, 2), "indices have 2 axes, not 1"),
        (("scatter", [F32, F32, F32], [2, 1, 2], [], F32, 2), "INT32 or INT64 indices, not FLOAT32"),
        (("scatter", [F32, I64, I64], [2, 1, 2], [], F32, 2), "one type"),
        (("scatter", [F32, I64, F32], [0, 1, 0], [], F32, 0), "rank"),
        (("scatter", [F32, I64, F32], [2, 1, 1], [], F32, 2), "rank"),
        (("scatter", [F32, I64, F32], [2, 1, 2], [0], F32, 2), "takes no axes"),
        (("scatter_add", [BOOL, I64, BOOL], [1, 1, 1], [], BOOL, 1), "doesn't take BOOL"),
    ],
)
def test_unsound_steps(
    step: tuple[str, list[DataType], list[int], list[int], DataType, int], message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        check_plan(_step(*step))


def test_a_view_may_be_of_another_type_only_through_a_cast() -> None:
    plan = PlanBuilder()
    x = plan.input("x", [2], I64)
    plan.output("y", plan.raster([plan.region(x, [1])], [2], F32))
    with pytest.raises(Invalid, match="moves INT64 into FLOAT32"):
        check_plan(plan.build())

import numpy as np
import pytest

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain.bounds import Bounds
from services.engine.domain.extents import Extent
from services.engine.domain.program import (
    ComputeInstruction,
    MoveRegion,
    NamedValue,
    Program,
    RasterInstruction,
    ValueType,
    ValueView,
    ViewAxis,
    whole,
)
from services.engine.domain.reference import compute, data_type, interpret, numpy_type, strided

N = Extent.dimension("n")


def extents(*sizes: Extent | int) -> tuple[Extent, ...]:
    return tuple(Extent.of(size) for size in sizes)


def transposing(fill: np.ndarray | None, rows: Extent | int) -> Program:
    """x (n, 3) → y (4, n): its transpose, `rows` of which are moved, then 1 added."""
    moved = ValueView(0, Extent.of(0), (ViewAxis(Extent.of(rows), Extent.of(1)), ViewAxis(N, Extent.of(3))))
    types = [ValueType(DataType.FLOAT32, extents(*shape)) for shape in ((N, 3), (4, N), (), (4, N))]
    one = ValueView(2, Extent.of(0), tuple(ViewAxis(size, Extent.of(0)) for size in extents(4, N)))
    return Program(
        values=tuple(types),
        inputs=(NamedValue("x", 0),),
        outputs=(NamedValue("y", 3),),
        constants={2: np.array(1, np.float32)},
        instructions=(
            RasterInstruction(1, (MoveRegion(moved, Extent.of(0), extents(N, 1)),), fill, "t (Transpose)"),
            ComputeInstruction("add", (whole(1, extents(4, N)), one), (3,), (), "a (Add)"),
        ),
        bounds=Bounds({"n": (1, 8)}),
    )


@pytest.mark.parametrize("n", [1, 5])
def test_it_moves_fills_and_computes(n: int) -> None:
    x = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
    y = interpret(transposing(np.array(7, np.float32), 3), {"x": x})["y"]
    np.testing.assert_array_equal(y, np.vstack([x.T + 1, np.full((1, n), 8, np.float32)]))


def test_regions_must_cover_the_output_and_stay_inside() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(Invalid, match=r"t \(Transpose\): its regions leave 2 of 8 elements unwritten"):
        interpret(transposing(None, 3), {"x": x})
    with pytest.raises(Invalid, match="elements 0 to 6 are read or written of an array that has 6"):
        interpret(transposing(None, 4), {"x": x})


def test_inputs_are_checked() -> None:
    program = transposing(np.array(0, np.float32), 3)
    with pytest.raises(Invalid, match="'x' is missing"):
        interpret(program, {})
    with pytest.raises(Invalid, match=r"float64\[2, 3\], not as declared"):
        interpret(program, {"x": np.zeros((2, 3))})
    with pytest.raises(Invalid, match=r"shape \[2, 4\], not \[2, 3\]"):
        interpret(program, {"x": np.zeros((2, 4), np.float32)})


def test_integers_divide_towards_zero() -> None:
    a, b = np.array([7, -7, 7, -7, 6]), np.array([2, 2, -2, -2, -3])
    assert compute("div", [a, b], (), DataType.INT64).tolist() == [3, -3, -3, 3, -2]
    assert compute("mod", [a, b], (), DataType.INT64).tolist() == [1, 1, -1, -1, 0]
    for operator in ("div", "mod"):
        with pytest.raises(Invalid, match="divided by 0"):
            compute(operator, [a, b * 0], (), DataType.INT64)


def test_gather_counts_from_the_end_and_refuses_what_is_outside() -> None:
    data = np.arange(6).reshape(2, 3)
    taken = compute("gather", [data, np.array([-1, 0])], (1,), DataType.INT64)
    assert taken.tolist() == [[2, 0], [5, 3]]
    with pytest.raises(Invalid, match="index 3 is outside of -3 to 2"):
        compute("gather", [data, np.array([0, 3])], (1,), DataType.INT64)


def test_types_go_there_and_back() -> None:
    assert all(data_type(numpy_type(type_)) is type_ for type_ in DataType)
    with pytest.raises(Invalid, match="datetime64"):
        data_type(np.dtype(np.datetime64))


def test_a_view_with_negative_strides() -> None:
    assert strided(np.arange(6), 5, (2, 3), (-3, -1)).tolist() == [[5, 4, 3], [2, 1, 0]]
    with pytest.raises(Invalid, match="elements -1 to 4"):
        strided(np.arange(6), 4, (2, 3), (-3, -1))

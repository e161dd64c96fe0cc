"""Values that come from numbers and sizes, also where data decide them: ranges, one-hots, triangles, …"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx.helper import np_dtype_to_tensor_dtype

from libs.common.errors import Invalid
from services.engine.domain.decompose.walk import decompose
from services.engine.domain.graph import Node
from services.engine.domain.program import Program
from services.engine.domain.reference import interpret
from services.engine.testing import applied, graph_of

F32 = np.float32


@pytest.mark.parametrize("constants", [(0, 1, 2), (2,), ()], ids=["known", "its step is", "open"])
@pytest.mark.parametrize(
    ("type_", "start", "limit", "delta"),
    [
        (np.int64, 2, 11, 3),
        (np.int64, 5, 5, 1),
        (np.int64, 5, 2, 1),
        (np.int32, 10, -3, -4),
        (np.int16, -7, 9, 2),
        (np.float32, 1, 9, 0.7),
        (np.float64, 3, -1, -0.25),
        (np.float32, 0, 1, -1),
    ],
)
def test_ranges(type_: Any, start: float, limit: float, delta: float, constants: tuple[int, ...]) -> None:
    arrays = [np.array(number, type_) for number in (start, limit, delta)]
    (found,) = applied("Range", arrays, [np_dtype_to_tensor_dtype(arrays[0].dtype)], constants=constants)
    count = max(int(np.ceil((arrays[1].astype(float) - arrays[0]) / arrays[2])), 0)
    np.testing.assert_array_equal(found, arrays[0] + np.arange(count).astype(type_) * arrays[2])
    assert found.dtype == type_


@pytest.mark.parametrize("constants", [(0, 1, 2), ()], ids=["known", "open"])
@pytest.mark.parametrize(
    ("type_", "numbers"),
    [
        (np.int64, (1, 3, 0)),
        (F32, (1, 9, 0)),
        (F32, (1, np.nan, 1)),
        (F32, (1, np.inf, 1)),
        (F32, (1, 9, np.inf)),
        (F32, (-3e38, 3e38, 1e-3)),
    ],
)
def test_ranges_without_an_end_are_refused(
    type_: Any, numbers: tuple[float, ...], constants: tuple[int, ...]
) -> None:
    arrays = [np.array(number, type_) for number in numbers]
    with pytest.raises(Invalid, match=r"the_Range \(Range\)"):
        applied("Range", arrays, [np_dtype_to_tensor_dtype(arrays[0].dtype)], constants=constants)


@pytest.mark.parametrize("n", [1, 3])
def test_a_step_that_is_a_size(n: int) -> None:
    nodes = [
        Node("", "Shape", ("x",), ("s",), {}),
        Node("", "Gather", ("s", "zero"), ("n",), {}),
        Node("", "Range", ("zero", "ten", "n"), ("y",), {}),
    ]
    constants = {"zero": np.array(0), "ten": np.array(10)}
    program = decompose(graph_of(nodes, {"x": ("n",)}, ["y"], constants))
    assert isinstance(program, Program)  # how many there are is a formula
    (found,) = interpret(program, {"x": np.zeros(n, F32)}).values()
    np.testing.assert_array_equal(found, np.arange(0, 10, n))


def test_a_long_range_of_floats_is_counted_at_run_time() -> None:
    arrays = [np.array(number, np.float64) for number in (0.5, 200_000, 1)]
    (found,) = applied("Range", arrays, [T.DOUBLE], constants=(0, 1, 2))
    np.testing.assert_array_equal(found, np.arange(0.5, 200_000))


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("constants", [(1, 2), ()])
def test_one_hots(axis: int, constants: tuple[int, ...]) -> None:
    """Indices count from the end where they are below 0; what is outside is off everywhere."""
    indices = np.array([[0, 2, -1], [9, -4, -3]])
    arrays = [indices, np.array(3), np.array([5, 7], F32)]
    (found,) = applied("OneHot", arrays, [T.FLOAT], symbolic=(0,), constants=constants, axis=axis)
    within = np.where(indices < 0, indices + 3, indices)
    wanted = np.where(within[..., None] == np.arange(3), F32(7), F32(5))
    np.testing.assert_array_equal(found, np.moveaxis(wanted, -1, axis))


def test_a_one_hot_has_two_values_and_a_depth_from_0() -> None:
    indices = np.array([0, 1])
    for values in (np.zeros(3, F32), np.zeros((), F32)):
        with pytest.raises(Invalid, match=r"\(OneHot\)"):
            applied("OneHot", [indices, np.array(3), values], [T.FLOAT])
    with pytest.raises(Invalid, match=r"\(OneHot\): size .* is -2"):
        applied("OneHot", [indices, np.array(-2), np.zeros(2, F32)], [T.FLOAT])


@pytest.mark.parametrize("k", [-9, -1, 0, 2, 9])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("constants", [(1,), ()])
def test_triangles(k: int, upper: int, constants: tuple[int, ...]) -> None:
    x = np.arange(2 * 3 * 5).reshape(2, 3, 5)
    arrays = [x, np.array(k)]
    (found,) = applied("Trilu", arrays, [T.INT64], symbolic=(0,), constants=constants, upper=upper)
    np.testing.assert_array_equal(found, np.triu(x, k) if upper else np.tril(x, k))


@pytest.mark.parametrize("constants", [(0,), ()])
@pytest.mark.parametrize("sizes", [(2, 0, 3), (), (4,)])
def test_constants_of_shapes(sizes: tuple[int, ...], constants: tuple[int, ...]) -> None:
    shape = np.array(sizes, np.int64)
    (found,) = applied("ConstantOfShape", [shape], [T.FLOAT], constants=constants)
    np.testing.assert_array_equal(found, np.zeros(sizes, F32))
    assert found.shape == sizes


def test_nothing_is_dropped_at_a_ratio_of_0_nor_for_inference() -> None:
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(F32)
    for ratio, training in ((0.0, True), (0.9, False)):
        arrays = [x, np.array(ratio, F32), np.array(training)]
        found, mask = applied("Dropout", arrays, [T.FLOAT, T.BOOL], opset=13)
        np.testing.assert_array_equal(found, x)
        assert mask.all()
    # The mask of opset 7 has the data's type.
    found, mask = applied("Dropout", [x], [T.FLOAT, T.FLOAT], opset=7)
    assert mask.dtype == F32
    assert (mask == 1).all()


def test_what_isnt_dropped_is_scaled_up() -> None:
    x = np.ones((40, 50), F32)
    arrays = [x, np.array(0.75, F32), np.array(True)]
    found, mask = applied("Dropout", arrays, [T.FLOAT, T.BOOL], opset=13, seed=3)
    np.testing.assert_array_equal(found, np.where(mask, F32(4), F32(0)))
    assert 0.2 < mask.mean() < 0.3

"""Running plans as a whole: results, rasters, memory, threads."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from libs.common.errors import Exhausted, Invalid
from libs.runtime.numpy_types import check_numpy
from libs.runtime.plan import DataType
from libs.runtime.program import Program, warm_up
from libs.runtime.testing import PlanBuilder, identity_plan, linear_plan


def test_the_example_of_the_docstring() -> None:
    plan = PlanBuilder()
    batch = plan.dimension("batch")
    x = plan.input("x", [batch, 4])
    w = plan.constant([1.0, 2.0, 3.0, 4.0])
    plan.output("y", plan.compute("mul", [x, plan.broadcast(w, [batch, 4])], [batch, 4]))
    assert Program(plan.build()).run({"x": [[1, 1, 1, 1]]})["y"].tolist() == [[1, 2, 3, 4]]


def test_an_old_numpy_is_named() -> None:
    warm_up()
    check_numpy("10.0.0rc1")
    for version in ("1.26.4", "2.0.9"):
        with pytest.raises(ImportError, match=f"numpy {version} is too old .* 2.1 or newer"):
            check_numpy(version)


def test_a_model_at_many_sizes() -> None:
    program = Program(linear_plan([0.5, -1.0], bias=0.25))
    for batch in (1, 2, 3, 100, 1, 4096):
        x = np.linspace(-3, 3, 2 * batch, dtype=np.float32).reshape(batch, 2)
        expected = 1 / (1 + np.exp(-(x @ np.array([0.5, -1.0], np.float32) + 0.25)))
        np.testing.assert_allclose(program.run({"x": x})["probability"], expected, rtol=1e-5)


def test_outputs_are_the_callers_own() -> None:
    program = Program(identity_plan())
    x = np.array([1.0], np.float32)
    first = program.run({"x": x})["y"]
    x[0] = 5
    second = program.run({"x": x})["y"]
    first[0] = 9
    assert second.tolist() == [5]
    assert program.run({"x": x})["y"].tolist() == [5]


def test_constants_and_inputs_may_be_outputs() -> None:
    plan = PlanBuilder()
    x = plan.input("x", [2])
    plan.output("same", x)
    plan.output("fixed", plan.constant([7, 8], DataType.INT16))
    result = Program(plan.build()).run({"x": [1, 2]})
    result["fixed"][0] = 1  # a copy: constants can't be written
    assert result["same"].tolist() == [1, 2]
    assert Program(plan.build()).run({"x": [1, 2]})["fixed"].tolist() == [7, 8]


def test_an_empty_constant_and_an_empty_batch() -> None:
    plan = PlanBuilder()
    batch = plan.dimension("batch", 0, 4)
    x = plan.input("x", [batch, 2])
    plan.output("y", plan.compute("neg", [x], [batch, 2]))
    plan.output("none", plan.constant(np.zeros((0, 3))))
    result = Program(plan.build()).run({"x": np.zeros((0, 2), np.float32)})
    assert result["y"].shape == (0, 2)
    assert result["none"].shape == (0, 3)


def test_rasters_move_fill_and_let_the_later_region_win() -> None:
    plan = PlanBuilder()
    x = plan.input("x", [2, 3])
    turned = plan.raster([plan.region(x, [1, 2])], [3, 2])
    ends = plan.view(x, [2], [5])
    padded = plan.raster([plan.region(ends, [3], 0), plan.region(ends, [1], 3)], [5], fill=9.0)
    plan.output("turned", turned)
    plan.output("padded", padded)
    result = Program(plan.build()).run({"x": [[0, 1, 2], [3, 4, 5]]})
    assert result["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert result["padded"].tolist() == [0, 9, 9, 0, 5]


def _stitch(*regions: tuple[int, int, int], size: int = 6) -> Program:
    """A raster of regions (elements, stride, offset) from a tensor of eight ones, with no fill."""
    plan = PlanBuilder()
    x = plan.input("x", [8])
    moves = [plan.region(plan.view(x, [n], [1]), [stride], offset) for n, stride, offset in regions]
    plan.output("y", plan.raster(moves, [size]))
    return Program(plan.build())


def test_regions_that_leave_a_hole_are_refused_before_anything_runs() -> None:
    ones = np.ones(8, np.float32)
    assert _stitch((3, 2, 0), (3, 2, 1)).run({"x": ones})["y"].tolist() == [1] * 6
    assert _stitch((4, 1, 0), (4, 1, 2)).run({"x": ones})["y"].tolist() == [1] * 6
    with pytest.raises(Invalid, match="leaves elements unwritten"):
        _stitch((4, 1, 0), (4, 1, 1)).run({"x": ones})


@pytest.mark.parametrize(
    ("sizes", "strides", "sound"),
    [([2, 2], [3, 2], True), ([2, 2], [1, 1], False), ([3], [0], False), ([2, 3], [3, 1], True)],
)
def test_a_region_that_writes_an_element_twice_is_refused(
    sizes: list[int], strides: list[int], sound: bool
) -> None:
    plan = PlanBuilder()
    x = plan.input("x", sizes)
    plan.output("y", plan.raster([plan.region(x, strides)], [6], fill=0.0))
    program = Program(plan.build())
    if sound:
        program.run({"x": np.ones(sizes, np.float32)})
    else:
        with pytest.raises(Invalid, match=r"regions\[0\] writes an element twice"):
            program.run({"x": np.ones(sizes, np.float32)})


def test_no_warning_escapes() -> None:
    plan = PlanBuilder()
    x = plan.input("x", [3])
    plan.output("log", plan.compute("log", [x], [3]))
    plan.output("cast", plan.compute("cast", [x], [3], type_=DataType.INT32))
    plan.output("div", plan.compute("div", [x, plan.constant([0.0, 0.0, 0.0])], [3]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = Program(plan.build()).run({"x": [-1.0, 0.0, float("nan")]})
    assert np.isnan(result["log"][0])


def test_memory_stays_within_its_bound_over_many_sizes() -> None:
    plan = linear_plan([1.0] * 64)
    bound = 256 * 1024
    program = Program(plan, max_buffer_bytes=bound)
    for batch in range(1, 60):
        program.run({"x": np.zeros((batch, 64), np.float32)})
        assert program.held_bytes <= bound
    with pytest.raises(Exhausted, match="batch=4096"):
        program.run({"x": np.zeros((4096, 64), np.float32)})
    assert program.run({"x": np.zeros((1, 64), np.float32)})["probability"].tolist() == [0.5]


def test_without_kept_bindings_nothing_is_held() -> None:
    program = Program(identity_plan(), max_bindings=0)
    program.run({"x": [1]})
    assert program.held_bytes == 0


def test_a_failed_call_leaves_the_program_usable() -> None:
    plan = PlanBuilder()
    x = plan.input("x", [1], DataType.INT32)
    plan.output("y", plan.compute("div", [plan.constant([6], DataType.INT32), x], [1]))
    program = Program(plan.build())
    for _ in range(20):
        with pytest.raises(Invalid):
            program.run({"x": [0]})
        assert program.run({"x": [2]})["y"].tolist() == [3]


def test_threads_dont_share_memory() -> None:
    """Every thread gets the results of its own inputs, over sizes that come and go."""
    program = Program(linear_plan([1.0, 1.0]), max_bindings=3)
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait()
        for _ in range(100):
            x = rng.normal(size=(int(rng.integers(1, 40)), 2)).astype(np.float32)
            expected = 1 / (1 + np.exp(-x.sum(axis=1)))
            np.testing.assert_allclose(program.run({"x": x})["probability"], expected, rtol=1e-5)

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, seed) for seed in range(8)]:
            done.result()
    assert program.held_bytes <= 3 * 40 * 64 * 10

"""Counts go down as they should on chains whose best form is known."""

import numpy as np
import pytest

from services.engine.domain.check_program import check_program
from services.engine.domain.extents import Extent
from services.engine.domain.merge import merge
from services.engine.domain.program import Program, RasterInstruction
from services.engine.domain.reference import interpret
from services.engine.testing_programs import Sketch, counts

N = Extent.dimension("n")


def merged(program: Program) -> Program:
    """Return the program merged, after comparing both at several sizes."""
    check_program(program, "the test")
    result = merge(program)
    check_program(result, "merge")
    for n in (1, 2, 5):
        feed = {}
        for named in program.inputs:
            shape = [size.evaluate({"n": n}) for size in program.values[named.value].shape]
            feed[named.name] = np.random.default_rng(n).random(shape).astype(np.float32)
        before, after = interpret(program, feed), interpret(result, feed)
        for name, array in before.items():
            # BLAS adds up views in another order than copies.
            np.testing.assert_allclose(after[name], array, rtol=1e-5)
    return result


def test_a_chain_of_four_transforms_becomes_one_raster() -> None:
    s = Sketch(n=(1, 64))
    x = s.input("x", "n", 4, 6)
    y = s.transpose(s.reshape(s.slice(s.transpose(x, 0, 2, 1), 1, 1, 4), N, 2, 2, 4), 0, 2, 1, 3)
    result = merged(s.program(y=y))
    assert counts(result) == (0, 1)
    (raster,) = result.instructions
    assert isinstance(raster, RasterInstruction)
    assert len(raster.regions) == 1
    assert raster.origin == "#0 (Raster) + #1 (Raster) + #2 (Raster) + #3 (Raster)"


def test_a_chain_of_transforms_becomes_a_view_of_what_computes() -> None:
    s = Sketch(n=(1, 64))
    x = s.input("x", "n", 4, 6)
    y = s.compute("neg", s.broadcast(s.slice(s.transpose(x, 0, 2, 1), 1, 1, 4), 3, N, 4, 4))
    assert counts(merged(s.program(y=y))) == (1, 0)


def test_transposing_twice_is_nothing() -> None:
    s = Sketch(n=(1, 64))
    x = s.compute("neg", s.input("x", "n", 3))
    y = s.transpose(s.transpose(x, 1, 0), 1, 0)
    assert counts(merged(s.program(y=y))) == (1, 0)


def test_reshaping_a_result_is_nothing() -> None:
    s = Sketch(n=(1, 64))
    x, bias = s.input("x", "n", 6), s.constant(np.arange(6, dtype=np.float32))
    total = s.compute("add", x, s.broadcast(bias, N, 6))
    result = merged(s.program(y=s.reshape(total, N, 2, 3)))
    assert counts(result) == (1, 0)
    assert result.values[result.outputs[0].value].shape == (N, Extent.of(2), Extent.of(3))


def test_what_only_reads_one_part_of_a_concatenation_reads_that_part() -> None:
    s = Sketch(n=(1, 64))
    x, y = s.input("x", "n", 3), s.input("y", "n", 5)
    joined = s.concat(1, x, y)
    first, second = s.slice(joined, 1, 0, 2), s.slice(joined, 1, 3, 5)
    result = merged(s.program(a=s.compute("neg", first), b=s.compute("neg", second)))
    assert counts(result) == (2, 0)


def test_what_reads_across_a_concatenation_gets_a_region_of_each_part() -> None:
    s = Sketch(n=(1, 64))
    x, y, z = s.input("x", "n", 3), s.input("y", "n", 5), s.input("z", "n", 2)
    part = s.slice(s.concat(1, x, y, z), 1, 2, 7)
    result = merged(s.program(y=s.transpose(part, 1, 0)))
    assert counts(result) == (0, 1)
    (raster,) = result.instructions
    assert [region.source.value for region in raster.regions] == [0, 1, 2]


def test_padding_and_transposing_keeps_the_fill() -> None:
    s = Sketch(n=(1, 64))
    padded = s.pad(s.input("x", "n", 3), 1, 1, 2, 7)
    result = merged(s.program(y=s.transpose(padded, 1, 0)))
    assert counts(result) == (0, 1)
    assert result.instructions[0].fill == 7


def test_the_inside_of_a_padding_needs_no_fill() -> None:
    s = Sketch(n=(1, 64))
    padded = s.pad(s.input("x", "n", 3), 1, 1, 2, 7)
    result = merged(s.program(y=s.compute("neg", s.slice(padded, 1, 1, 3))))
    assert counts(result) == (1, 0)


def test_equal_things_are_done_once() -> None:
    s = Sketch(n=(1, 64))
    x = s.input("x", "n", 3)
    one, other = s.constant(np.ones(3, np.float32)), s.constant(np.ones(3, np.float32))
    left = s.compute("exp", s.compute("add", x, s.broadcast(one, N, 3)))
    right = s.compute("exp", s.compute("add", x, s.broadcast(other, N, 3)))
    result = merged(s.program(y=s.compute("mul", left, right)))
    assert [step.operator for step in result.instructions] == ["add", "exp", "mul"]
    assert len(result.constants) == 1


def test_what_no_output_needs_goes() -> None:
    s = Sketch(n=(1, 64))
    x = s.input("x", "n", 3)
    s.compute("exp", s.transpose(x, 1, 0))
    result = merged(s.program(y=s.compute("neg", x)))
    assert counts(result) == (1, 0)
    assert len(result.values) == 2


def test_each_output_is_a_result_of_its_own() -> None:
    s = Sketch(n=(1, 64))
    x, c = s.input("x", "n", 3), s.constant(np.ones((2, 2), np.float32))
    y = s.compute("neg", x)
    result = merged(s.program(a=x, b=c, c=y, d=y, e=s.reshape(y, N * 3)))
    given = [named.value for named in result.outputs]
    assert len(set(given)) == 5
    assert not set(given) & ({named.value for named in result.inputs} | result.constants.keys())


@pytest.mark.parametrize(("order", "rasters"), [((0, 2, 1), 0), ((2, 1, 0), 1), ((1, 0, 2), 0)])
def test_a_matrix_product_takes_views_that_blas_takes(order: tuple[int, ...], rasters: int) -> None:
    s = Sketch(n=(1, 64))
    x = s.transpose(s.input("x", 4, 4, 4), *order)
    y = s.compute("matmul", x, s.input("y", 4, 4, 4))
    assert counts(merged(s.program(y=y))) == (1, rasters)


def test_gathering_takes_only_dense_data() -> None:
    s = Sketch(n=(1, 64))
    indices = s.constant(np.array([0, 2, 1]))
    x = s.input("x", 5, 4)
    turned = s.compute("gather", s.transpose(x, 1, 0), indices, axes=(0,))
    cut = s.compute("gather", s.slice(x, 0, 1, 3), indices, axes=(0,))
    assert counts(merged(s.program(a=turned, b=cut))) == (2, 1)


def test_what_can_not_be_proved_stays() -> None:
    s = Sketch(n=(1, 64))
    x = s.input("x", "n", 6)
    # Pairs along n, which may be odd: a pair may reach over two rows.
    y = s.reshape(s.transpose(x, 1, 0), N * 3, 2)
    result = merged(s.program(y=s.compute("reduce_sum", y, axes=(1,))))
    assert counts(result) == (1, 1)


def test_products_by_one_matrix_become_one_product() -> None:
    s = Sketch(n=(1, 64), m=(1, 9))
    x = s.input("x", "n", 5, 3)
    weights = s.broadcast(s.constant(np.arange(12, dtype=np.float32).reshape(3, 4)), N, 3, 4)
    result = merged(s.program(y=s.compute("neg", s.compute("matmul", x, weights))))
    first, _ = result.instructions
    assert result.values[first.outputs[0]].shape == (N * 5, Extent.of(4))
    assert [len(view.axes) for view in first.inputs] == [2, 2]


def test_products_whose_rows_do_not_follow_one_another_stay() -> None:
    s = Sketch(n=(1, 64))
    x = s.slice(s.input("x", "n", 5, 3), 1, 0, 4)
    weights = s.broadcast(s.constant(np.arange(12, dtype=np.float32).reshape(3, 4)), N, 3, 4)
    result = merged(s.program(y=s.compute("neg", s.compute("matmul", x, weights))))
    assert [len(view.axes) for view in result.instructions[0].inputs] == [3, 3]


def test_a_product_takes_one_row_whatever_its_step() -> None:
    s = Sketch(n=(1, 64))
    x = s.slice(s.input("x", 6, 5, 3), 1, 0, 1)
    columns = s.transpose(s.input("y", 6, 4, 3), 0, 2, 1)
    result = merged(s.program(y=s.compute("neg", s.compute("matmul", x, columns))))
    assert counts(result) == (2, 0)


def test_a_product_that_sums_nothing_is_a_multiplication() -> None:
    s = Sketch(n=(1, 64))
    x = s.input("x", "n", 5, 1)
    row = s.broadcast(s.constant(np.arange(4, dtype=np.float32).reshape(1, 4)), N, 1, 4)
    result = merged(s.program(y=s.compute("matmul", x, row)))
    assert [step.operator for step in result.instructions] == ["mul"]

"""Control flow and sizes that data decide, as the builder writes them and the plain interpreter runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from libs.common.errors import Invalid
from libs.runtime.plan import DataType, Run
from services.engine.domain.bounds import Bounds
from services.engine.domain.builder import Builder
from services.engine.domain.composed import Composed
from services.engine.domain.extents import Extent
from services.engine.domain.held_types import Thing
from services.engine.domain.loops import Round
from services.engine.domain.partition import Partitioned, partition
from services.engine.domain.program import Program, ValueType
from services.engine.domain.reference import interpret
from services.engine.domain.reference_blocks import interpret_blocks
from services.engine.domain.values import Held, Move, Value

N = Extent.dimension("n")


def builder(**bounds: tuple[int, int]) -> Builder:
    return Builder(Bounds(bounds))


def taken(b: Builder, name: str, type_: DataType, *shape: int | Extent) -> Value:
    value = b.input(name, ValueType(type_, tuple(map(Extent.of, shape))))
    assert isinstance(value, Value)
    return value


def ran(b: Builder, output: Thing, **inputs: Any) -> Any:
    program = b.program([("y", output)])
    assert isinstance(program, Composed)
    return interpret_blocks(program, inputs, lambda instruction, given: [])["y"]


def parted(b: Builder, output: Thing) -> Partitioned:
    program = b.program([("y", output)])
    assert isinstance(program, Composed)
    return partition(program)


def test_what_needs_no_data_stays_straight() -> None:
    b = builder(n=(1, 8))
    x = taken(b, "x", DataType.FLOAT32, N)
    program = b.program([("y", b.binary("add", x, x))])
    assert isinstance(program, Program)
    assert interpret(program, {"x": np.ones(3, np.float32)})["y"].tolist() == [2, 2, 2]


def test_a_size_that_data_decide_parts_the_program() -> None:
    b = builder()
    wanted = taken(b, "wanted", DataType.INT64, 2)
    doubled = b.binary("mul", wanted, b.scalar(2, DataType.INT64))
    shape = b.sizes(doubled)
    y = b.broadcast(b.scalar(7, DataType.FLOAT32), shape)
    assert ran(b, y, wanted=np.array([1, 2])).shape == (2, 4)
    halves = parted(b, y)
    assert len(halves.parts) == 2
    (_, second) = halves.blocks[0].actions
    assert isinstance(second.kind, Run)
    assert [source.element for source in second.kind.dimensions] == [0, 1]


def test_a_size_below_0_is_refused() -> None:
    b = builder()
    size = b.size(taken(b, "size", DataType.INT64))
    y = b.broadcast(b.scalar(7, DataType.FLOAT32), (size,))
    with pytest.raises(Invalid, match="a size is -1"):
        ran(b, y, size=np.array(-1))


@pytest.mark.parametrize(("one", "other", "shape"), [(3, 3, 3), (1, 3, 3), (3, 1, 3), (0, 1, 0), (1, 0, 0)])
def test_sizes_that_data_decide_broadcast(one: int, other: int, shape: int) -> None:
    b = builder()
    counts = taken(b, "counts", DataType.INT64, 2)
    first, second = b.sizes(counts)
    ones = b.cumulative_sum(b.broadcast(b.scalar(1, DataType.INT64), (first,), fold=False), 0)
    others = b.cumulative_sum(b.broadcast(b.scalar(10, DataType.INT64), (second,), fold=False), 0)
    expected = np.cumsum(np.ones(one, int)) + np.cumsum(np.full(other, 10))
    found = ran(b, b.binary("add", ones, others), counts=np.array([one, other]))
    assert found.tolist() == expected.tolist()
    assert found.shape == (shape,)


def test_sizes_that_neither_agree_nor_are_1_are_refused() -> None:
    b = builder()
    first, second = b.sizes(taken(b, "counts", DataType.INT64, 2))
    one = b.scalar(1, DataType.INT64)
    y = b.binary("add", b.broadcast(one, (first,), fold=False), b.broadcast(one, (second,), fold=False))
    with pytest.raises(Invalid, match="differ"):
        ran(b, y, counts=np.array([3, 2]))


def test_named_sizes_that_must_agree_are_demanded_to() -> None:
    b = builder(n=(1, 8), m=(1, 8))
    x, z = taken(b, "x", DataType.FLOAT32, N), taken(b, "z", DataType.FLOAT32, Extent.dimension("m"))
    program = b.program([("y", b.binary("mul", x, z))])
    assert isinstance(program, Program)
    assert [(str(left), str(right)) for left, right, _ in program.equalities] == [("n", "m")]
    # What follows from it is known from now on.
    assert not any(sizes["n"] != sizes["m"] for sizes in b.bounds.samples({"n", "m"}))


def test_sizes_that_cannot_agree_are_refused_when_the_plan_is_made() -> None:
    b = builder(n=(3, 8))
    with pytest.raises(Invalid, match="sizes n and 2 must be equal"):
        b.equal(N, Extent.of(2))


@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_gives_what_its_side_gives(flag: bool) -> None:
    b = builder(n=(1, 8))
    x, condition = taken(b, "x", DataType.FLOAT32, N), taken(b, "c", DataType.BOOL)
    (y,) = b.branch(condition, lambda: [b.binary("add", x, x)], lambda: [b.scalar(5, DataType.FLOAT32)])
    assert isinstance(y, Held)  # the sides have other ranks
    found = ran(b, y, x=np.ones(3, np.float32), c=np.array(flag))
    assert found.tolist() == ([2, 2, 2] if flag else 5)


def test_a_branch_keeps_sizes_that_its_sides_share() -> None:
    b = builder(n=(1, 8))
    x, condition = taken(b, "x", DataType.FLOAT32, 2, N), taken(b, "c", DataType.BOOL)
    (y,) = b.branch(condition, lambda: [x], lambda: [b.move(x, (Extent.of(1), N), (N, Extent.of(1)))])
    assert isinstance(y, Value)
    assert y.shape[1] == N
    assert y.shape[0].dimensions <= b.bounds.data
    tripled = b.binary("mul", y, b.scalar(3, DataType.FLOAT32))
    assert ran(b, tripled, x=np.ones((2, 4), np.float32), c=np.array(False)).shape == (1, 4)


def test_a_condition_that_is_known_leaves_one_side() -> None:
    b = builder()
    (y,) = b.branch(b.constant(np.array(True)), lambda: [b.scalar(1, DataType.INT64)], lambda: [])
    assert isinstance(y, Value)
    assert y.known is not None


def grown(b: Builder, trips: Value, start: Value) -> Value:
    """Return `start` with its end doubled in each round."""

    def body(number: Value, going: Value, state: list[Thing]) -> Round:
        (x,) = state
        assert isinstance(x, Value)
        size = x.shape[0]
        one, zero = Extent.of(1), Extent.of(0)
        moves = [
            Move(x, (size,), (one,), zero, (one,), zero),
            Move(x, (one,), (one,), size - 1, (one,), size),
        ]
        return Round(None, [b.raster(x.type, (size + 1,), moves)], [])

    ((y,), _) = b.loop(trips, None, [start], body)
    assert isinstance(y, Value)
    return y


def test_what_a_loop_carries_may_grow() -> None:
    b = builder()
    trips = taken(b, "trips", DataType.INT64)
    start = taken(b, "x", DataType.FLOAT32, 2)
    y = grown(b, trips, start)
    assert y.shape[0].dimensions <= b.bounds.data
    found = ran(b, y, trips=np.array(3), x=np.array([1, 2], np.float32))
    assert found.tolist() == [1, 2, 2, 2, 2]
    assert len(parted(b, y).blocks) == 2


def test_a_loop_of_no_rounds_gives_what_went_in() -> None:
    b = builder()
    y = grown(b, taken(b, "trips", DataType.INT64), taken(b, "x", DataType.FLOAT32, 2))
    assert ran(b, y, trips=np.array(0), x=np.array([1, 2], np.float32)).tolist() == [1, 2]


def test_a_loop_ends_when_its_condition_does() -> None:
    b = builder()
    limit = taken(b, "limit", DataType.INT64)

    def body(number: Value, going: Value, state: list[Thing]) -> Round:
        (total,) = state
        assert isinstance(total, Value)
        after = b.binary("add", total, number)
        return Round(b.binary("lt", after, limit), [after], [after])

    ((total,), (sums,)) = b.loop(None, None, [b.scalar(0, DataType.INT64)], body)
    assert ran(b, total, limit=np.array(6)) == 6
    assert sums.shape[0].dimensions <= b.bounds.data


def test_few_rounds_are_written_one_after_the_other() -> None:
    b = builder()
    x = taken(b, "x", DataType.FLOAT32, 4)

    def body(number: Value, state: list[Thing]) -> tuple[list[Thing], list[Value]]:
        (total,) = state
        assert isinstance(total, Value)
        after = b.binary("add", total, b.gather(x, number, 0))
        return [after], [after]

    (_, (sums,)) = b.repeat(Extent.of(4), [b.scalar(0, DataType.FLOAT32)], body)
    program = b.program([("y", sums)])
    assert isinstance(program, Program)
    assert interpret(program, {"x": np.arange(4, dtype=np.float32)})["y"].tolist() == [0, 1, 3, 6]


def test_many_rounds_are_a_loop_with_a_stack_of_known_size() -> None:
    b = builder(n=(1, 100))
    x = taken(b, "x", DataType.FLOAT32, N)

    def body(number: Value, state: list[Thing]) -> tuple[list[Thing], list[Value]]:
        return [], [b.unary("neg", b.gather(x, number, 0))]

    (_, (turned,)) = b.repeat(N, [], body)
    assert turned.shape == (N,)
    assert ran(b, turned, x=np.arange(20, dtype=np.float32)).tolist() == list(range(0, -20, -1))


def test_a_loop_that_changes_types_is_refused() -> None:
    b = builder()
    trips, x = taken(b, "trips", DataType.INT64), taken(b, "x", DataType.FLOAT32, 2)
    with pytest.raises(Invalid, match="is carried into a round"):
        b.loop(trips, None, [x], lambda number, going, state: Round(None, [number]))


def test_what_nobody_needs_goes_with_its_loop() -> None:
    b = builder()
    y = grown(b, taken(b, "trips", DataType.INT64), taken(b, "x", DataType.FLOAT32, 2))
    assert y is not None
    z = b.size(taken(b, "size", DataType.INT64))
    program = parted(b, b.broadcast(b.scalar(1, DataType.FLOAT32), (z,)))
    assert len(program.blocks) == 1


def test_a_sequence_that_is_known_costs_nothing() -> None:
    b = builder()
    x, z = taken(b, "x", DataType.FLOAT32, 2), taken(b, "z", DataType.FLOAT32, 3)
    pair = b.inserted(b.sequence([x]), z, b.integer(0))
    assert b.at(pair, b.integer(0)) is z
    assert b.at(b.erased(pair, b.integer(0)), b.integer(-1)) is x
    length = b.length(pair)
    assert length.known == 2
    with pytest.raises(Invalid, match="position 5 is outside of a sequence of 2"):
        b.at(pair, b.integer(5))

"""Values and formulas of extents."""

import pytest

from libs.common.errors import Invalid
from libs.runtime.extents import LIMIT, constants, evaluate, formulas
from libs.runtime.plan import Dimension, Extent, Operation

BATCH = Dimension("batch", 1, 100)


def _binary(operation: Operation) -> list[Extent]:
    return [Extent(Operation.DIMENSION), Extent(Operation.CONSTANT, -3), Extent(operation, left=0, right=1)]


@pytest.mark.parametrize(
    ("operation", "value"),
    [
        (Operation.ADD, 4),
        (Operation.SUBTRACT, 10),
        (Operation.MULTIPLY, -21),
        (Operation.FLOOR_DIVIDE, -3),
        (Operation.MODULO, -2),
        (Operation.MINIMUM, -3),
        (Operation.MAXIMUM, 7),
    ],
)
def test_each_operation(operation: Operation, value: int) -> None:
    assert evaluate(_binary(operation), [7]) == [7, -3, value]
    assert constants(_binary(operation)) == [None, -3, None]


@pytest.mark.parametrize("operation", [Operation.FLOOR_DIVIDE, Operation.MODULO])
def test_division_by_0_is_refused(operation: Operation) -> None:
    extents = [Extent(Operation.CONSTANT, 5), Extent(Operation.DIMENSION), Extent(operation, left=0, right=1)]
    assert evaluate(extents, [2])[2] == (2 if operation is Operation.FLOOR_DIVIDE else 1)
    with pytest.raises(Invalid, match=r"extents\[2\] divides by 0"):
        evaluate(extents, [0])


def test_values_that_overflow_are_refused() -> None:
    extents = [Extent(Operation.CONSTANT, LIMIT), Extent(Operation.ADD, left=0, right=0)]
    with pytest.raises(Invalid, match="overflows"):
        constants(extents)


def test_repeated_squaring_ends_at_the_limit() -> None:
    extents = [Extent(Operation.CONSTANT, 2)]
    extents += [Extent(Operation.MULTIPLY, left=i, right=i) for i in range(1000)]
    with pytest.raises(Invalid, match=r"extents\[6\] overflows"):
        evaluate(extents, [])


def test_formulas() -> None:
    extents = [
        Extent(Operation.DIMENSION),
        Extent(Operation.CONSTANT, 2),
        Extent(Operation.MULTIPLY, left=1, right=0),
        Extent(Operation.ADD, left=2, right=1),
        Extent(Operation.FLOOR_DIVIDE, left=3, right=1),
        Extent(Operation.MINIMUM, left=0, right=1),
        Extent(Operation.MULTIPLY, left=1, right=1),
    ]
    assert formulas(extents, [BATCH]) == [
        "batch", 2, "2*batch", "(2*batch)+2", "((2*batch)+2)//2", "min(batch, 2)", 4,
    ]  # fmt: skip


def test_a_formula_that_doubles_at_every_step_stays_short() -> None:
    extents = [Extent(Operation.DIMENSION)]
    extents += [Extent(Operation.ADD, left=i, right=i) for i in range(60)]
    assert max(len(str(text)) for text in formulas(extents, [BATCH])) <= 120

"""Operators on lists."""

from typing import Any

import numpy as np
import pytest

from libs.common.errors import Exhausted
from libs.runtime.host import Limits, sequences
from libs.runtime.kernels import DataFault
from libs.runtime.ledger import Items


def number(value: int) -> Any:
    return np.array(value, np.int64)


def limits() -> Limits:
    return Limits(1 << 20)


@pytest.mark.parametrize(
    ("position", "wanted"),
    [(None, [1, 2, 9]), (0, [9, 1, 2]), (1, [1, 9, 2]), (2, [1, 2, 9]), (-1, [1, 9, 2]), (-2, [9, 1, 2])],
)
def test_insert_puts_an_item_before_a_position(position: int | None, wanted: list[int]) -> None:
    items = Items([1, 2])
    given = [items, 9] if position is None else [items, 9, number(position)]
    assert list(sequences.insert(given, limits())[0]) == wanted
    assert items == [1, 2], "it may be in other registers"


@pytest.mark.parametrize(("position", "wanted"), [(None, [1, 2]), (0, [2, 3]), (-3, [2, 3]), (1, [1, 3])])
def test_erase_leaves_an_item_out(position: int | None, wanted: list[int]) -> None:
    items = Items([1, 2, 3])
    given = [items] if position is None else [items, number(position)]
    assert list(sequences.erase(given, limits())[0]) == wanted
    assert items == [1, 2, 3]


def test_at_counts_from_both_ends() -> None:
    items = Items([1, 2, 3])
    assert sequences.at([items, number(0)], limits()) == [1]
    assert sequences.at([items, number(-1)], limits()) == [3]
    assert sequences.length([items], limits())[0].dtype == np.int64


@pytest.mark.parametrize("position", [3, -4, 1 << 62])
def test_a_position_outside_is_told(position: int) -> None:
    with pytest.raises(DataFault, match=f"position {position} is outside of a sequence of 3"):
        sequences.at([Items([1, 2, 3]), number(position)], limits())


def test_of_nothing() -> None:
    assert sequences.empty([], limits()) == [[]]
    assert int(sequences.length([Items()], limits())[0]) == 0
    with pytest.raises(DataFault, match="nothing to erase"):
        sequences.erase([Items()], limits())
    with pytest.raises(DataFault, match="nothing to join"):
        sequences.concat([Items()], limits(), integers=(0, 0))
    with pytest.raises(DataFault, match=r"a position has the shape \[2\]"):
        sequences.at([Items([1]), np.zeros(2, np.int64)], limits())


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_joins_and_stacks_as_numpy_does(axis: int) -> None:
    arrays = [np.arange(6).reshape(2, 3), np.arange(6, 12).reshape(2, 3)]
    (joined,) = sequences.concat([Items(arrays)], limits(), integers=(axis, 0))
    assert np.array_equal(joined, np.concatenate(arrays, axis))
    (stacked,) = sequences.concat([Items(arrays)], limits(), integers=(axis, 1))
    assert np.array_equal(stacked, np.stack(arrays, axis))


def test_shapes_that_dont_fit_are_told() -> None:
    items = Items([np.zeros((2, 3)), np.zeros((2, 4))])
    with pytest.raises(DataFault, match=r"shapes \[2, 3\], \[2, 4\] can't be joined along axis 0"):
        sequences.concat([items], limits(), integers=(0, 0))
    with pytest.raises(DataFault, match="can't be joined along axis 5"):
        sequences.concat([Items([np.zeros(2)])], limits(), integers=(5, 0))


def test_lists_are_bounded_in_number_and_memory() -> None:
    with pytest.raises(DataFault, match=f"more than {sequences.MOST_ITEMS} items"):
        sequences.insert([Items([None] * sequences.MOST_ITEMS), 1], Limits(1 << 40))
    with pytest.raises(Exhausted, match="more than the 100 bytes that are left"):
        sequences.concat([Items([np.zeros(8), np.zeros(8)])], Limits(100), integers=(0, 0))
    with pytest.raises(Exhausted, match="more calculations"):
        sequences.insert([Items([None] * 1000), 1], Limits(1 << 20, 7_000))

from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.shares import Shares


def filled(shares: Shares, *owners: str) -> list[int]:
    """Have owners take in turn until nobody gets anything more; return what each has."""
    refused = 0
    for owner in islice(cycle(owners), 10_000):
        refused = 0 if shares.take(owner) else refused + 1
        if refused == len(owners):
            break
    return [shares.held_by(owner) for owner in owners]


@pytest.mark.parametrize(
    ("owners", "expected"), [("a", [50]), ("ab", [33, 33]), ("abc", [25, 25, 25]), ("abcd", [20] * 4)]
)
def test_an_owner_holds_as_much_as_it_leaves_free(owners: str, expected: list[int]) -> None:
    shares = Shares(100)
    assert filled(shares, *owners) == expected
    assert shares.take("newcomer")


def test_who_came_late_gets_as_much_as_the_first_gives_back() -> None:
    shares = Shares(100)
    assert filled(shares, "greedy") == [50]
    assert filled(shares, "late") == [25]
    assert not shares.take("greedy")
    shares.give_back("greedy", 20)
    assert filled(shares, "late") == [35]


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_small_limits(limit: int, most: int) -> None:
    assert filled(Shares(limit), "a") == [most]


def test_one_part_alone_may_be_larger_than_all() -> None:
    shares = Shares(10)
    assert shares.take("a", 12)
    assert not shares.take("b", 1)
    shares.give_back("a", 12)
    assert shares.take("b", 9)
    assert not shares.take("a", 2)
    assert shares.take("a", 1)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 40), st.booleans()), max_size=200))
def test_the_sums_are_right_and_bounded(steps: list[tuple[str, int, bool]]) -> None:
    shares, taken = Shares(100), list[tuple[str, int]]()
    for owner, amount, more in steps:
        if more:
            if shares.take(owner, amount):
                taken.append((owner, amount))
        elif taken:
            shares.give_back(*taken.pop(amount % len(taken)))
        assert shares.held == sum(part for _, part in taken) <= shares.limit
        for each in "abcde":
            assert shares.held_by(each) == sum(part for who, part in taken if who == each)

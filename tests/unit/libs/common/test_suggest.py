from hypothesis import given
from hypothesis import strategies as st

from libs.common.suggest import closest, did_you_mean


def test_a_near_name_is_suggested() -> None:
    assert did_you_mean("relaese", ["release", "task"]) == "; did you mean 'release'?"
    assert did_you_mean("getmodel", ["GetModel"]) == "; did you mean 'GetModel'?"


def test_nothing_near_says_nothing() -> None:
    assert did_you_mean("zebra", ["release", "task"]) == ""
    assert did_you_mean("x", []) == ""


def test_a_huge_name_is_not_compared() -> None:
    assert closest("a" * 100_000, ["a"]) is None


@given(st.text(max_size=30), st.lists(st.text(max_size=10), max_size=5))
def test_a_suggestion_is_always_known(name: str, known: list[str]) -> None:
    assert closest(name, known) in {None, *known}

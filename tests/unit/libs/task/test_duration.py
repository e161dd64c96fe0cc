import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.task.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("30s", 30), ("5m", 300), ("12h", 43200), ("30d", 2592000)]
)
def test_durations_read_and_write(text, seconds):
    assert parse_duration(text) == seconds
    assert format_duration(seconds) == text


@given(st.integers(1, 3660 * 86_400_000))
def test_every_millisecond_makes_the_round_trip(milliseconds):
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@pytest.mark.parametrize(
    "value",
    [
        "",
        "5",
        "s",
        "-5s",
        "0s",
        "1.5h",
        "5 s",
        "5S",
        "5min",
        "3661d",
        "9" * 15 + "d",
        "٣s",
        5,
        None,
        True,
        ["5s"],
    ],
)
def test_anything_else_is_refused_with_examples(value):
    with pytest.raises(Invalid, match=r"\$\.within: must be") as caught:
        parse_duration(value, "$.within")
    assert caught.value.metadata["path"] == "$.within"

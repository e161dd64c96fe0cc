import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.device_agent.convert import to_timestamp
from services.device_agent.domain.times import bounded_time


@pytest.mark.parametrize(
    ("time_s", "bounded"),
    [
        (1.5, 1.5),
        (0.0, 0.0),
        (-1.0, 0.0),
        (253_402_300_799.9999, 253_402_300_799.0),
        (math.inf, 253_402_300_799.0),
        (math.nan, 0.0),
    ],
)
def test_times_are_kept_within_what_a_message_can_say(time_s, bounded):
    assert bounded_time(time_s) == bounded


@given(st.floats())
def test_every_number_makes_a_timestamp(time_s):
    seconds = to_timestamp(time_s).ToNanoseconds() / 1e9
    assert seconds == pytest.approx(bounded_time(time_s), abs=1e-3)

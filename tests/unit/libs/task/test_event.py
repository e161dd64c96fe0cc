import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import isthmus.task
from libs.common.errors import Invalid
from libs.task.event import Event, check_event, event_from_json
from libs.task.testing import make_event

text = st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e300, 1e300) | text
events = st.builds(
    Event,
    event_id=text,
    type=text.filter(lambda t: t not in ("", "*")),
    page=text,
    user=text,
    time_s=st.floats(0, 4e9),
    fields=st.dictionaries(text.filter(bool), scalars | st.lists(scalars, max_size=5), max_size=5),
)


@given(events)
def test_events_make_the_round_trip_through_text(event):
    assert event_from_json(json.dumps(event.to_json())) == event
    assert event_from_json(event.to_json()) == event


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["type", "time_s", "fields", "page", "x"]), inner, max_size=4)
        ),
    )
)
def test_junk_raises_invalid_and_nothing_else(value):
    try:
        event = event_from_json(json.dumps(value))
    except Invalid:
        return
    assert check_event(event) == event


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"type": ""}, "$.type: must have 1 to 128 characters"),
        ({"type": "*"}, "wildcard"),
        ({"type": "a\nb"}, "control or unprintable characters"),
        ({"type": 3}, "$.type: must be a string, not 3"),
        ({"time_s": "1"}, "$.time_s: must be a number of Unix seconds"),
        ({"time_s": True}, "$.time_s: must be a number of Unix seconds"),
        ({"time_s": 1767225600000}, "$.time_s: must be Unix seconds from 0 to the year 9999"),
        ({"time_s": -1}, "$.time_s: must be Unix seconds"),
        ({"time_s": 10**400 // 10**10}, "$.time_s: must be Unix seconds"),
        ({"fields": []}, "$.fields: must be an object"),
        ({"fields": {"a": {"b": 1}}}, "$.fields.a: must be a JSON scalar or a list of scalars"),
        ({"fields": {"a": [[1]]}}, "$.fields.a[0]: must be a JSON scalar"),
        ({"fields": {"a": 2**63}}, "does not fit 64 bits"),
        ({"fields": {"a b c": [1] * 1025}}, '$.fields["a b c"]: has 1025 elements'),
        ({"fields": {f"f{i}": i for i in range(65)}}, "has 65 fields, more than 64"),
        ({"fields": {"": 1}}, "must have 1 to 128 characters"),
        ({"usr": "u"}, "did you mean 'user'?"),
        ({"user": "u" * 257}, "must have 0 to 256 characters"),
    ],
)
def test_faults_name_the_member(change, says):
    value = {"type": "rate", "time_s": 1, **change}
    with pytest.raises(Invalid) as caught:
        event_from_json(json.dumps(value))
    assert says in caught.value.message
    assert caught.value.message.startswith("event: line 1, column ")


def test_the_whole_is_bounded():
    fields = {"a": "x" * 65000, "b": "y" * 1000}
    with pytest.raises(Invalid) as caught:
        check_event(make_event(**fields))
    assert caught.value.reason == "TOO_LARGE"
    with pytest.raises(Invalid, match="finite"):
        check_event(make_event(a=float("nan")))
    with pytest.raises(Invalid, match="surrogate"):
        check_event(make_event(a="\ud800"))


def test_scripts_see_events_with_the_same_members():
    def members(cls):
        return [field.name for field in dataclasses.fields(cls)]

    assert members(isthmus.task.Event) == members(Event)

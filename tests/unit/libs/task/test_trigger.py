import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.task.testing import attempt, make_event
from libs.task.trigger import Step, Trigger, parse_step, parse_trigger, trigger_from_value

DOCUMENTED = """
{"sequence": [{"event": "page_enter", "page": "item", "where": {"gt": ["price", 10]}},
              {"followed_by": {"event": "click"}}],
 "within": "30s"}
"""


def test_the_documented_trigger_reads():
    trigger = parse_trigger(DOCUMENTED)
    enter, click = trigger.steps
    assert (enter.event, enter.page, enter.contiguous) == ("page_enter", "item", True)
    assert enter.where.matches({"price": 11})
    assert not enter.where.matches({"price": 10})
    assert click == Step("click", contiguous=False)
    assert trigger.within_s == 30


wheres = st.sampled_from([{"exists": "a"}, {"not": {"eq": ["a", 1]}}, {"and": [{"in": ["b", ["x"]]}]}])
elements = st.fixed_dictionaries(
    {"event": st.sampled_from(["*", "a", "b"])},
    optional={"page": st.sampled_from(["", "p"]), "where": wheres},
)
sequences = st.builds(
    lambda first, rest: [first, *rest],
    elements,
    st.lists(elements | st.builds(lambda e: {"followed_by": e}, elements), max_size=4),
)
triggers = st.fixed_dictionaries(
    {"sequence": sequences}, optional={"within": st.sampled_from(["1ms", "90s", "3d"])}
)


@given(triggers)
def test_triggers_make_the_round_trip(value):
    trigger = parse_trigger(json.dumps(value))
    assert trigger.to_json() == value
    assert trigger_from_value(trigger.to_json()) == trigger
    assert hash(trigger_from_value(trigger.to_json())) == hash(trigger)


def test_steps_are_equal_by_meaning():
    one = parse_step({"event": "a", "where": {"eq": ["x", 1]}}, "$")
    other = parse_step({"where": {"eq": ["x", 1]}, "event": "a"}, "$")
    assert one == other
    assert {one: 1}[other] == 1
    assert one != parse_step({"event": "a", "where": {"eq": ["x", 2]}}, "$")


def test_a_step_matches_type_page_and_fields():
    step = parse_step({"event": "rate", "page": "item", "where": {"ge": ["rating", 4]}}, "$")
    assert step.matches(make_event("rate", page="item", rating=4))
    assert not step.matches(make_event("rate", page="item", rating=3))
    assert not step.matches(make_event("rate", page="home", rating=4))
    assert not step.matches(make_event("view", page="item", rating=4))
    assert Step("*").matches(make_event("view", page="anything"))
    assert not Step("*", page="").matches(make_event("view", page="anything"))


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(["30s", "*"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["sequence", "within", "event", "page", "where", "followed_by", "eq"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@settings(max_examples=400)
@given(junk)
def test_junk_raises_invalid_with_a_place_and_nothing_else(value):
    trigger, error = attempt(parse_trigger, json.dumps(value))
    if error is not None:
        assert error.message.startswith("trigger: line 1, column ")
    else:
        assert isinstance(trigger, Trigger)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"sequence": [{"event": "a"}, x]}', "line 1, column 31: expecting value"),
        (
            '{"seqence": []}',
            'line 1, column 2: $.seqence: unknown key "seqence"; allowed: "sequence", "within"; did',
        ),
        ('{"sequence": []}', "line 1, column 14: $.sequence: must have 1 to 32 elements, has 0"),
        ('{"sequence": [{"evnt": "a"}]}', "did you mean 'event'?"),
        (
            '{"sequence": [{"event": "a"},\n {"followd_by": {"event": "b"}}]}',
            "line 2, column 3: $.sequence[1].followd_by: unknown key",
        ),
        (
            '{"sequence": [{"followed_by": {"event": "b"}}]}',
            "line 1, column 16: $.sequence[0].followed_by: the first element follows nothing",
        ),
        (
            '{"sequence": [{"event": "a"}, {"followed_by": {"event": "b"}, "event": "c"}]}',
            '$.sequence[1].event: unknown key "event"; allowed: "followed_by"',
        ),
        ('{"sequence": [{"page": "a"}]}', '$.sequence[0]: key "event" is missing'),
        ('{"sequence": [{"event": "a", "page": "*"}]}', 'leave "page" out to match any page'),
        (
            '{"sequence": [{"event": "a", "where": {"ge": ["x"]}}]}',
            "line 1, column 46: $.sequence[0].where.ge",
        ),
        (
            '{"sequence": [{"event": "a"}], "within": 30}',
            'line 1, column 42: $.within: must be a string of a whole number and a unit: "250ms", "30s"',
        ),
        ('{"sequence": [{"event": "a"}], "within": "30 s"}', 'not "30 s"'),
        ('"page == item"', "line 1, column 1: $: must be an object"),
        (json.dumps({"sequence": [{"event": "a"}] * 33}), "must have 1 to 32 elements, has 33"),
    ],
)
def test_faults_name_line_column_path_and_remedy(text, says):
    with pytest.raises(Invalid) as caught:
        parse_trigger(text)
    assert says in caught.value.message

import itertools
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.task.event import Event
from libs.task.pipeline import MAX_GROUPS, Pipeline, parse_pipeline
from libs.task.testing import attempt, make_event

DOCUMENTED = """
{"genres": {"source": {"event": "rate", "where": {"ge": ["rating", 4]}},
            "key_by": "user_id",
            "ops": [{"filter": {"exists": "genres"}},
                    {"map": {"kind": "genres"}},
                    {"window": {"size": "30d", "max_events": 500}},
                    {"reduce": {"counts": {"fn": "count", "by": "kind"}}}]}}
"""


def feature(reduce, *ops, window=None, **extra):
    value = {
        "source": {"event": "rate"},
        "ops": [*ops, {"window": window or {"size": "100s"}}, {"reduce": reduce}],
        **extra,
    }
    return parse_pipeline(json.dumps({"f": value})).features[0]


def test_the_documented_pipeline_counts_genres():
    pipeline = parse_pipeline(DOCUMENTED)
    assert pipeline.horizon_s == 30 * 86400
    events = [
        make_event(time_s=1, rating=5, genres=["Drama", "War"]),
        make_event(time_s=2, rating=4, genres=["Drama"]),
        make_event(time_s=3, rating=3, genres=["Comedy"]),
        make_event(time_s=4, rating=5),
        make_event("view", time_s=5, rating=5, genres=["Drama"]),
    ]
    assert pipeline.features[0].evaluate(events, 10) == {"counts": {"Drama": 2, "War": 1}}


def test_every_function_over_some_values_and_over_none():
    functions = ("count", "sum", "mean", "min", "max", "last", "collect")
    computed = feature({name: {"fn": name, "field": "v"} for name in functions})
    events = [make_event(time_s=t, v=v) for t, v in [(1, 3), (2, 1.5), (3, "x"), (4, True), (5, None)]]
    assert computed.evaluate([*events, make_event(time_s=6)], 10) == {
        "count": 4, "sum": 4.5, "mean": 2.25, "min": 1.5, "max": 3, "last": True,
        "collect": [3, 1.5, "x", True],
    }  # fmt: skip
    assert computed.evaluate([], 10) == {
        "count": 0, "sum": 0, "mean": None, "min": None, "max": None, "last": None, "collect": [],
    }  # fmt: skip


def test_count_without_a_field_counts_records():
    assert feature({"n": {"fn": "count"}}).evaluate([make_event(time_s=1), make_event(time_s=2)], 5) == {
        "n": 2
    }


def test_the_window_is_open_behind_and_closed_ahead():
    collected = feature({"v": {"fn": "collect", "field": "v"}}, window={"size": "10s"})
    events = [make_event(time_s=t, v=t) for t in (89, 90, 90.001, 100, 100.001)]
    assert collected.evaluate(events, 100) == {"v": [90.001, 100]}


def test_the_window_keeps_the_latest_after_the_filters_ahead_of_it():
    op = {"filter": {"ge": ["v", 10]}}
    window = {"size": "100s", "max_events": 2}
    events = [make_event(time_s=t, v=v) for t, v in [(1, 10), (2, 20), (3, 30), (4, 1), (5, 2)]]
    ahead = feature({"v": {"fn": "collect", "field": "v"}}, op, window=window)
    assert ahead.evaluate(events, 50) == {"v": [20, 30]}
    assert [ahead.selects(event) for event in events] == [True, True, True, False, False]
    value = {
        "source": {"event": "rate"},
        "ops": [{"window": window}, op, {"reduce": {"v": {"fn": "collect", "field": "v"}}}],
    }
    behind = parse_pipeline(json.dumps({"f": value})).features[0]
    assert behind.evaluate(events, 50) == {"v": []}
    assert all(behind.selects(event) for event in events)


def test_map_names_anew_and_drops_the_rest():
    mapped = feature(
        {"b": {"fn": "last", "field": "b"}, "a": {"fn": "last", "field": "a"}}, {"map": {"b": "a"}}
    )
    assert mapped.evaluate([make_event(time_s=1, a=7)], 5) == {"b": 7, "a": None}


def test_the_key_is_the_user_or_a_field():
    event = make_event(user="u", shop=3)
    assert feature({"n": {"fn": "count"}}).key_of(event) == "u"
    assert feature({"n": {"fn": "count"}}, key_by="shop").key_of(event) == 3
    assert feature({"n": {"fn": "count"}}, key_by="other").key_of(event) is None


def test_by_groups_scalars_and_list_elements_under_text():
    grouped = feature({"m": {"fn": "mean", "field": "v", "by": "g"}})
    events = [
        make_event(time_s=1, v=1, g="a"),
        make_event(time_s=2, v=2, g=["a", "b", None]),
        make_event(time_s=3, v=4, g=1.5),
        make_event(time_s=4, v=8, g=True),
        make_event(time_s=5, v=9),
    ]
    assert grouped.evaluate(events, 10) == {"m": {"a": 1.5, "b": 2, "1.5": 4, "true": 8}}


def test_groups_are_bounded_and_the_oldest_win():
    grouped = feature({"n": {"fn": "count", "by": "g"}}, window={"size": "1d", "max_events": 10000})
    events = [make_event(time_s=1 + i, g=f"g{i}") for i in range(MAX_GROUPS + 5)]
    groups = grouped.evaluate([*events, make_event(time_s=80000, g="g0")], 80000)["n"]
    assert len(groups) == MAX_GROUPS
    assert groups["g0"] == 2
    assert f"g{MAX_GROUPS}" not in groups


def test_a_sum_too_large_saturates_so_that_it_stays_json():
    both = feature({"s": {"fn": "sum", "field": "v"}, "m": {"fn": "mean", "field": "v"}})
    result = both.evaluate([make_event(time_s=t, v=1.7e308) for t in (1, 2)], 5)
    assert result == {"s": pytest.approx(1.797e308, rel=1e-3), "m": 1.7e308}
    assert math.isfinite(result["s"])
    mixed = [make_event(time_s=t, v=v) for t, v in ((1, 1.7e308), (2, 1.7e308), (3, -1.7e308))]
    assert both.evaluate(mixed, 5)["s"] == pytest.approx(1.7e308)


values = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-1e6, 1e6) | st.sampled_from(["x", "y"])
events = st.lists(
    st.builds(
        Event,
        event_id=st.sampled_from(["", "i1", "i2"]),
        type=st.sampled_from(["rate", "view"]),
        page=st.just(""),
        user=st.just("u"),
        time_s=st.sampled_from([2.0, 3.0, 10.0, 11.0, 18.0, 19.0]),
        fields=st.dictionaries(
            st.sampled_from(["v", "g"]), values | st.lists(values, max_size=3), max_size=2
        ),
    ),
    max_size=12,
)
EVERYTHING = {
    **{
        name: {"fn": name, "field": "v"} for name in ("count", "sum", "mean", "min", "max", "last", "collect")
    },
    **{f"{name}_by": {"fn": name, "field": "v", "by": "g"} for name in ("count", "sum", "last", "collect")},
}


@settings(max_examples=300)
@given(events, st.randoms(use_true_random=False), st.integers(1, 5))
def test_the_order_of_arrival_never_matters(log, rng: random.Random, most):
    computed = feature(EVERYTHING, {"filter": {"exists": "v"}}, window={"size": "15s", "max_events": most})
    shuffled = list(log)
    rng.shuffle(shuffled)
    result = computed.evaluate(log, 18.0)
    assert json.dumps(result) == json.dumps(computed.evaluate(shuffled, 18.0))


def test_ties_are_settled_by_id_and_then_by_content():
    collected = feature({"v": {"fn": "collect", "field": "v"}}, window={"size": "9s", "max_events": 3})
    events = [make_event(time_s=1, event_id=i, v=v) for i, v in [("b", 1), ("a", 2), ("", 4), ("", 3)]]
    for order in itertools.permutations(events):
        assert collected.evaluate(order, 5) == {"v": [4, 2, 1]}


@given(events, st.integers(1, 5))
def test_a_store_may_stop_reading_at_the_windows_bound(log, most):
    computed = feature(EVERYTHING, {"filter": {"exists": "v"}}, window={"size": "15s", "max_events": most})
    unique = [Event(f"e{i}", e.type, e.page, e.user, e.time_s, e.fields) for i, e in enumerate(log)]
    taken, count = [], 0
    for event in sorted(unique, key=lambda e: (e.time_s, e.event_id), reverse=True):
        if event.time_s > 18 or count == most:
            continue
        taken.append(event)
        count += computed.selects(event)
    assert computed.evaluate(taken, 18.0) == computed.evaluate(unique, 18.0)


def test_pipelines_make_the_round_trip():
    pipeline = parse_pipeline(DOCUMENTED)
    assert parse_pipeline(json.dumps(pipeline.to_json())) == pipeline
    assert pipeline.to_json() == json.loads(DOCUMENTED)
    assert parse_pipeline("{}") == Pipeline()
    assert Pipeline().horizon_s == 0


KEYWORDS = [
    "source",
    "ops",
    "filter",
    "map",
    "window",
    "reduce",
    "size",
    "fn",
    "field",
    "by",
    "event",
    "key_by",
]
junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.sampled_from(["30d", "count", "sum"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYWORDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=400)
@given(junk)
def test_junk_raises_invalid_and_nothing_else(value):
    pipeline, error = attempt(parse_pipeline, json.dumps(value))
    if error is not None:
        assert error.message.startswith("pipeline: line 1, column ")
    else:
        assert isinstance(pipeline, Pipeline)


WINDOW = {"window": {"size": "1d"}}
REDUCE = {"reduce": {"n": {"fn": "count"}}}


@pytest.mark.parametrize(
    ("ops", "says"),
    [
        ([REDUCE, WINDOW], '"reduce" must be the last'),
        ([{"filter": {"exists": "a"}}, REDUCE], 'a "window" is missing'),
        ([WINDOW, {"filter": {"exists": "a"}}], 'a "reduce" is missing at the end'),
        ([WINDOW, WINDOW, REDUCE], 'a feature has one "window"'),
        ([WINDOW, {"reduc": {}}], "did you mean 'reduce'?"),
        ([WINDOW, {"reduce": {"n": {"fn": "summ", "field": "a"}}}], "did you mean 'sum'?"),
        ([WINDOW, {"reduce": {"n": {"fn": "sum"}}}], '"sum" needs "field"'),
        ([WINDOW, {"reduce": {}}], "1 to 32 named outputs"),
        (
            [{"window": {"size": "1d", "max_events": 10001}}, REDUCE],
            "must be an integer from 1 to 10000, not 10001",
        ),
        ([{"window": {}}, REDUCE], 'key "size" is missing'),
        ([{"map": {"a": 1}}, WINDOW, REDUCE], "$.f.ops[0].map.a: must be a string"),
        ([{"filter": {"gt": ["a", []]}}, WINDOW, REDUCE], "$.f.ops[0].filter.gt[1]"),
        ([WINDOW], "must have 2 to 16 elements"),
        ([WINDOW, {"filter": {"exists": "a"}, "map": {}}], "must be an object with one of filter, map"),
    ],
)
def test_faults_name_path_and_remedy(ops, says):
    text = json.dumps({"f": {"source": {"event": "rate"}, "ops": ops}})
    with pytest.raises(Invalid) as caught:
        parse_pipeline(text)
    assert says in caught.value.message
    assert caught.value.message.startswith("pipeline: line 1, column ")


def test_too_many_features_are_refused():
    one = json.loads(DOCUMENTED)["genres"]
    with pytest.raises(Invalid, match="has 33 features, more than 32"):
        parse_pipeline(json.dumps({f"f{i}": one for i in range(33)}))

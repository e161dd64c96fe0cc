import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.task.expression import parse_expression, read_expression
from libs.task.testing import attempt

names = st.sampled_from(["a", "b", "c"])
scalars = st.one_of(
    st.sampled_from(["", "x", "y"]),
    st.integers(-2, 2),
    st.sampled_from([0.0, 1.0, 1.5, -2.0]),
    st.booleans(),
)
ordered = scalars.filter(lambda value: not isinstance(value, bool))
leaves = st.one_of(
    st.builds(lambda op, n, v: {op: [n, v]}, st.sampled_from(["eq", "ne"]), names, scalars),
    st.builds(lambda op, n, v: {op: [n, v]}, st.sampled_from(["lt", "le", "gt", "ge"]), names, ordered),
    st.builds(lambda n, v: {"in": [n, v]}, names, st.lists(scalars, min_size=1, max_size=4)),
    st.builds(lambda n: {"exists": n}, names),
)
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda v: {"and": v}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda v: {"or": v}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda v: {"not": v}, inner),
    ),
    max_leaves=8,
)
fields = st.dictionaries(names, st.none() | scalars | st.lists(st.none() | scalars, max_size=3), max_size=3)


def kind(value):
    if isinstance(value, bool):
        return "bool"
    return {str: "text", int: "number", float: "number"}.get(type(value))


def same(one, other):
    return kind(one) is not None and kind(one) == kind(other) and one == other


def naive(expression, record):
    """The semantics once more, as plainly as can be: the oracle."""
    ((op, operand),) = expression.items()
    if op == "and":
        return all([naive(part, record) for part in operand])
    if op == "or":
        return any([naive(part, record) for part in operand])
    if op == "not":
        return not naive(operand, record)
    if op == "exists":
        return operand in record and record[operand] is not None
    name, literal = operand
    if name not in record:
        return False
    value = record[name]
    if op == "in":
        candidates = value if isinstance(value, list) else [value]
        return any(same(candidate, item) for candidate in candidates for item in literal)
    if kind(value) is None or kind(value) != kind(literal):
        return False
    return {
        "eq": lambda: value == literal,
        "ne": lambda: value != literal,
        "lt": lambda: value < literal,
        "le": lambda: value <= literal,
        "gt": lambda: value > literal,
        "ge": lambda: value >= literal,
    }[op]()


@settings(max_examples=400)
@given(expressions, st.lists(fields, min_size=1, max_size=5))
def test_compiled_expressions_mean_what_the_naive_ones_do(value, records):
    expression = parse_expression(value)
    for record in records:
        assert expression.matches(record) is naive(value, record)


def used_fields(value):
    ((op, operand),) = value.items()
    if op in ("and", "or"):
        return set().union(*(used_fields(part) for part in operand))
    if op == "not":
        return used_fields(operand)
    return {operand if op == "exists" else operand[0]}


@given(expressions)
def test_round_trips_and_knows_its_fields(value):
    expression = parse_expression(value)
    assert expression.to_json() == value
    again = parse_expression(json.loads(json.dumps(value)))
    assert again == expression
    assert hash(again) == hash(expression)
    assert expression.fields == used_fields(value)
    copy = pickle.loads(pickle.dumps(expression))
    assert copy == expression
    assert copy.matches({"a": 1}) == expression.matches({"a": 1})


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["eq", "ne", "lt", "in", "exists", "and", "or", "not", "xor"])
            | st.text(max_size=3),
            inner,
            max_size=2,
        )
    ),
    max_leaves=15,
)


@settings(max_examples=500)
@given(junk)
def test_junk_raises_invalid_and_nothing_else(value):
    expression, error = attempt(parse_expression, value, "$.where")
    if error is not None:
        assert error.metadata["path"].startswith("$.where")
    else:
        assert expression.matches({}) in (True, False)


@given(
    st.recursive(
        st.none() | st.builds(object) | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)
    )
)
def test_matching_survives_odd_fields(value):
    expression = parse_expression(
        {"or": [{"in": ["a", [1, "x", True]]}, {"gt": ["a", 1]}, {"lt": ["a", "x"]}]}
    )
    assert expression.matches({"a": value}) in (True, False)


@pytest.mark.parametrize(
    ("value", "path", "says"),
    [
        (
            {"eqq": ["a", 1]},
            "$.eqq",
            "allowed: eq, ne, lt, le, gt, ge, in, exists, and, or, not; did you mean 'eq'?",
        ),
        ({"and": [{"exists": "a"}, {"eq": ["a"]}]}, "$.and[1].eq", '"eq" takes [field, literal]'),
        ({"not": {"lt": ["a", True]}}, "$.not.lt[1]", '"lt" compares strings or numbers, not true'),
        ({"eq": ["a", None]}, "$.eq[1]", "null is no literal"),
        ({"eq": ["a", ["b"]]}, "$.eq[1]", 'must be a string, a number, true or false; not ["b"]'),
        ({"eq": [1, "a"]}, "$.eq[0]", "must be a string, not 1"),
        ({"eq": ["", "a"]}, "$.eq[0]", "must have 1 to 128 characters"),
        ({"exists": ["a"]}, "$.exists", "must be a string"),
        ({"in": ["a", "b"]}, "$.in[1]", 'must be an array, not "b"'),
        ({"in": ["a", []]}, "$.in[1]", "must have 1 to 1000 elements, has 0"),
        ({"or": []}, "$.or", "must have 1 to 256 elements, has 0"),
        ({"eq": ["a", 1], "ne": ["a", 1]}, "$", "must be an object with one operator"),
        ("page == 'item'", "$", "must be an object with one operator"),
        ({"eq": ["a", float("nan")]}, "$.eq[1]", "must be a finite number"),
        ({"eq": ["a", "\ud800"]}, "$.eq[1]", "half of a surrogate pair"),
    ],
)
def test_faults_name_path_value_and_remedy(value, path, says):
    with pytest.raises(Invalid) as caught:
        parse_expression(value)
    assert caught.value.metadata["path"] == path
    assert says in caught.value.message


def test_a_text_gains_line_and_column():
    assert read_expression('{"eq": ["region", "eu"]}').matches({"region": "eu"})
    with pytest.raises(
        Invalid, match=r'^policy: line 2, column 3: \$\.and\[0\]\.eqq: unknown operator "eqq"'
    ):
        read_expression('{"and": [\n {"eqq": ["region", "eu"]}]}', what="policy")
    with pytest.raises(Invalid, match=r"^policy: line 1, column 8: expecting value"):
        read_expression('{"eq": }', what="policy")


def nested(depth):
    value = {"exists": "a"}
    for _ in range(depth - 1):
        value = {"not": value}
    return value


def test_limits_hold_at_their_bounds():
    assert parse_expression(nested(16)).matches({"a": 1}) is False
    with pytest.raises(Invalid, match="nested deeper than 16"):
        parse_expression(nested(17))
    with pytest.raises(Invalid, match="nested deeper than 16"):
        parse_expression(nested(100_000))
    parse_expression({"and": [{"exists": "a"}] * 255})
    with pytest.raises(Invalid, match="more than 256 operators"):
        parse_expression({"and": [{"exists": "a"}] * 256})
    parse_expression({"in": ["a", list(range(1000))]})
    with pytest.raises(Invalid, match="must have 1 to 1000 elements"):
        parse_expression({"in": ["a", list(range(1001))]})
    with pytest.raises(Invalid, match="more than 1000 literals"):
        parse_expression({"or": [{"in": ["a", list(range(600))]}, {"in": ["a", list(range(401))]}]})
    with pytest.raises(Invalid, match="longer than 65536 bytes"):
        parse_expression({"eq": ["a", "x" * 65536]})


def test_booleans_are_no_numbers_and_numbers_of_both_kinds_compare():
    assert not parse_expression({"eq": ["a", 1]}).matches({"a": True})
    assert not parse_expression({"eq": ["a", True]}).matches({"a": 1})
    assert not parse_expression({"ne": ["a", True]}).matches({"a": 0})
    assert not parse_expression({"in": ["a", [1]]}).matches({"a": True})
    assert not parse_expression({"in": ["a", [True]]}).matches({"a": 1})
    assert parse_expression({"eq": ["a", 1]}).matches({"a": 1.0})
    assert parse_expression({"in": ["a", [1.5, 2]]}).matches({"a": 2.0})
    assert not parse_expression({"ne": ["a", 1]}).matches({"a": "1"})
    assert not parse_expression({"ne": ["a", 1]}).matches({})


def test_in_looks_into_lists():
    expression = parse_expression({"in": ["genres", ["Drama", "War"]]})
    assert expression.matches({"genres": ["Comedy", "War"]})
    assert not expression.matches({"genres": ["Comedy"]})
    assert not expression.matches({"genres": [["War"], {"a": 1}]})

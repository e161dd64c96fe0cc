import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.task import jsontext
from libs.task.testing import attempt

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def paths(value, path="$"):
    yield path, value
    if isinstance(value, dict):
        for key, member in value.items():
            yield from paths(member, jsontext.child(path, key))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from paths(member, jsontext.child(path, index))


@given(json_values, st.sampled_from([None, 0, 1, 3]), st.booleans())
def test_every_path_is_located_where_its_value_stands(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    lines = text.split("\n")
    for path, member in paths(value):
        line, column = jsontext.locate(text, path)
        rest = "\n".join(lines[line - 1 :])[column - 1 :]
        assert json.JSONDecoder().raw_decode(rest)[0] == member


def test_a_key_is_located_apart_from_its_value():
    text = '{"a": 1,\n  "b" :\n {"c": [2, 3]}}'
    assert jsontext.locate(text, "$.b", key=True) == (2, 3)
    assert jsontext.locate(text, "$.b") == (3, 2)
    assert jsontext.locate(text, "$.b.c[1]") == (3, 12)


def test_a_path_that_is_not_there_has_no_place():
    for path in ("$.x", "$.a.b", "$.a[0]", "$[0]"):
        assert jsontext.locate('{"a": 1}', path) is None


@given(json_values)
def test_valid_json_reads_as_json_does(value):
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return
    read, error = attempt(jsontext.load, text, what="x")
    assert (read == value) if error is None else "too large" in error.message


@given(st.text() | st.binary())
def test_anything_else_is_refused_as_invalid_only(text):
    value, error = attempt(jsontext.load, text, what="thing")
    if error is not None:
        assert error.message.startswith("thing")
    else:
        assert value == json.loads(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1 2}', "line 1, column 9: "),
        ('{"a": 1,\n\n "b" 2}', "line 3, column 6: expecting ':' delimiter"),
        ('{"a": 1, "a": 2}', 'key "a" appears twice'),
        ("[NaN]", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("[1e999]", "1e999 is too large"),
        ("1" * 5000, "of 5000 digits is too large"),
        (r'["\ud800"]', "half of a surrogate pair"),
        (b'"\xff"', "not UTF-8 at byte 1"),
        ("[" * 65 + "]" * 65, "nested deeper than 64"),
        ("[" * 30000, "nested deeper than 64"),
        (" " * 65537, "longer than 65536 bytes"),
        ("é" * 40000, "longer than 65536 bytes"),
        ("", "line 1, column 1: expecting value"),
    ],
)
def test_what_is_refused_says_why(text, says):
    with pytest.raises(Invalid) as caught:
        jsontext.load(text, what="trigger")
    assert says in caught.value.message
    assert caught.value.message.startswith("trigger")


def test_a_fault_of_meaning_gains_its_place():
    text = '{"a":\n  [1, "two"]}'
    with pytest.raises(Invalid) as caught, jsontext.positions(text, what="thing"):
        raise jsontext.fault("$.a[1]", "must be a number")
    assert caught.value.message == "thing: line 2, column 7: $.a[1]: must be a number"
    assert caught.value.metadata == {"path": "$.a[1]", "line": "2", "column": "7"}


def test_a_huge_key_makes_no_huge_error():
    inner = {"é" * 50: 1}
    text, path = json.dumps({"x" * 60000: inner}), jsontext.child("$", "x" * 60000)
    with pytest.raises(Invalid) as caught, jsontext.positions(text, what="thing"):
        jsontext.check_object(inner, path, optional=("a",))
    assert caught.value.message.startswith("thing: line 1, column 60007: $.xxx")
    assert len(caught.value.message) < 600
    assert all(len(value) <= 200 for value in caught.value.metadata.values())


def test_other_errors_pass_through_unchanged():
    with pytest.raises(Invalid) as caught, jsontext.positions("{}", what="thing"):
        raise Invalid("something else", reason="OTHER")
    assert (caught.value.message, caught.value.reason) == ("something else", "OTHER")


def test_an_odd_key_survives_as_a_path():
    value = {'a "b" \n': {"": [1]}}
    path = jsontext.child(jsontext.child(jsontext.child("$", 'a "b" \n'), ""), 0)
    text = json.dumps(value)
    assert jsontext.locate(text, path) == (1, text.index("[1]") + 2)


def test_a_value_is_shown_cut():
    assert jsontext.show("x" * 200) == '"' + "x" * 78 + "…"
    assert jsontext.show({"a": object()}) == '{"a": "<object>"}'
    assert jsontext.show("\ud800") == '"?"'


def test_an_unknown_key_is_named_with_what_was_meant():
    with pytest.raises(
        Invalid, match=r"unknown key \"evnt\"; allowed: \"event\", \"page\"; did you mean 'event'\?"
    ):
        jsontext.check_object({"evnt": 1}, "$", required=("event",), optional=("page",))
    with pytest.raises(Invalid, match='key "event" is missing'):
        jsontext.check_object({}, "$", required=("event",))
    with pytest.raises(Invalid, match="must be an object"):
        jsontext.check_object([], "$", required=("event",))


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 0, 11])
def test_an_integer_in_range_is_nothing_else(value):
    with pytest.raises(Invalid, match="must be an integer from 1 to 10"):
        jsontext.check_int(value, "$", least=1, most=10)

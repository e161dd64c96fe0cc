import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.task.uploads import FIELD_TYPES, UploadField, UploadStream

STREAM = UploadStream(
    "profile",
    {f"a_{kind}": UploadField(f"a_{kind}", kind, 40) for kind in FIELD_TYPES},
)


def test_declared_fields_leave_as_compact_json():
    fields = {"a_string": "é", "a_number": 1.5, "a_bool": True, "a_number_map": {"c": 1, "b": 2}}
    expected = '{"a_bool":true,"a_number":1.5,"a_number_map":{"b":2,"c":1},"a_string":"é"}'
    assert STREAM.encode(fields) == expected.encode()
    assert STREAM.encode({"a_number_list": [1, 2.5]}) == b'{"a_number_list":[1,2.5]}'
    assert STREAM.encode({}) == b"{}"


@pytest.mark.parametrize(
    ("fields", "reason", "says"),
    [
        (
            {"rating": 5},
            "FIELD_UNDECLARED",
            "field 'rating' is not declared by the manifest; it declares: a_number",
        ),
        ({"a_numbr": 5}, "FIELD_UNDECLARED", "did you mean 'a_number'?"),
        ({"a_number": True}, "FIELD_TYPE", "must be a number"),
        ({"a_number": "1"}, "FIELD_TYPE", "must be a number"),
        ({"a_number": math.nan}, "FIELD_TYPE", "must be a number"),
        ({"a_number": math.inf}, "FIELD_TYPE", "must be a number"),
        ({"a_number": 10**5000}, "FIELD_TYPE", "must be a number"),
        ({"a_number": None}, "FIELD_TYPE", "must be a number"),
        ({"a_string": 1}, "FIELD_TYPE", "must be a string"),
        ({"a_string": "\ud800"}, "FIELD_TYPE", "surrogate"),
        ({"a_bool": 1}, "FIELD_TYPE", "must be a bool"),
        ({"a_number_list": [1, "x"]}, "FIELD_TYPE", "must be a number_list"),
        ({"a_number_list": [[1]]}, "FIELD_TYPE", "must be a number_list"),
        ({"a_number_map": {"a": {"b": 1}}}, "FIELD_TYPE", "must be a number_map"),
        ({"a_number_map": {1: 1}}, "FIELD_TYPE", "must be a number_map"),
        ({"a_string": "x" * 39}, "FIELD_TOO_LARGE", "has 41 bytes as JSON, more than the declared 40"),
        ({"a_number": 1, "secret": 2}, "FIELD_UNDECLARED", "'secret'"),
        ({7: 2}, "FIELD_UNDECLARED", "'7'"),
    ],
)
def test_a_frame_is_refused_whole(fields, reason, says):
    with pytest.raises(Invalid) as caught:
        STREAM.encode(fields)
    assert caught.value.reason == reason
    assert says in caught.value.message
    assert caught.value.message.startswith("stream 'profile': field ")


def test_a_refusal_never_repeats_the_value():
    with pytest.raises(Invalid) as caught:
        STREAM.encode({"a_number": "my secret"})
    assert "my secret" not in caught.value.message + str(dict(caught.value.metadata))


numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.dictionaries(
        st.sampled_from([*STREAM.fields, "other"]),
        numbers
        | st.booleans()
        | st.text(max_size=5)
        | st.none()
        | st.lists(numbers | st.text(max_size=2), max_size=3),
    )
)
def test_whatever_leaves_is_declared_typed_and_bounded(fields):
    try:
        payload = STREAM.encode(fields)
    except Invalid:
        return
    assert json.loads(payload) == fields
    assert set(fields) <= set(STREAM.fields)
    assert all(len(json.dumps(value, separators=(",", ":"))) <= 40 * 6 for value in fields.values())
    assert not isinstance(fields.get("a_number", 0), bool | str | list)

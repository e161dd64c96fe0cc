"""What a script may return."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.device_agent.vm.worker.values import BadValue, check_object

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), json_values))
def test_plain_json_passes_unless_larger_than_its_bound(value: dict[str, object]) -> None:
    assert check_object(value, "result", 1 << 20) is value
    size = len(json.dumps(value, separators=(",", ":")))
    # The count is from below: what fits as JSON always passes.
    assert check_object(value, "result", size) is value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (3, "result is of type int; it must be a dict"),
        ({"a": [{"b": {1}}]}, r"result\['a'\]\[0\]\['b'\] is of type set"),
        ({"a": {None: 1}}, r"result\['a'\] has the key None; keys must be text"),
        ({"a": float("-inf")}, r"result\['a'\] is -inf"),
        ({"a\ud800": 1}, "a key of result holds a lone surrogate"),
        ({"k" * 200: {1}}, r"result\['k+\.\.\.\] is of type set"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(value: object, says: str) -> None:
    with pytest.raises(BadValue, match=says):
        check_object(value, "result", 1 << 20)


def test_a_value_too_large_is_refused_without_walking_all_of_it() -> None:
    class Endless(dict[str, object]):
        def items(self):  # type: ignore[no-untyped-def]
            n = 0
            while True:
                yield str(n), "x" * 100
                n += 1

    with pytest.raises(BadValue, match="larger than 1000 bytes"):
        check_object(Endless(), "result", 1000)


def test_depth_is_bounded() -> None:
    value: dict[str, object] = {}
    for _ in range(31):
        value = {"a": value}
    check_object(value, "result", 1 << 20)
    with pytest.raises(BadValue, match="nested deeper than 32"):
        check_object({"a": value}, "result", 1 << 20)

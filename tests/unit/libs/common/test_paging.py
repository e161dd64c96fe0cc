import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.common.paging import decode_token, encode_token, page_size

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=10), json_values, max_size=5))
def test_a_position_comes_back_as_it_went(position: dict[str, object]) -> None:
    assert decode_token(encode_token(position)) == position


@given(st.text(max_size=100))
def test_any_text_is_a_token_or_invalid(text: str) -> None:
    try:
        position = decode_token(text)
    except Invalid:
        return
    assert decode_token(encode_token(position)) == position


@given(st.data())
def test_a_damaged_token_is_refused(data: st.DataObject) -> None:
    token = encode_token({"after": "tenants/a/tasks/b", "id": 17})
    at = data.draw(st.integers(0, len(token) - 2))
    letter = data.draw(st.sampled_from("ABCxyz019-_").filter(lambda c: c != token[at]))
    with pytest.raises(Invalid, match="page_token"):
        decode_token(token[:at] + letter + token[at + 1 :])


@pytest.mark.parametrize("token", ["x", "====", "a" * 5000, "AAAAAA", "é", "eyJhIjoxfQ"])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(Invalid, match="leave it empty for the first page"):
        decode_token(token)


def test_page_sizes_are_bounded() -> None:
    assert page_size(0) == 50
    assert page_size(7) == 7
    assert page_size(10**9) == 1000
    assert page_size(0, default=10, maximum=20) == 10
    with pytest.raises(Invalid, match="page_size: -1 is negative; use 1 to 1000, or 0 for 50"):
        page_size(-1)

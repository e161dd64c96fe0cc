from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Forbidden, Invalid
from services.gateway.domain.keys import (
    GRANTABLE,
    allows,
    check_grant,
    check_scopes,
    expiry,
    format_key,
    hash_secret,
    new_secret,
    split_key,
)
from services.gateway.testing import make_key

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@given(
    st.binary(min_size=32, max_size=32),
    st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=16, max_size=16),
)
def test_a_key_splits_into_what_it_was_made_of(random_bytes, key_id):
    secret = new_secret(random_bytes)
    assert split_key(format_key(key_id, secret)) == (key_id, secret)


@given(st.text())
def test_anything_else_is_no_key(text):
    parts = split_key(text)
    assert parts is None or format_key(*parts) == text


def test_a_secret_needs_all_its_randomness():
    with pytest.raises(ValueError, match="32"):
        new_secret(b"short")


def test_only_the_hash_is_kept():
    key, text = make_key(number=7)
    secret = text.rpartition("_")[2]
    assert key.matches(secret)
    assert not key.matches(secret[:-1] + "0")
    assert key.secret_hash == hash_secret(secret)
    assert secret not in repr(key)


@pytest.mark.parametrize(
    ("own", "wanted", "may"),
    [
        ({"*"}, {"*", "tenants:write"}, True),
        ({"tasks:*"}, {"tasks:read", "tasks:*"}, True),
        ({"tasks:*"}, {"*"}, False),
        ({"tasks:read", "tasks:write"}, {"tasks:*"}, False),
        ({"tasks:read"}, {"tasks:read", "blobs:read"}, False),
    ],
)
def test_nobody_grants_more_than_they_have(own, wanted, may):
    if may:
        check_grant(frozenset(own), frozenset(wanted))
    else:
        with pytest.raises(Forbidden):
            check_grant(frozenset(own), frozenset(wanted))


@given(st.sets(st.sampled_from(sorted(GRANTABLE))), st.sampled_from(sorted(GRANTABLE)))
def test_a_grant_never_widens_what_is_allowed(own, scope):
    if allows(frozenset(own), scope):
        granted = frozenset({scope})
        assert all(allows(frozenset(own), other) for other in GRANTABLE if allows(granted, other))


def test_scopes_are_checked():
    assert check_scopes(["tasks:read", "tasks:read", "*"]) == {"tasks:read", "*"}
    for wrong in ([], ["read"], ["tasks"], ["trust:read"], [""], ["tasks:read"] * 65):
        with pytest.raises(Invalid, match="scopes"):
            check_scopes(wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("task:read", "did you mean 'tasks:read'?"),
        ("tasks:reed", "of tasks there are tasks:*, tasks:read, tasks:write"),
        ("trust:read", "of trust there are trust:*, trust:write"),
        ("foo:bar", "there are audit:read, blobs:read, blobs:write, devices:read"),
        ("foo:bar", "<area>:* for all of an area"),
    ],
)
def test_something_that_is_no_scope_is_answered_with_what_there_is(wrong: str, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_scopes([wrong])
    assert said in caught.value.message


def test_expiry():
    assert expiry(NOW, None) is None
    assert expiry(NOW, timedelta(hours=1)) == NOW + timedelta(hours=1)
    for wrong in (timedelta(0), timedelta(seconds=-1), timedelta(days=4000)):
        with pytest.raises(Invalid, match="ttl"):
            expiry(NOW, wrong)

from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from libs.common.access import SCOPES
from libs.common.errors import Invalid
from services.gateway.convert import to_key, to_profile_digest, to_tenant, to_timedelta, to_timestamp
from services.gateway.domain.keys import Key, Tenant

NOW = datetime(2026, 1, 1, tzinfo=UTC)


TIMES = st.integers(0, 2**48).map(lambda us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us))


@given(TIMES)
def test_times_travel_to_the_microsecond(time):
    assert to_timestamp(time).ToDatetime(UTC) == time


@given(st.text(max_size=50), TIMES, st.none() | TIMES, st.sets(st.sampled_from(sorted(SCOPES)), min_size=1))
def test_a_key_travels_without_its_secret(display_name, create_time, expire_time, scopes):
    key = Key("k" * 16, "acme", display_name, frozenset(scopes), b"\7" * 32, create_time, expire_time, None)
    message = to_key(key)
    assert (message.name, message.display_name, list(message.scopes)) == (
        key.name,
        display_name,
        sorted(scopes),
    )
    assert message.create_time.ToDatetime(UTC) == create_time
    assert message.HasField("expire_time") == (expire_time is not None)
    assert not message.revoked
    assert b"\7" * 8 not in message.SerializeToString()


def test_a_tenant_travels():
    message = to_tenant(Tenant("acme", "Acme", NOW))
    assert (message.name, message.display_name, message.create_time.ToDatetime(UTC)) == (
        "tenants/acme",
        "Acme",
        NOW,
    )


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1))
def test_any_duration_is_one_or_invalid(seconds, nanos):
    duration = Duration(seconds=seconds, nanos=nanos)
    try:
        found = to_timedelta(duration, "ttl")
    except Invalid as error:
        found = error
    assert isinstance(found, timedelta) or found.message.startswith("ttl: ")


def test_a_digest_has_16_bytes():
    assert to_profile_digest(bytes(16)) == bytes(16)
    for wrong in (b"", bytes(15), bytes(17)):
        with pytest.raises(Invalid, match="profile_digest"):
            to_profile_digest(wrong)

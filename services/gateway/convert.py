"""Between the gateway's own messages and its domain."""

from datetime import datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.gateway.v1 import gateway_pb2
from libs.common.errors import Invalid
from services.gateway.domain.keys import Key, Tenant


def to_timestamp(time: datetime) -> Timestamp:
    """Return a time as it travels."""
    message = Timestamp()
    message.FromDatetime(time)
    return message


def to_timedelta(message: Duration, field: str) -> timedelta:
    """Return a duration; raise Invalid naming `field` when it is out of range."""
    try:
        return message.ToTimedelta()
    except (ValueError, OverflowError):
        raise Invalid(
            f"{field}: {message.seconds} s and {message.nanos} ns is no duration",
            reason="BAD_DURATION",
            metadata={"field": field},
        ) from None


def to_tenant(tenant: Tenant) -> gateway_pb2.Tenant:
    """Return a tenant as it travels."""
    return gateway_pb2.Tenant(
        name=tenant.name, display_name=tenant.display_name, create_time=to_timestamp(tenant.create_time)
    )


def to_key(key: Key) -> gateway_pb2.Key:
    """Return a key as it travels: nothing of its secret."""
    return gateway_pb2.Key(
        name=key.name,
        display_name=key.display_name,
        scopes=sorted(key.scopes),
        create_time=to_timestamp(key.create_time),
        expire_time=None if key.expire_time is None else to_timestamp(key.expire_time),
        revoked=key.revoked,
    )


def to_profile_digest(digest: bytes) -> bytes:
    """Return a profile digest; raise Invalid when it hasn't 16 bytes."""
    if len(digest) != 16:
        raise Invalid(
            f"profile_digest: has {len(digest)} bytes; the digest of a profile has 16",
            reason="BAD_PROFILE",
            metadata={"field": "profile_digest"},
        )
    return digest

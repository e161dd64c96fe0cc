"""API keys and tenants: what they are, how a key reads, and what it may do.

A key is "isk_<key id>_<secret>". The secret has 256 random bits, so one SHA-256 is all the hashing it needs:
there is nothing to guess offline, and checking stays cheap.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from libs.common.access import SCOPES
from libs.common.errors import Forbidden, Invalid
from libs.common.names import KeyName, TenantName, shown
from libs.common.suggest import did_you_mean

PREFIX = "isk"
SECRET_BYTES = 32
KEY_ID_LENGTH = 16
_KEY = re.compile(r"isk_([a-z0-9]{16})_([0-9a-f]{64})", re.ASCII)
_MOST_SCOPES = 64
_LONGEST_DISPLAY_NAME_BYTES = 256
_LONGEST_TTL = timedelta(days=3653)

_AREAS = frozenset(scope.partition(":")[0] for scope in SCOPES)
GRANTABLE = SCOPES | {f"{area}:*" for area in _AREAS} | {"*"}


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant. `request_id` is the creation's, so that a repeated request finds its own answer."""

    tenant_id: str
    display_name: str
    create_time: datetime
    request_id: str = ""

    @property
    def name(self) -> str:
        """Its resource name, "tenants/{t}"."""
        return str(TenantName(self.tenant_id))


@dataclass(frozen=True, slots=True)
class Key:
    """An API key as it is stored: of its secret only `secret_hash` (SHA-256, 32 bytes) is kept."""

    key_id: str
    tenant: str
    display_name: str
    scopes: frozenset[str]
    secret_hash: bytes
    create_time: datetime
    expire_time: datetime | None = None
    revoke_time: datetime | None = None

    @property
    def name(self) -> str:
        """Its resource name, "tenants/{t}/keys/{k}"."""
        return str(KeyName(self.tenant, self.key_id))

    @property
    def revoked(self) -> bool:
        """Whether it was revoked."""
        return self.revoke_time is not None

    def matches(self, secret: str) -> bool:
        """Compare with a secret, in constant time."""
        return hmac.compare_digest(self.secret_hash, hash_secret(secret))


def hash_secret(secret: str) -> bytes:
    """Return the 32 bytes that are stored of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def new_secret(random_bytes: bytes) -> str:
    """Return a secret made of 32 random bytes."""
    if len(random_bytes) != SECRET_BYTES:
        raise ValueError(f"a secret takes {SECRET_BYTES} random bytes")
    return random_bytes.hex()


def format_key(key_id: str, secret: str) -> str:
    """Return the whole key, to be shown once."""
    return f"{PREFIX}_{key_id}_{secret}"


def split_key(text: str) -> tuple[str, str] | None:
    """Return the key id and the secret in "isk_<key id>_<secret>", or None when it has another form."""
    found = _KEY.fullmatch(text)
    return None if found is None else (found[1], found[2])


def check_scopes(scopes: Iterable[str]) -> frozenset[str]:
    """Return the scopes as a set.

    Raises:
        Invalid: when there is none, too many, or one that doesn't exist.
    """
    wanted = list(scopes)
    if not wanted or len(wanted) > _MOST_SCOPES:
        raise Invalid(
            f"scopes: {len(wanted)} given; give 1 to {_MOST_SCOPES}, such as 'releases:write' or 'tasks:*'",
            reason="BAD_SCOPES",
            metadata={"field": "scopes"},
        )
    for scope in wanted:
        if scope not in GRANTABLE:
            raise Invalid(
                f"scopes: {shown(scope)} is not a scope{_instead(scope)}",
                reason="BAD_SCOPES",
                metadata={"field": "scopes"},
            )
    return frozenset(wanted)


def _instead(scope: str) -> str:
    """Return what to write in place of something that isn't a scope: the nearest one, or what there is."""
    area = scope.partition(":")[0]
    if area in _AREAS:
        return f"; of {area} there are {_listed(one for one in GRANTABLE if one.startswith(f'{area}:'))}"
    near = did_you_mean(scope, GRANTABLE)
    return near or f"; there are {_listed(SCOPES)}, <area>:* for all of an area, and * for everything"


def _listed(scopes: Iterable[str]) -> str:
    return ", ".join(sorted(scopes))


def allows(scopes: frozenset[str], scope: str) -> bool:
    """Say whether someone with `scopes` may do what needs `scope` (which may be a wildcard itself)."""
    return "*" in scopes or scope in scopes or f"{scope.partition(':')[0]}:*" in scopes


def check_grant(own: frozenset[str], wanted: frozenset[str]) -> None:
    """Check that someone with scopes `own` may hand out `wanted`.

    Raises:
        Forbidden: naming the scopes that go beyond.
    """
    beyond = sorted(scope for scope in wanted if not allows(own, scope))
    if beyond:
        raise Forbidden(
            f"scopes: a key can't grant more than it has; yours lacks {', '.join(beyond)}",
            reason="SCOPES_EXCEEDED",
        )


def check_display_name(text: str) -> str:
    """Return a display name; raise Invalid when it has more than 256 bytes or control characters."""
    if len(text.encode()) > _LONGEST_DISPLAY_NAME_BYTES or not (text.isprintable() or not text):
        raise Invalid(
            f"display_name: {shown(text)} must be printable and at most {_LONGEST_DISPLAY_NAME_BYTES} bytes",
            reason="BAD_DISPLAY_NAME",
            metadata={"field": "display_name"},
        )
    return text


def check_request_id(text: str) -> str:
    """Return a request id; raise Invalid when it isn't a UUID. Empty means none."""
    try:
        return text and str(UUID(text))
    except ValueError:
        raise Invalid(
            f"request_id: {shown(text)} must be a UUID, such as {UUID(int=0x1234567890ABCDEF)}, or empty",
            reason="BAD_REQUEST_ID",
            metadata={"field": "request_id"},
        ) from None


def expiry(now: datetime, ttl: timedelta | None) -> datetime | None:
    """Return when a key with this time to live ends; None means never.

    Raises:
        Invalid: when the time isn't positive or is longer than ten years.
    """
    if ttl is None:
        return None
    if not timedelta(0) < ttl <= _LONGEST_TTL:
        raise Invalid(
            f"ttl: {ttl.total_seconds():g} s; give 1 s to {_LONGEST_TTL.days} days, or none for ever",
            reason="BAD_TTL",
            metadata={"field": "ttl"},
        )
    return now + ttl

"""Roots: which keys count for what, versioned, and replaced only by their own consent.

Rotation with overlap: root n+1 names the old and the new key, so that what either signed holds; a later
root drops the old one. A root that changes its own keys must be signed by enough of the old and enough of
the new.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.trust.v1 import trust_pb2
from libs.common.errors import Invalid
from libs.common.names import check_id
from libs.trust.errors import Untrusted
from libs.trust.keys import SigningKey, key_id, public_from_raw, raw_public
from libs.trust.signing import RoleKeys, sign_message, verify

ROOT_TYPE = "isthmus.trust.v1.Root"
ROLES = ("root", "author", "deployer", "engine")
OPTIONAL_ROLES = frozenset({"engine"})
MAX_KEYS = 64

NO_KEYS = RoleKeys({}, 0)


@dataclass(frozen=True, slots=True)
class Root:
    """A checked root: every role's keys are there and its threshold can be met."""

    tenant: str
    version: int
    create_time: datetime
    expire_time: datetime
    root: RoleKeys
    author: RoleKeys
    deployer: RoleKeys
    engine: RoleKeys = NO_KEYS

    def __post_init__(self) -> None:
        check_id(self.tenant, "tenant")
        if not 1 <= self.version < 2**63:
            raise Invalid(f"root version must be at least 1, not {self.version}", reason="BAD_ROOT")
        if self.expire_time <= self.create_time:
            raise Invalid("a root must expire after it is made", reason="BAD_ROOT")
        for name in ROLES:
            if not self.role(name).keys and name not in OPTIONAL_ROLES:
                raise Invalid(f"root role {name!r} has no keys", reason="BAD_ROOT")

    def role(self, name: str) -> RoleKeys:
        """Return the keys of `root`, `author`, `deployer` or `engine`; raise Invalid for another name."""
        if name not in ROLES:
            raise Invalid(f"{name!r} is no role; allowed: {', '.join(ROLES)}", reason="BAD_ROLE")
        role: RoleKeys = getattr(self, name)
        return role

    def expired(self, reference_time: datetime) -> bool:
        """Tell whether nothing new may be accepted under this root at `reference_time`."""
        return reference_time >= self.expire_time

    def successor(
        self, create_time: datetime, lifetime: timedelta, roles: Mapping[str, RoleKeys] | None = None
    ) -> Self:
        """Return version n+1 with the given roles replaced; raise Invalid as the constructor does."""
        kept = {name: self.role(name) for name in ROLES}
        for name in roles or {}:
            self.role(name)
        return type(self)(
            tenant=self.tenant,
            version=self.version + 1,
            create_time=create_time,
            expire_time=create_time + lifetime,
            **(kept | dict(roles or {})),
        )

    def to_proto(self) -> trust_pb2.Root:
        """Return the message that `root_from_payload` reads back once it is serialised."""
        publics = {i: public for name in ROLES for i, public in self.role(name).keys.items()}
        message = trust_pb2.Root(
            tenant=self.tenant,
            version=self.version,
            create_time=_timestamp(self.create_time),
            expire_time=_timestamp(self.expire_time),
            keys=[
                trust_pb2.Key(key_id=i, public_key=raw_public(public))
                for i, public in sorted(publics.items())
            ],
        )
        for name in ROLES:
            role = self.role(name)
            if role.keys:
                wire: trust_pb2.Role = getattr(message, name)
                wire.CopyFrom(trust_pb2.Role(key_ids=sorted(role.keys), threshold=role.threshold))
        return message

    def sign(self, keys: Iterable[SigningKey]) -> trust_pb2.Signed:
        """Sign this root with `keys`: for a successor, enough of the old root's and enough of its own."""
        return sign_message(self.to_proto(), keys)


def overlap(role: RoleKeys, *, add: Iterable[SigningKey] = (), retire: Iterable[str] = ()) -> RoleKeys:
    """Return a role with keys added and key ids retired, threshold kept.

    Raises Invalid for an id the role hasn't got, or when too few keys would remain.
    """
    gone = set(retire)
    unknown = gone - set(role.keys)
    if unknown:
        raise Invalid(f"the role has no key {', '.join(sorted(unknown))}", reason="BAD_ROLE")
    keys = {i: public for i, public in role.keys.items() if i not in gone}
    keys |= {key.key_id: key.public for key in add}
    if not keys:
        raise Invalid("a role can't lose its last key", reason="BAD_ROLE")
    return RoleKeys(keys, role.threshold)


def root_from_payload(payload: bytes) -> Root:
    """Parse and check a root's serialised bytes, whose signatures the caller has still to verify.

    Raises Untrusted, reason MALFORMED, for bytes that are no root, key ids that don't match their keys,
    roles that name a missing key or one key twice, thresholds that can't be met, or times that make no
    sense.
    """
    message = trust_pb2.Root()
    try:
        message.ParseFromString(payload)
        if len(message.keys) > MAX_KEYS:
            raise Invalid(f"it has {len(message.keys)} keys, more than {MAX_KEYS}")
        publics = {}
        for key in message.keys:
            if key.key_id != key_id(key.public_key) or key.key_id in publics:
                raise Invalid(f"key id {key.key_id[:64]!r} doesn't match its key, or comes twice")
            publics[key.key_id] = public_from_raw(key.public_key)
        roles = {}
        for name in ROLES:
            wire: trust_pb2.Role = getattr(message, name)
            if len(set(wire.key_ids)) != len(wire.key_ids) or not set(wire.key_ids) <= set(publics):
                raise Invalid(f"role {name!r} names a key twice, or one that the root lacks")
            roles[name] = RoleKeys({i: publics[i] for i in wire.key_ids}, wire.threshold)
        return Root(
            tenant=message.tenant,
            version=message.version,
            create_time=message.create_time.ToDatetime(UTC),
            expire_time=message.expire_time.ToDatetime(UTC),
            **roles,
        )
    except DecodeError:
        raise Untrusted("root: the bytes are no Root message", reason="MALFORMED") from None
    except (Invalid, ValueError, OverflowError) as error:
        raise Untrusted(f"root: {error}", reason="MALFORMED") from None


def verify_first_root(signed: trust_pb2.Signed) -> Root:
    """Return the root of a signed one that comes over a channel trusted otherwise, as at enrolment.

    Raises Untrusted when it is malformed or doesn't meet its own threshold.
    """
    root = root_from_payload(signed.payload)
    verify(signed, ROOT_TYPE, root.root)
    return root


def verify_next_root(current: Root, signed: trust_pb2.Signed) -> Root:
    """Return the successor of `current` that `signed` holds; its expiry isn't looked at.

    Raises Untrusted: SIGNATURE_THRESHOLD unless it meets `current`'s root threshold and its own,
    ROOT_VERSION unless its version is exactly one more, WRONG_TENANT, TYPE_MISMATCH or MALFORMED.
    """
    root = root_from_payload(verify(signed, ROOT_TYPE, current.root))
    verify(signed, ROOT_TYPE, root.root)
    if root.version != current.version + 1:
        text = f"root version {root.version} can't follow version {current.version}"
        raise Untrusted(text, reason="ROOT_VERSION")
    if root.tenant != current.tenant:
        raise Untrusted(f"root is tenant {root.tenant!r}'s, not {current.tenant!r}'s", reason="WRONG_TENANT")
    return root


def _timestamp(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp

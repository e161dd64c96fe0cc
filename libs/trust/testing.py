"""Builders for tests: a tenant's keys (known to everybody), root, signed manifests and device sets."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.deployer.v1 import manifest_pb2, pull_pb2
from isthmus.trust.v1 import trust_pb2
from libs.common.names import DeviceName
from libs.trust.digests import sha256_of
from libs.trust.keys import SigningKey
from libs.trust.root import Root
from libs.trust.signing import RoleKeys, sign_message
from libs.trust.state import TrustedState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def fake_key(name: str) -> SigningKey:
    """Return the key that everybody knows by this name."""
    return SigningKey(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest()))


def timestamp(moment: datetime) -> Timestamp:
    """Return a moment as protobuf has it."""
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


@dataclass
class Authority:
    """One tenant's signers: one key a role unless told otherwise."""

    tenant: str = "acme"
    now: datetime = NOW
    root_keys: list[SigningKey] = field(default_factory=lambda: [fake_key("root")])
    author: SigningKey = field(default_factory=lambda: fake_key("author"))
    deployer: SigningKey = field(default_factory=lambda: fake_key("deployer"))

    @property
    def root(self) -> Root:
        """The first root; valid for a year."""
        return Root(
            tenant=self.tenant,
            version=1,
            create_time=self.now,
            expire_time=self.now + 365 * DAY,
            root=RoleKeys.of((key.public for key in self.root_keys), len(self.root_keys)),
            author=RoleKeys.of([self.author.public]),
            deployer=RoleKeys.of([self.deployer.public]),
        )

    @property
    def signed_root(self) -> trust_pb2.Signed:
        """The first root, signed by all its keys."""
        return self.root.sign(self.root_keys)

    def state(
        self, device: str = "d1", *, now: datetime | None = None, last: bytes | None = None
    ) -> TrustedState:
        """Return the state of a device that has pinned the first root."""
        return TrustedState(self.signed_root, DeviceName(self.tenant, device), now or self.now, last)

    def manifest(self, manifest: manifest_pb2.TaskManifest) -> trust_pb2.Signed:
        """Return a manifest, signed by the author."""
        return sign_message(manifest, [self.author])

    def device_set(
        self,
        manifests: Iterable[trust_pb2.Signed] = (),
        *,
        device: str = "d1",
        counter: int = 1,
        sign_time: datetime | None = None,
        lifetime: timedelta = DAY,
        release: str = "r1",
    ) -> trust_pb2.Signed:
        """Return a device's set of these signed manifests, signed by the deployer."""
        signed_at = sign_time or self.now
        message = pull_pb2.DeviceSet(
            tenant=self.tenant,
            device=device,
            counter=counter,
            sign_time=timestamp(signed_at),
            expire_time=timestamp(signed_at + lifetime),
        )
        for signed in manifests:
            manifest = manifest_pb2.TaskManifest.FromString(signed.payload)
            message.entries.add(
                task=manifest.task,
                version=manifest.version,
                manifest_digest=sha256_of(signed.payload),
                release=f"tenants/{self.tenant}/releases/{release}",
            )
        return sign_message(message, [self.deployer])

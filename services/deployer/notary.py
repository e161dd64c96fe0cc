"""Signing and verifying by `libs.trust`: the only code here that sees keys."""

import base64
import functools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import DecodeError

from isthmus.deployer.v1 import manifest_pb2, pull_pb2
from isthmus.trust.v1 import trust_pb2
from libs.common.errors import Precondition
from libs.common.names import DeviceName
from libs.common.rand import Randomness
from libs.task.manifest import CheckedManifest, check_manifest
from libs.trust.digests import sha256_of
from libs.trust.errors import Untrusted
from libs.trust.keys import SigningKey, raw_public
from libs.trust.root import Root, root_from_payload, verify_first_root, verify_next_root
from libs.trust.signing import MAX_PAYLOAD_BYTES, MAX_SIGNATURES, good_signatures, sign_message, verify
from libs.trust.state import MANIFEST_TYPE
from services.deployer.domain.model import DeviceSet
from services.deployer.domain.trust import Key, OpenedRoot, Signers

CREDENTIAL_TYPE = "isthmus-credential+jwt"
ISSUER = "deployer"
MAX_ROOT_BYTES = 64 * 1024
"""Twice of what 64 keys in every role and 64 signatures take: every device reads each root."""
MAX_MANIFEST_BYTES = MAX_PAYLOAD_BYTES + MAX_SIGNATURES * 256
"""Payload and signatures, so that a plan with one of them, and a set, and a root fits into a message."""


class KeyNotary:
    """See `services.deployer.domain.trust.Notary`."""

    def __init__(
        self,
        signing_keys: tuple[SigningKey, ...],
        identity_key: Ed25519PrivateKey,
        randomness: Randomness,
        *,
        credential_ttl: timedelta,
    ) -> None:
        """Hold the keys; `signing_keys` are for device sets, the newest first."""
        self._signing_keys = signing_keys
        self._identity_key = identity_key
        self._randomness = randomness
        self._credential_ttl = credential_ttl

    def own_keys(self) -> tuple[Key, ...]:
        """See `Notary`."""
        return tuple(Key(key.key_id, raw_public(key.public)) for key in self._signing_keys)

    def open_root(self, signed: bytes, previous: bytes | None) -> OpenedRoot:
        """See `Notary`."""
        message = _bounded(signed, "root", MAX_ROOT_BYTES)
        root = verify_first_root(message) if previous is None else verify_next_root(_root(previous), message)
        return OpenedRoot(
            root.tenant,
            root.version,
            root.expire_time,
            frozenset(root.deployer.keys),
            root.deployer.threshold,
        )

    def open_manifest(self, signed: bytes, root: bytes) -> tuple[CheckedManifest, str]:
        """See `Notary`."""
        message = _bounded(signed, "manifest", MAX_MANIFEST_BYTES)
        payload = verify(message, MANIFEST_TYPE, _root(root).author)
        return check_manifest(_manifest(payload)), sha256_of(payload)

    def signers(self, signed: bytes, root: bytes) -> Signers:
        """See `Notary`."""
        message, author = _signed(signed), _root(root).author
        return Signers(
            tuple(sorted({signature.key_id for signature in message.signatures})),
            frozenset(good_signatures(message, MANIFEST_TYPE, author)),
            frozenset(author.keys),
            author.threshold,
        )

    def add_signatures(self, stored: bytes, signed: bytes, root: bytes) -> bytes:
        """See `Notary`."""
        message, author = _signed(stored), _root(root).author
        there = good_signatures(message, MANIFEST_TYPE, author)
        added = good_signatures(_signed(signed), MANIFEST_TYPE, author)
        if added.keys() <= there.keys():
            return stored
        held = there | added
        others = [each for each in message.signatures if each.key_id not in held]
        # Where there is no room for all, it is those that no device asks for any more that go, oldest first.
        kept = [*others, *held.values()][-MAX_SIGNATURES:]
        merged = trust_pb2.Signed(type=message.type, payload=message.payload, signatures=kept)
        return merged.SerializeToString(deterministic=True)

    def read_manifest(self, signed: bytes) -> CheckedManifest:
        """See `Notary`."""
        return check_manifest(_manifest(_signed(signed).payload))

    def sign_set(self, device_set: DeviceSet) -> bytes:
        """See `Notary`."""
        message = pull_pb2.DeviceSet(
            tenant=device_set.device.tenant,
            device=device_set.device.device,
            counter=device_set.counter,
            entries=[
                pull_pb2.DeviceSet.Entry(
                    task=entry.task,
                    version=entry.version,
                    manifest_digest=entry.manifest_digest,
                    release=entry.release,
                )
                for entry in device_set.entries
            ],
        )
        message.sign_time.FromDatetime(device_set.sign_time)
        message.expire_time.FromDatetime(device_set.expire_time)
        return sign_message(message, self._signing_keys).SerializeToString()

    def credential(self, device: DeviceName, public_key: bytes, now: datetime) -> tuple[str, datetime]:
        """See `Notary`."""
        expire_time = datetime.fromtimestamp(int((now + self._credential_ttl).timestamp()), UTC)
        token = jwt.encode(
            {
                "iss": ISSUER,
                "sub": str(device),
                "tenant": device.tenant,
                "cnf": {"x": base64.urlsafe_b64encode(public_key).rstrip(b"=").decode()},
                "iat": int(now.timestamp()),
                "exp": int(expire_time.timestamp()),
                "jti": self._randomness.id(),
            },
            self._identity_key,
            algorithm="EdDSA",
            headers={"kid": ISSUER, "typ": CREDENTIAL_TYPE},
        )
        return token, expire_time


def load_signing_keys(current: Path, following: Path | None) -> tuple[SigningKey, ...]:
    """Return the deployer's keys, the newest first; files that are missing are made.

    Raises:
        Precondition: when a file can be read by others, or both hold the same key.
        Invalid: when one holds no key.
    """
    keys = [SigningKey.load_or_create(current)]
    if following is not None:
        keys.insert(0, SigningKey.load_or_create(following))
        if keys[0].key_id == keys[1].key_id:
            raise Precondition(
                f"{following}: holds the same key as {current}; remove it for a new one to be made"
            )
    return tuple(keys)


def _bounded(data: bytes, what: str, most_bytes: int) -> trust_pb2.Signed:
    if len(data) > most_bytes:
        raise Untrusted(
            f"{what}: has {len(data)} bytes with its signatures; at most {most_bytes} are taken",
            reason="MALFORMED",
        )
    return _signed(data)


def _signed(data: bytes) -> trust_pb2.Signed:
    return trust_pb2.Signed.FromString(data)


@functools.lru_cache(maxsize=256)
def _root(signed: bytes) -> Root:
    """Return an installed root, which was verified when it was installed."""
    return root_from_payload(_signed(signed).payload)


def _manifest(payload: bytes) -> manifest_pb2.TaskManifest:
    try:
        return manifest_pb2.TaskManifest.FromString(payload)
    except DecodeError:
        raise Untrusted("manifest: the signed bytes are no TaskManifest", reason="MALFORMED") from None

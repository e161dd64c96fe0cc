"""Signatures over transported bytes, separated by message type, with thresholds of distinct keys.

What is signed is `isthmus-signature-v1` 0x00 type 0x00 payload, so that a signature over one type of
message can't be passed off as one over another. The payload is parsed only after its signatures hold, and
never serialised anew.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from google.protobuf.message import Message

from isthmus.trust.v1 import trust_pb2
from libs.common.errors import Invalid
from libs.trust.errors import Untrusted
from libs.trust.keys import SigningKey, key_id

DOMAIN = b"isthmus-signature-v1"
MAX_PAYLOAD_BYTES = 1024 * 1024
MAX_SIGNATURES = 64
SIGNATURE_BYTES = 64


@dataclass(frozen=True, slots=True)
class RoleKeys:
    """The keys that may sign for a role, by key id, and how many must. An empty role trusts nothing."""

    keys: Mapping[str, Ed25519PublicKey]
    threshold: int

    def __post_init__(self) -> None:
        if self.keys and not 1 <= self.threshold <= len(self.keys):
            text = f"a role's threshold must be from 1 to its {len(self.keys)} keys, not {self.threshold}"
            raise Invalid(text, reason="BAD_THRESHOLD")

    @classmethod
    def of(cls, publics: Iterable[Ed25519PublicKey], threshold: int = 1) -> "RoleKeys":
        """Build a role; raise Invalid for a threshold below 1 or above the number of distinct keys."""
        return cls({key_id(public): public for public in publics}, threshold)


def signed_bytes(message_type: str, payload: bytes) -> bytes:
    """Return the bytes that a signature of `payload` as a `message_type` covers."""
    return b"\0".join((DOMAIN, message_type.encode(), payload))


def sign(message_type: str, payload: bytes, keys: Iterable[SigningKey]) -> trust_pb2.Signed:
    """Sign serialised bytes with each of `keys`, once each.

    Raises Invalid when the payload exceeds 1 MiB or the type is empty or contains a NUL.
    """
    if not message_type or "\0" in message_type:
        raise Invalid(f"message type {message_type[:80]!r} can't be signed", reason="BAD_TYPE")
    if len(payload) > MAX_PAYLOAD_BYTES:
        text = f"{message_type} has {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} can be signed"
        raise Invalid(text, reason="TOO_LARGE")
    covered = signed_bytes(message_type, payload)
    by_id = {key.key_id: key for key in keys}
    signatures = [
        trust_pb2.Signature(key_id=signer, value=key.private.sign(covered)) for signer, key in by_id.items()
    ]
    return trust_pb2.Signed(type=message_type, payload=payload, signatures=signatures)


def sign_message(message: Message, keys: Iterable[SigningKey]) -> trust_pb2.Signed:
    """Serialise a message and sign the bytes under its full name; raise Invalid as `sign` does."""
    return sign(message.DESCRIPTOR.full_name, message.SerializeToString(deterministic=True), keys)


def add_signatures(signed: trust_pb2.Signed, keys: Iterable[SigningKey]) -> trust_pb2.Signed:
    """Return `signed` with the signatures of `keys` besides, for signers who sit apart.

    The payload stays as it is. A signature that a key has made before is replaced.
    """
    added = sign(signed.type, signed.payload, keys)
    ids = {signature.key_id for signature in added.signatures}
    kept = [signature for signature in signed.signatures if signature.key_id not in ids]
    return trust_pb2.Signed(type=signed.type, payload=signed.payload, signatures=[*kept, *added.signatures])


def good_signatures(
    signed: trust_pb2.Signed, message_type: str, role: RoleKeys
) -> dict[str, trust_pb2.Signature]:
    """Return the signatures by keys of `role` that hold for the payload as a `message_type`, by key id."""
    covered = signed_bytes(message_type, signed.payload)
    good: dict[str, trust_pb2.Signature] = {}
    for signature in signed.signatures:
        public = role.keys.get(signature.key_id)
        if public is None or signature.key_id in good or len(signature.value) != SIGNATURE_BYTES:
            continue
        try:
            public.verify(signature.value, covered)
        except InvalidSignature:
            continue
        good[signature.key_id] = signature
    return good


def verify(signed: trust_pb2.Signed, expected_type: str, role: RoleKeys) -> bytes:
    """Return the payload if enough distinct keys of `role` signed it as an `expected_type`.

    Signatures by unknown keys and repeated ones are ignored; so is one that doesn't hold, if enough others
    do.

    Raises Untrusted: TYPE_MISMATCH, MALFORMED (too many signatures, too long), or SIGNATURE_THRESHOLD.
    """
    if signed.type != expected_type:
        text = f"signed bytes are a {signed.type[:200]!r}, expected {expected_type!r}"
        raise Untrusted(text, reason="TYPE_MISMATCH")
    if len(signed.signatures) > MAX_SIGNATURES or len(signed.payload) > MAX_PAYLOAD_BYTES:
        text = f"{expected_type} has more than {MAX_SIGNATURES} signatures or {MAX_PAYLOAD_BYTES} bytes"
        raise Untrusted(text, reason="MALFORMED")
    good = good_signatures(signed, expected_type, role)
    if not role.keys or len(good) < role.threshold:
        text = f"{expected_type}: {len(good)} of the {max(role.threshold, 1)} signatures needed hold"
        raise Untrusted(text, reason="SIGNATURE_THRESHOLD")
    return signed.payload

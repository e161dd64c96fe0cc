"""Ed25519 keys (RFC 8032) by their ids, for signers and verifiers. Key files are `libs.common.keys`'."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from libs.common.errors import Invalid
from libs.common.keys import load_key, load_or_create_key

PUBLIC_BYTES = 32
KEY_ID_BYTES = 16


def raw_public(key: Ed25519PublicKey) -> bytes:
    """Return the 32 raw bytes of a public key."""
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def public_from_raw(raw: bytes, what: str = "key") -> Ed25519PublicKey:
    """Return the public key of 32 raw bytes; raise Invalid for any other length."""
    if len(raw) != PUBLIC_BYTES:
        raise Invalid(f"{what} must have {PUBLIC_BYTES} bytes, has {len(raw)}", reason="BAD_KEY")
    return Ed25519PublicKey.from_public_bytes(raw)


def key_id(public: Ed25519PublicKey | bytes) -> str:
    """Return the id of a public key: the first 16 bytes of SHA-256 over its raw bytes, as 32 hex digits."""
    raw = public if isinstance(public, bytes) else raw_public(public)
    return hashlib.sha256(raw).digest()[:KEY_ID_BYTES].hex()


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key and its id. The repr doesn't show the private part."""

    private: Ed25519PrivateKey = field(repr=False, compare=False)
    key_id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_id", key_id(self.private.public_key()))

    @classmethod
    def generate(cls) -> Self:
        """Make a new key from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a key file; raise as `libs.common.keys.load_key` does."""
        return cls(load_key(path))

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        """Read a key file, made (0600) when it isn't there; raise as `load_or_create_key` does."""
        return cls(load_or_create_key(path))

    @property
    def public(self) -> Ed25519PublicKey:
        """The public half."""
        return self.private.public_key()

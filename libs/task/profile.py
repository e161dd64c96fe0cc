"""The profile: which versions a device has, as the 16 bytes that ride on its every request.

Each version as `name@version` and a newline, lines sorted as bytes; the digest is the first 16 bytes of their
SHA-256. In the metadata `x-isthmus-profile` it is base64url without padding: 22 characters.
"""

import base64
import binascii
import hashlib
import itertools
from collections.abc import Iterable

from libs.common.errors import Invalid
from libs.common.names import check_id, check_version

HEADER = "x-isthmus-profile"
UPDATE_TRAILER = "x-isthmus-update"
DIGEST_BYTES = 16
_HEADER_LENGTH = 22


def check_entry(entry: str) -> tuple[str, str]:
    """Split `name@version` into its two checked parts; raise Invalid when it has another form."""
    name, at, version = entry.partition("@")
    if not at:
        raise Invalid(
            f"profile entry {entry[:200]!r} must be name@version, such as genres@1.2", reason="MALFORMED"
        )
    check_id(name, "task")
    check_version(version, "version")
    return name, version


def profile_digest(versions: Iterable[str]) -> bytes:
    """Return the 16-byte digest of a list of `name@version`, whatever its order.

    Raises Invalid for an entry of another form, or one named twice.
    """
    lines = []
    for entry in versions:
        check_entry(entry)
        lines.append(f"{entry}\n".encode())
    lines.sort()
    for one, other in itertools.pairwise(lines):
        if one == other:
            raise Invalid(f"profile names {one.decode().strip()} twice", reason="MALFORMED")
    return hashlib.sha256(b"".join(lines)).digest()[:DIGEST_BYTES]


def profile_header(digest: bytes) -> str:
    """Return a profile digest as the value of `x-isthmus-profile`."""
    if len(digest) != DIGEST_BYTES:
        raise Invalid(f"a profile digest has {DIGEST_BYTES} bytes, not {len(digest)}", reason="MALFORMED")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def parse_profile_header(value: str | bytes) -> bytes:
    """Return the digest of an `x-isthmus-profile` value; raise Invalid unless it is exactly its one text."""
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
    if len(text) == _HEADER_LENGTH:
        try:
            digest = base64.b64decode(f"{text}==", altchars=b"-_", validate=True)
            if profile_header(digest) == text:
                return digest
        except (ValueError, binascii.Error):
            pass
    raise Invalid(
        f"{HEADER} must be {DIGEST_BYTES} bytes as base64url without padding, not {text[:64]!r}",
        reason="MALFORMED",
    )

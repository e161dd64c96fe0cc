"""Digests: `sha256:` and 64 lower-case hex digits, for content-addressed files and manifests."""

import hashlib
import re
from pathlib import Path
from typing import BinaryIO

from libs.common.errors import Invalid
from libs.trust.errors import Untrusted

PREFIX = "sha256:"

_CHUNK = 1024 * 1024

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def sha256_of(source: bytes | bytearray | memoryview | Path | BinaryIO) -> str:
    """Return the digest of bytes, of the file at a path, or of an open binary file from where it stands.

    Raises OSError when a file can't be read.
    """
    if isinstance(source, Path):
        with source.open("rb") as file:
            return sha256_of(file)
    if isinstance(source, bytes | bytearray | memoryview):
        return PREFIX + hashlib.sha256(source).hexdigest()
    hasher = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        hasher.update(chunk)
    return PREFIX + hasher.hexdigest()


def parse_digest(text: str, field: str = "digest") -> bytes:
    """Return the 32 raw bytes of a digest; raise Invalid naming `field` when it has another form."""
    match = _DIGEST.fullmatch(text)
    if match is None:
        raise Invalid(
            f"{field}: {text[:80]!r} is not a digest; write 'sha256:' and 64 lower-case hex digits",
            reason="BAD_DIGEST",
            metadata={"field": field},
        )
    return bytes.fromhex(match[1])


def check_content(source: bytes | Path | BinaryIO, digest: str, what: str) -> None:
    """Raise Untrusted, reason DIGEST_MISMATCH, unless `source` has `digest`; `what` names it."""
    found = sha256_of(source)
    if found != digest:
        raise _mismatch(what, f"digest is {found}, expected {digest}")


class DigestingWriter:
    """Passes bytes on to a binary file and measures them on the way.

    Args:
        file: where the bytes go; the caller opens, syncs and closes it.
        max_bytes: beyond this many bytes `write` raises and passes nothing on.
    """

    def __init__(self, file: BinaryIO, max_bytes: int | None = None) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._max_bytes = max_bytes
        self.size_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data`.

        Raises Untrusted, reason DIGEST_MISMATCH, when it would exceed `max_bytes`; OSError from the file.
        """
        if self._max_bytes is not None and self.size_bytes + len(data) > self._max_bytes:
            raise _mismatch("content", f"is longer than the {self._max_bytes} bytes expected")
        view = memoryview(data)
        while view:
            # A raw, unbuffered file may take less than it is given.
            written = self._file.write(view)
            self._hash.update(view[:written])
            self.size_bytes += written
            view = view[written:]

    @property
    def digest(self) -> str:
        """The digest of what was written so far."""
        return PREFIX + self._hash.hexdigest()

    def check(self, digest: str, size_bytes: int, what: str = "content") -> None:
        """Raise Untrusted, reason DIGEST_MISMATCH, unless what was written has this digest and size."""
        if self.size_bytes != size_bytes:
            raise _mismatch(what, f"has {self.size_bytes} bytes, expected {size_bytes}")
        if self.digest != digest:
            raise _mismatch(what, f"digest is {self.digest}, expected {digest}")


def _mismatch(what: str, text: str) -> Untrusted:
    return Untrusted(f"{what}: {text}", reason="DIGEST_MISMATCH")

"""Ed25519 key files: `<dir>/<name>.key` (PEM PKCS8, 0600) and `<trust dir>/<name>.pub` (PEM)."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from libs.common.errors import Invalid, Precondition
from libs.common.fsio import disk_errors, fsync_dir, write_atomic
from libs.common.names import check_id

PUBLIC_SUFFIX = ".pub"


def load_or_create_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in `path`; make it, with its folder, when it isn't there.

    Of several processes that start at once, one makes the key and all get the same.

    Raises:
        Precondition: when others than the owner can read the file.
        Invalid: when it holds no Ed25519 key.
        Exhausted: when the disk is full.
    """
    with contextlib.suppress(FileNotFoundError):
        return load_key(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with disk_errors(path):
        fd, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(pem)
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename, a link never replaces the key that another process made meanwhile.
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        finally:
            Path(draft).unlink()
    fsync_dir(path.parent)
    return load_key(path)


def load_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in `path`.

    Raises:
        FileNotFoundError: when it isn't there.
        Precondition: when others than the owner can read the file.
        Invalid: when it holds no Ed25519 key.
    """
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise Precondition(
                f"{path}: others may read this private key; chmod 600 it, or replace it if they did",
                reason="KEY_FILE_EXPOSED",
            )
        pem = file.read(65536)
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise Invalid(f"{path}: no Ed25519 private key in PEM PKCS8 in there", reason="BAD_KEY_FILE")
    return key


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Return the public key in `path`.

    Raises:
        FileNotFoundError: when it isn't there.
        Invalid: when it holds no Ed25519 key.
    """
    with path.open("rb") as file:
        pem = file.read(65536)
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise Invalid(f"{path}: no Ed25519 public key in PEM in there", reason="BAD_KEY_FILE")
    return key


def publish_key(trust_dir: Path, name: str, key: Ed25519PublicKey) -> Path:
    """Write the public key to `<trust_dir>/<name>.pub`, so that others believe `name`; return the path.

    Raises:
        Invalid: when `name` is no id.
        Exhausted: when the disk is full.
    """
    path = trust_dir / (check_id(name, "name") + PUBLIC_SUFFIX)
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    trust_dir.mkdir(parents=True, exist_ok=True)
    write_atomic(path, pem)
    return path


def load_trust_dir(path: Path) -> Mapping[str, Ed25519PublicKey]:
    """Return the public keys in folder `path` by the name of whoever signs with them.

    It stays live: a key that is published or replaced later is seen at the next lookup, so services can start
    in any order and keys can rotate without a restart.

    Raises:
        Invalid: when a `.pub` file in there holds no Ed25519 key.
    """
    trust = TrustDir(path)
    for name in trust:
        trust[name]
    return trust


class TrustDir(Mapping[str, Ed25519PublicKey]):
    """A folder of `<name>.pub` files as a mapping; each lookup costs one stat."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[str, tuple[tuple[int, int, int], Ed25519PublicKey]] = {}

    def __getitem__(self, name: str) -> Ed25519PublicKey:
        try:
            path = self._path / (check_id(name, "name") + PUBLIC_SUFFIX)
            stat = path.stat()
            state = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            read = self._read.get(name)
            if read is None or read[0] != state:
                read = self._read[name] = (state, load_public_key(path))
        except (OSError, Invalid) as error:
            self._read.pop(name, None)
            if isinstance(error, Invalid) and error.reason == "BAD_KEY_FILE":
                raise
            raise KeyError(name) from None
        return read[1]

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        try:
            self[name]
        except (KeyError, Invalid):
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        names = (path.name.removesuffix(PUBLIC_SUFFIX) for path in self._path.glob("*" + PUBLIC_SUFFIX))
        return iter(sorted(names))

    def __len__(self) -> int:
        return sum(1 for _ in self)

import multiprocessing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from libs.common.errors import Invalid, Precondition
from libs.common.keys import load_key, load_or_create_key, load_trust_dir, publish_key


def _raw(path: str) -> bytes:
    return load_or_create_key(Path(path)).private_bytes_raw()


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "deployer.key"
    key = load_or_create_key(path)
    assert load_or_create_key(path).private_bytes_raw() == key.private_bytes_raw()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert list(path.parent.iterdir()) == [path]


def test_processes_that_start_together_get_the_same_key(tmp_path: Path) -> None:
    path = str(tmp_path / "a.key")
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert len(set(pool.map(_raw, [path] * 6))) == 1


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    load_or_create_key(path)
    path.chmod(0o640)
    with pytest.raises(Precondition, match="chmod 600"):
        load_or_create_key(path)


def test_a_file_without_such_a_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for content in (b"", b"junk", other):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(Invalid, match="no Ed25519 private key"):
            load_key(path)


def test_trust_follows_the_folder(tmp_path: Path) -> None:
    trust = load_trust_dir(tmp_path / "trust")
    assert (list(trust), len(trust), "gateway" in trust) == ([], 0, False)
    first, second = Ed25519PrivateKey.generate().public_key(), Ed25519PrivateKey.generate().public_key()
    path = publish_key(tmp_path / "trust", "gateway", first)
    assert trust["gateway"] == first
    assert list(trust) == ["gateway"]
    publish_key(tmp_path / "trust", "gateway", second)
    assert trust["gateway"] == second
    path.unlink()
    assert trust.get("gateway") is None


def test_a_name_never_leaves_the_folder(tmp_path: Path) -> None:
    publish_key(tmp_path, "gateway", Ed25519PrivateKey.generate().public_key())
    (tmp_path / "in").mkdir()
    trust = load_trust_dir(tmp_path / "in")
    for name in ("../gateway", "/etc/passwd", "", "a\0b", "x" * 300):
        assert trust.get(name) is None
        assert name not in trust
    with pytest.raises(Invalid, match="not an id"):
        publish_key(tmp_path, "../evil", Ed25519PrivateKey.generate().public_key())


def test_a_file_that_is_no_key_is_told_when_the_folder_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "gateway.pub").write_text("junk")
    with pytest.raises(Invalid, match="no Ed25519 public key"):
        load_trust_dir(tmp_path)

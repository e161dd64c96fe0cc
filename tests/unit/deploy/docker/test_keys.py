"""Keys and certificates of containers: complete, kept, each its own."""

import os
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from deploy.docker.keys import LAST_UID, SERVICE_UID, Holder, main, make
from libs.common.errors import Invalid
from libs.common.keys import load_key, load_public_key

HOLDERS = [Holder("deployer"), Holder("gateway"), Holder("postgres", 999, service=False)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_each_gets_what_it_needs_and_nothing_of_the_others(tmp_path: Path) -> None:
    make(tmp_path, HOLDERS, own=False)
    common = {"ca.pem", "tls.pem", "tls.key"}
    ours = {*common, "identity.key", "trust/deployer.pub", "trust/gateway.pub"}
    assert set(contents(tmp_path / "deployer")) == ours
    assert set(contents(tmp_path / "postgres")) == {*common, "password"}
    key = load_key(tmp_path / "deployer" / "identity.key")
    seen = load_public_key(tmp_path / "gateway" / "trust" / "deployer.pub")
    assert seen == key.public_key()
    assert (tmp_path / "deployer" / "tls.key").read_bytes() != (tmp_path / "gateway" / "tls.key").read_bytes()
    for path in tmp_path.rglob("*"):
        if path.name.endswith(".key") or path.name == "password":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_certificate_is_for_its_name_and_from_the_authority(tmp_path: Path) -> None:
    make(tmp_path, HOLDERS, own=False)
    folder = tmp_path / "deployer"
    certificate = x509.load_pem_x509_certificate((folder / "tls.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["deployer", "localhost"]
    assert certificate.subject.rfc4514_string() == "CN=deployer"
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    certificate.verify_directly_issued_by(authority)
    ssl.create_default_context(cafile=folder / "ca.pem").load_cert_chain(
        folder / "tls.pem", folder / "tls.key"
    )


def test_a_second_call_changes_nothing_and_a_new_name_is_believed_by_all(tmp_path: Path) -> None:
    make(tmp_path, HOLDERS, own=False)
    before = contents(tmp_path)
    make(tmp_path, HOLDERS, own=False)
    assert contents(tmp_path) == before
    make(tmp_path, [*HOLDERS, Holder("engine")], own=False)
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before
    assert "deployer/trust/engine.pub" in after


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_folder_belongs_to_its_user(tmp_path: Path) -> None:
    make(tmp_path, HOLDERS)
    for path in (tmp_path / "deployer", *(tmp_path / "deployer").rglob("*")):
        assert path.stat().st_uid == SERVICE_UID, path
    assert (tmp_path / "postgres" / "tls.key").stat().st_uid == 999
    assert (tmp_path / "authority" / "ca.key").stat().st_uid == 0
    assert stat.S_IMODE((tmp_path / "deployer").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Deployer", "not an id"),
        ("../x", "not an id"),
        ("authority", "take another"),
        ("a:b", "'b' is no user id"),
        ("a:-1", "no user id"),
        (f"a:{LAST_UID + 1}", "no user id"),
        ("a:1:key", "is not NAME, NAME:UID or NAME:UID:cert"),
        ("a:1:cert:2", "is not NAME, NAME:UID or NAME:UID:cert"),
    ],
)
def test_a_holder_that_makes_no_sense_is_explained(
    text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--out", str(tmp_path / "out"), text]) == 1
    assert fault in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="'a' comes twice"):
        make(tmp_path / "out", [Holder("a"), Holder("a", 5)], own=False)
    assert not (tmp_path / "out").exists()


@given(st.text(max_size=30))
def test_any_text_is_a_holder_or_invalid(text: str) -> None:
    try:
        holder = Holder.parse(text)
    except Invalid:
        return
    assert text.startswith(holder.name)
    assert 0 <= holder.uid <= LAST_UID

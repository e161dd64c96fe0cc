import datetime
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from deploy.local import certificates
from deploy.local.certificates import Authority


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def verify(certificate: Path, authority: Path, name: str) -> None:
    builder = PolicyBuilder().store(Store([load(authority)]))
    builder.build_server_verifier(x509.DNSName(name)).verify(load(certificate), [])


@pytest.mark.parametrize("name", ["gateway", "localhost"])
def test_what_is_issued_verifies_for_its_name_and_this_machine(tmp_path: Path, name: str) -> None:
    authority = Authority(tmp_path)
    _, certificate = authority.issue("gateway")
    verify(certificate, authority.certificate_file, name)


def test_it_does_not_verify_for_another_name_or_authority(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "two")
    _, certificate = authority.issue("gateway")
    with pytest.raises(VerificationError):
        verify(certificate, authority.certificate_file, "example.org")
    with pytest.raises(VerificationError):
        verify(certificate, other.certificate_file, "gateway")


def test_keys_are_for_this_user_alone_and_certificates_for_all(tmp_path: Path) -> None:
    key, certificate = Authority(tmp_path).issue("gateway")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (key, tmp_path / "ca.key", certificate)]
    assert modes == [0o600, 0o600, 0o644]


def test_what_is_good_is_kept(tmp_path: Path) -> None:
    key, certificate = Authority(tmp_path).issue("gateway")
    before = [path.read_bytes() for path in (key, certificate, tmp_path / "ca.pem")]
    Authority(tmp_path).issue("gateway")
    assert [path.read_bytes() for path in (key, certificate, tmp_path / "ca.pem")] == before


def test_what_runs_out_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "CERTIFICATE_DAYS", certificates.RENEW_DAYS - 1)
        _, certificate = Authority(tmp_path).issue("gateway")
        old = load(certificate).serial_number
    Authority(tmp_path).issue("gateway")
    fresh = load(certificate)
    assert fresh.serial_number != old
    left = fresh.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert left > datetime.timedelta(days=certificates.RENEW_DAYS)


def test_a_new_authority_replaces_what_the_old_one_issued(tmp_path: Path) -> None:
    Authority(tmp_path).issue("gateway")
    (tmp_path / "ca.key").unlink()
    authority = Authority(tmp_path)
    _, certificate = authority.issue("gateway")
    verify(certificate, authority.certificate_file, "gateway")


@pytest.mark.parametrize("damaged", ["ca.pem", "ca.key", "gateway.pem", "gateway.key"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, damaged: str) -> None:
    Authority(tmp_path).issue("gateway")
    (tmp_path / damaged).write_text("-----BEGIN NOTHING-----\n")
    authority = Authority(tmp_path)
    _, certificate = authority.issue("gateway")
    verify(certificate, authority.certificate_file, "gateway")

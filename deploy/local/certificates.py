"""The development authority: certificates for servers on this machine, made where missing or running out."""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from libs.common.fsio import write_atomic

AUTHORITY_DAYS = 5 * 365
CERTIFICATE_DAYS = 90
RENEW_DAYS = 30
"""A certificate with less left than this is made anew."""


def _write(path: Path, data: bytes, mode: int = 0o600) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, data, mode)


def _private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _load(
    key_file: Path, certificate_file: Path
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate] | None:
    """Return a key and its certificate from their files, or None when they can't be used (any longer)."""
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    except (OSError, ValueError):
        return None
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or left < datetime.timedelta(days=RENEW_DAYS):
        return None
    return (key, certificate) if key.public_key() == certificate.public_key() else None


class Authority:
    """An authority whose key lies in a folder of this user's: for development, never for production.

    Args:
        folder: holds ``ca.pem`` (to give to clients), ``ca.key`` and what is issued.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.certificate_file = folder / "ca.pem"
        key_file = folder / "ca.key"
        self._key, self._certificate = _load(key_file, self.certificate_file) or self._create(key_file)

    def _create(self, key_file: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        key = ec.generate_private_key(ec.SECP256R1())
        # Two authorities of one name would be mistaken for each other by whoever is given both.
        name = _name(f"Isthmus development authority {os.urandom(4).hex()}")
        certificate = (
            self._builder(name, name, key.public_key(), AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=False,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=True,
                    crl_sign=True,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        _write(key_file, _private_bytes(key))
        _write(self.certificate_file, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        return key, certificate

    @staticmethod
    def _builder(
        subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            # Clocks of containers and hosts differ a little.
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=days))
        )

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return key file and certificate file of ``name``, valid for it and for this machine's loopback.

        What was issued before is kept while it is good for another thirty days and from this authority.
        """
        key_file, certificate_file = self._folder / f"{name}.key", self._folder / f"{name}.pem"
        known = _load(key_file, certificate_file)
        if known is not None and known[1].issuer == self._certificate.subject:
            return key_file, certificate_file
        key = ec.generate_private_key(ec.SECP256R1())
        loopback = [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
        certificate = (
            self._builder(_name(name), self._certificate.subject, key.public_key(), CERTIFICATE_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(name), x509.DNSName("localhost"), *loopback]),
                critical=False,
            )
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        _write(key_file, _private_bytes(key))
        _write(certificate_file, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        return key_file, certificate_file

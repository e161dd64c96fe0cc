from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from google.protobuf.wrappers_pb2 import StringValue

from libs.common.client import client_credentials, create_channel
from libs.common.config import ServiceConfig
from libs.common.echo import EchoService, EchoStub
from libs.common.testing import AlwaysUser, running_server


class Authority:
    """A certificate authority in a folder; `issue` writes <name>.crt and <name>.key."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        basic = x509.BasicConstraints(ca=True, path_length=0)
        certificate = self._builder(self._name, self._key).add_extension(basic, critical=True)
        self.file = folder / f"{name}.crt"
        self.file.write_bytes(
            certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def issue(self, name: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._builder(subject, key).add_extension(names, critical=False)
        files = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        files[0].write_bytes(
            certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )


async def echoed(target: str, credentials: grpc.ChannelCredentials | None) -> str:
    async with create_channel(target, credentials=credentials, default_deadline_s=20) as channel:
        return str((await EchoStub(channel).echo(StringValue(value="x"))).value)


async def test_only_who_has_a_certificate_of_our_authority_gets_in(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    server_cert, server_key = ours.issue("server")
    config = ServiceConfig(tls_cert_file=server_cert, tls_key_file=server_key, tls_client_ca_file=ours.file)
    async with running_server(EchoService(), config=config, verifier=AlwaysUser()) as server:
        cert, key = ours.issue("gateway")
        assert await echoed(server.target, client_credentials(ours.file, cert, key)) == "x"
        stranger_cert, stranger_key = theirs.issue("stranger")
        for credentials in (
            None,
            client_credentials(ours.file),
            client_credentials(ours.file, stranger_cert, stranger_key),
            client_credentials(theirs.file, cert, key),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await echoed(server.target, credentials)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

"""TLS that doesn't come about is told apart from a gateway that isn't there."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.local.certificates import Authority
from libs.cli.main import main


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """A gateway that serves and knows of nothing else."""

    answer = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    def Check(self, request: object, context: object) -> health_pb2.HealthCheckResponse:  # noqa: N802
        return self.answer

    def List(self, request: object, context: object) -> health_pb2.HealthListResponse:  # noqa: N802
        return health_pb2.HealthListResponse(statuses={"": self.answer, "gateway": self.answer})


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def serve(authority: Authority) -> Iterator[Callable[[bool], str]]:
    """Return what starts a gateway of which only the health is there, with TLS or without."""
    servers: list[grpc.Server] = []

    def start(tls: bool) -> str:
        server = grpc.server(ThreadPoolExecutor(2))
        health_pb2_grpc.add_HealthServicer_to_server(Health(), server)
        if tls:
            key, certificate = authority.issue("gateway")
            credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
            port = server.add_secure_port("127.0.0.1:0", credentials)
        else:
            port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None)


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ISTHMUS_API_KEY", "isk_a_b")


def test_with_the_right_authority_it_is_just_a_gateway(
    serve: Callable[[bool], str], authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--gateway", serve(True), "--ca-file", str(authority.certificate_file), "status"]) == 0
    assert "SERVING" in capsys.readouterr().out


def test_without_an_authority_a_tls_gateway_says_what_to_give(
    serve: Callable[[bool], str], capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = serve(True)
    assert main(["--gateway", gateway, "--timeout", "20", "status"]) == 5
    assert f"the gateway at {gateway} speaks TLS; give --ca-file" in capsys.readouterr().err


def test_another_authority_is_told_from_no_gateway(
    serve: Callable[[bool], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = Authority(tmp_path / "theirs")
    theirs.issue("gateway")
    flags = ["--ca-file", str(theirs.certificate_file), "--timeout", "20"]
    assert main(["--gateway", serve(True), *flags, "status"]) == 5
    assert "isn't trusted" in capsys.readouterr().err


def test_a_gateway_without_tls_says_so(
    serve: Callable[[bool], str], authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    authority.issue("gateway")
    flags = ["--ca-file", str(authority.certificate_file), "--timeout", "20"]
    assert main(["--gateway", serve(False), *flags, "status"]) == 5
    assert "doesn't speak TLS" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nxx\n"])
def test_an_authority_file_without_certificates_is_named(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ca.pem").write_bytes(content)
    assert main(["--ca-file", "ca.pem", "status"]) == 2
    assert "--ca-file ca.pem: holds no certificate" in capsys.readouterr().err

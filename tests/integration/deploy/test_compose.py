"""docker-compose's commands and settings, as processes: mutual TLS, PostgreSQL, etcd, calls by the door."""

import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.docker import probe
from deploy.local import topology
from libs.common.etcd.binary import find_etcd
from libs.common.sql.testing import find_postgres
from tests.integration.deploy.containers_as_processes import Machine, running
from tests.integration.system.world import run_isthmus

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    programs = find_postgres()
    if programs is None or not (programs / "psql").exists():
        pytest.skip("PostgreSQL isn't installed")
    if not find_etcd().with_name("etcdctl").exists():
        pytest.skip("etcdctl isn't installed")
    home = Path(tempfile.mkdtemp(prefix="ist-", dir="/tmp"))
    try:
        with running(home, programs) as machine:
            yield machine
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def isthmus(machine: Machine) -> list[str]:
    """The flags of a command of the operator, whose key the container `admin-key` makes."""
    command = machine.command("admin-key")
    done = subprocess.run(
        command,
        env=machine.environment("admin-key"),
        cwd=machine.home,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    (machine.home / "admin.key").write_text(done.stdout)
    flags = ["--gateway", f"127.0.0.1:{machine.port('7400')}", "--json"]
    authority = machine.path("gateway", "/run/isthmus/ca.pem")
    return [*flags, "--ca-file", authority, "--api-key-file", str(machine.home / "admin.key")]


def test_every_service_is_seen_through_the_door(machine: Machine, isthmus: list[str]) -> None:
    (status,) = run_isthmus(*isthmus, "status")
    behind = dict(machine.containers["gateway"].settings().targets())
    assert {*behind, "gateway"} <= set(status)
    assert {each["state"] for each in status.values()} == {"SERVING"}, status


def test_a_job_goes_from_the_gateway_over_scheduler_etcd_runner_and_deployer(isthmus: list[str]) -> None:
    submitted = run_isthmus(
        *isthmus, "job", "submit", "--id", "one", "--watch", "--", "python", "-c", "print(1)"
    )
    assert submitted
    (job,) = run_isthmus(*isthmus, "job", "get", "one")
    assert job["status"]["state"] == "STATE_SUCCEEDED", job


def test_what_the_databases_hold(isthmus: list[str]) -> None:
    (keys,) = run_isthmus(*isthmus, "key", "list")
    assert keys
    for command in (["task", "list"], ["tune", "list"], ["endpoint", "list"]):
        run_isthmus(*isthmus, *command)


def refused(port: int, context: ssl.SSLContext) -> bool:
    """Whether a server ends a connection that shows no certificate; TLS 1.3 says so at the first read."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=30) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as wrapped,
        ):
            wrapped.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            return not wrapped.recv(1)
    except (ssl.SSLError, ConnectionError):
        return True


def test_nobody_without_a_certificate_gets_in(machine: Machine) -> None:
    authority = machine.path("gateway", "/run/isthmus/ca.pem")
    ports = [port for name, each in machine.containers.items() if each.is_ours for port in ports_of(name)]
    open_to_all = {"7400", "7480", "8400"}
    """The door's; its metrics port has a certificate and asks for none."""
    assert open_to_all <= set(ports)
    stranger = ssl.create_default_context(cafile=authority)
    stranger.set_alpn_protocols(["h2"])
    for port in {*ports, "7379", str(topology.ETCD)} - open_to_all:
        assert refused(machine.port(port), stranger), port
    known = ssl.create_default_context(cafile=authority)
    known.load_cert_chain(
        machine.path("prometheus", "/run/isthmus/tls.pem"), machine.path("prometheus", "/run/isthmus/tls.key")
    )
    for port in (port for port in ports if port.startswith("8")):
        assert not refused(machine.port(port), known), port


def ports_of(name: str) -> list[str]:
    environment = Machine(Path("/nowhere"), Path("/nowhere")).containers[name].environment
    return [value for key, value in environment.items() if key.endswith("_PORT")]


def test_a_probe_says_what_is_wrong(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    environment = machine.environment("deployer")
    assert probe.main(["deployer"], environment) == 0
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone = {**environment, "ISTHMUS_DEPLOYER_PORT": str(nobody.getsockname()[1])}
        assert probe.main(["deployer"], gone) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err
    assert probe.main(["deployer", "isthmus.no.such.Service"], environment) == 1
    assert "NOT_FOUND" in capsys.readouterr().err
    assert probe.main(["tuner"], environment) == 2
    assert "ISTHMUS_TUNER_METRICS_PORT isn't set here" in capsys.readouterr().err
    assert probe.main([], environment) == 2

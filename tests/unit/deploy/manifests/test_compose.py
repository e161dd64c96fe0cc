"""docker-compose: valid, and what it says agrees with the services and with the local stack."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.docker.keys import SERVICE_UID, Holder, make
from deploy.local import topology
from deploy.local.layout import Layout, Options
from tests.unit.deploy.manifests.containers import COMPOSE, Container, compose, document

CONTAINERS = compose()
OURS = {name: each for name, each in CONTAINERS.items() if each.is_ours}
STACK = {process.name: process for process in topology.services(Layout(Path("/home")), Options(), {})}
DOCUMENT: dict[str, Any] = document("docker-compose.yml")
KEYS = CONTAINERS["keys"]
HOLDERS = [Holder.parse(text) for text in KEYS.command[4:]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the container `keys` fills."""
    folder = tmp_path_factory.mktemp("keys")
    make(folder, HOLDERS, own=False)
    return folder


def secrets_of(container: Container, made: Path) -> Path:
    """Return what a container finds in /run/isthmus."""
    volume = container.mounts["/run/isthmus"]
    (path,) = (path for path, name in KEYS.mounts.items() if name == volume)
    return made / path.removeprefix("/keys/")


@pytest.mark.parametrize(
    "files", [("docker-compose.yml",), ("docker-compose.yml", "docker-compose.grafana.yml")]
)
def test_it_is_what_the_specification_describes(files: tuple[str, ...]) -> None:
    compose_spec = pytest.importorskip("compose_spec")
    merged: dict[str, Any] = {}
    for name in files:
        for part, members in document(name).items():
            if isinstance(members, dict):
                for key, value in members.items():
                    known = merged.setdefault(part, {}).get(key)
                    merged[part][key] = known | value if isinstance(known, dict) else value
            else:
                merged[part] = members
    parsed = compose_spec.PyCompose.from_yaml(yaml.safe_dump(merged))
    parsed.validate()
    parsed.to_spec()
    assert set(parsed.services) == set(CONTAINERS)


def test_a_misspelt_member_would_be_seen() -> None:
    compose_spec = pytest.importorskip("compose_spec")
    text = yaml.safe_dump(DOCUMENT).replace("read_only:", "readonly:")
    with pytest.raises(ValueError, match="readonly"):
        compose_spec.PyCompose.from_yaml(text)


def test_it_runs_what_the_local_stack_runs() -> None:
    assert set(OURS) == set(STACK)
    for name, container in OURS.items():
        command = ("python", *STACK[name].command[1:])
        assert container.command == command, name


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_service_takes_its_environment(name: str) -> None:
    container = OURS[name]
    prefix = f"ISTHMUS_{container.prefix.upper().replace('-', '_')}_"
    assert [each for each in container.environment if not each.startswith(prefix)] == []
    container.settings()


@pytest.mark.parametrize("name", sorted(OURS))
def test_ports_are_those_of_the_local_stack(name: str) -> None:
    settings = OURS[name].settings()
    found = {getattr(settings, each, -1) for each in ("port", "http_port", "metrics_port")} - {-1}
    assert found == {endpoint.port for endpoint in STACK[name].endpoints}


@pytest.mark.parametrize("name", sorted(OURS))
def test_nothing_listens_without_certificates(name: str) -> None:
    settings = OURS[name].settings()
    if name == "runner":
        assert (settings.metrics_host, settings.tls_ca_file is None) == ("0.0.0.0", False)
        return
    assert settings.host == "0.0.0.0"
    assert settings.tls_cert_file is not None
    # People and devices come to the gateway, with keys and tokens.
    assert (settings.tls_client_ca_file is None) == (name == "gateway")


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_service_signs_as_itself_and_knows_whom_to_believe(name: str, made: Path) -> None:
    settings = OURS[name].settings()
    assert str(settings.identity_key_file) == "/run/isthmus/identity.key"
    assert str(settings.identity_trust_dir) == "/run/isthmus/trust"
    assert secrets_of(OURS[name], made).name == OURS[name].prefix
    believed = {path.stem for path in (secrets_of(OURS[name], made) / "trust").iterdir()}
    assert believed == set(topology.IDENTITIES)


@pytest.mark.parametrize("name", sorted(CONTAINERS))
def test_every_file_that_is_named_is_there(name: str, made: Path) -> None:
    container = CONTAINERS[name]
    for path in container.files():
        mount = max((each for each in container.mounts if f"{path}/".startswith(f"{each}/")), default=None)
        if path.startswith(("/usr/", "/dev/", "/keys")) or path == "/tmp":
            continue
        assert mount, f"{path} is on no mount, and the root is read-only"
        source = container.mounts[mount]
        if mount == "/run/isthmus":
            assert (secrets_of(container, made) / path.removeprefix("/run/isthmus").lstrip("/")).exists(), (
                path
            )
        elif source.startswith("."):
            assert (COMPOSE / source).exists(), source
        else:
            assert source in DOCUMENT["volumes"] or source == "tmpfs"
    for source in container.mounts.values():
        if source.startswith("."):
            text = (COMPOSE / source).read_text("utf-8") if (COMPOSE / source).is_file() else ""
            for path in re.findall(r"/run/isthmus/[\w./-]+", text):
                assert (secrets_of(container, made) / path.removeprefix("/run/isthmus/")).exists(), path


def test_every_volume_is_declared_and_used() -> None:
    used = [
        source
        for each in CONTAINERS.values()
        for source in each.mounts.values()
        if not source.startswith(".")
    ]
    assert set(used) - {"tmpfs"} == set(DOCUMENT["volumes"])
    # Whoever has somebody's keys is somebody.
    for volume in DOCUMENT["volumes"]:
        if volume.endswith("-keys") or volume == "authority":
            holders = [each.name for each in CONTAINERS.values() if volume in each.mounts.values()]
            expected = {"keys", volume.removesuffix("-keys")} - {"authority"}
            assert set(holders) - {"admin-key"} == expected


def test_only_the_gateway_can_be_reached_and_from_here_only() -> None:
    published = {name: each.raw.get("ports") for name, each in CONTAINERS.items() if each.raw.get("ports")}
    assert published == {"gateway": ["127.0.0.1:7400:7400", "127.0.0.1:7480:7480"]}
    assert DOCUMENT["networks"]["inside"] == {"internal": True}
    outside = [name for name, each in CONTAINERS.items() if "outside" in each.raw.get("networks", ())]
    assert outside == ["gateway"]


@pytest.mark.parametrize("name", sorted(CONTAINERS))
def test_a_container_can_do_little(name: str) -> None:
    raw = CONTAINERS[name].raw
    assert raw["read_only"] is True
    assert raw["cap_drop"] == ["ALL"]
    assert raw["security_opt"] == ["no-new-privileges:true"]
    assert set(raw["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert raw["logging"]["options"]["max-size"]
    if name in OURS:
        assert raw["user"] == f"{SERVICE_UID}:{SERVICE_UID}"
        assert "cap_add" not in raw
    if name not in ("keys", "admin-key"):
        assert raw["healthcheck"]["test"]
        assert raw["depends_on"]["keys"] == {"condition": "service_completed_successfully"}


def test_the_gateway_knows_every_service_behind_it() -> None:
    targets = dict(OURS["gateway"].settings().targets())
    behind = {name for name, process in STACK.items() if process.behind_the_door}
    assert targets == {name: f"{name}:{STACK[name].endpoints[0].port}" for name in behind}


def test_every_target_is_a_container_and_its_port() -> None:
    aliases = OURS["runner"].raw["networks"]["inside"]["aliases"]
    assert aliases == [OURS["runner"].prefix]  # what its certificate is for
    ports = {OURS[name].prefix: {str(e.port) for e in STACK[name].endpoints} for name in OURS}
    ports |= {"postgres": {"5432"}, "etcd": {str(topology.ETCD)}, "prometheus": {str(topology.PROMETHEUS)}}
    ports |= {
        "localhost": {str(topology.PROMETHEUS)},
        "0.0.0.0": {str(topology.PROMETHEUS), str(topology.ETCD)},
    }
    for container in (each for each in CONTAINERS.values() if each is not KEYS):
        for text in (*container.environment.values(), *container.command):
            for host, port in re.findall(r"(?<![\w.])([a-z][a-z.-]*|0\.0\.0\.0):(\d{4,5})\b", text):
                assert port in ports[host], text


def test_prometheus_asks_every_metrics_port() -> None:
    (job,) = document("prometheus/prometheus.yml")["scrape_configs"]
    asked = {each["labels"]["service"]: each["targets"] for each in job["static_configs"]}
    expected = {
        name: [f"{OURS[name].prefix}:{endpoint.port}"]
        for name, process in STACK.items()
        for endpoint in process.endpoints
        if endpoint.what == "metrics"
    }
    assert asked == expected | {"etcd": [f"etcd:{topology.ETCD}"]}


def test_the_databases_are_those_that_services_want() -> None:
    made = set(
        re.findall(r"CREATE DATABASE (\w+)", (COMPOSE / "postgres" / "databases.sql").read_text("utf-8"))
    )
    wanted = set()
    for container in CONTAINERS.values():
        for text in container.environment.values():
            for user, database in re.findall(r"postgresql\+psycopg://(\w+)@postgres:5432/(\w+)\?", text):
                assert user == database
                wanted.add(database)
    assert made == wanted

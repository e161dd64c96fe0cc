"""The Kubernetes manifests: what kustomize makes is valid, and agrees with the services and the stack."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.docker.keys import SERVICE_UID, make
from deploy.kubernetes.secrets import TRUST, holders, main, resources
from deploy.local import topology
from deploy.local.layout import ROOT, Layout, Options
from tests.unit.deploy.manifests.containers import COMPOSE, KUBERNETES, Container

OVERLAYS = ("development", "production")
STACK = {process.name: process for process in topology.services(Layout(Path("/home")), Options(), {})}
FOREIGN = ("monitoring.coreos.com", "cert-manager.io")
"""API groups of operators, whose schemas Kubernetes doesn't have."""
EXTERNAL = {"5432", "2379"}
"""PostgreSQL's and etcd's ports, where an overlay says they are."""


@cache
def objects(overlay: str) -> list[dict[str, Any]]:
    """Return what kustomize makes of an overlay; skips where neither kubectl nor kustomize is installed."""
    ours = Path(sys.executable).with_name("kubectl")
    for command in ([str(ours), "kustomize"], ["kubectl", "kustomize"], ["kustomize", "build"]):
        if shutil.which(command[0]):
            path = KUBERNETES / "overlays" / overlay
            done = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=100)
            assert done.returncode == 0, done.stderr
            return [each for each in yaml.safe_load_all(done.stdout) if each]
    pytest.skip("neither kubectl nor kustomize is installed")


def of_kind(overlay: str, *kinds: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in objects(overlay) if each["kind"] in kinds}


def workloads(overlay: str) -> dict[str, dict[str, Any]]:
    return of_kind(overlay, "Deployment", "StatefulSet")


def container(overlay: str, name: str) -> Container:
    """Return the container of one of our services, with the environment that it would get."""
    pod = workloads(overlay)[name]["spec"]["template"]["spec"]
    (raw,) = pod["containers"]
    environment: dict[str, str] = {}
    for source in raw["envFrom"]:
        environment |= of_kind(overlay, "ConfigMap")[source["configMapRef"]["name"]]["data"]
    for variable in raw.get("env", ()):
        fields = {"metadata.name": f"{name}-0", "status.podIP": "10.0.0.1"}
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            environment[variable["name"]] = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            environment[variable["name"]] = "postgresql+psycopg://user@host/database"
        else:
            environment[variable["name"]] = variable["value"]
    mounts = {mount["mountPath"]: mount["name"] for mount in raw["volumeMounts"]}
    probe = raw["readinessProbe"].get("exec", {}).get("command", ())
    return Container(name, raw["image"], tuple(raw["command"]), environment, mounts, tuple(probe), raw)


def volumes(overlay: str, name: str) -> dict[str, dict[str, Any]]:
    spec = workloads(overlay)[name]["spec"]
    found = {volume["name"]: volume for volume in spec["template"]["spec"]["volumes"]}
    claims = spec.get("volumeClaimTemplates", ())
    return found | {claim["metadata"]["name"]: {"persistentVolumeClaim": claim} for claim in claims}


services = pytest.mark.parametrize("name", sorted(STACK))
overlays = pytest.mark.parametrize("overlay", OVERLAYS)


@pytest.mark.parametrize(("overlay", "version"), [("development", "1.32"), ("production", "1.36")])
def test_every_object_is_valid(overlay: str, version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    foreign = set()
    for each in objects(overlay):
        if each["apiVersion"].startswith(FOREIGN):
            foreign.add(each["kind"])
            continue
        kubernetes_validate.validate(each, version, strict=True)
    assert foreign == ({"Certificate", "Issuer", "PodMonitor"} if overlay == "production" else set())


def test_a_misspelt_member_would_be_seen() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    broken = json.loads(json.dumps(workloads("development")["tunnel"]))
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        kubernetes_validate.validate(broken, "1.32", strict=True)


@overlays
def test_every_service_of_the_stack_is_there(overlay: str) -> None:
    assert set(workloads(overlay)) - {"etcd", "postgres"} == set(STACK)
    for name in STACK:
        assert container(overlay, name).command == ("python", *STACK[name].command[1:])


@overlays
@services
def test_a_service_takes_its_environment(overlay: str, name: str) -> None:
    one = container(overlay, name)
    prefix = f"ISTHMUS_{one.prefix.upper().replace('-', '_')}_"
    assert [each for each in one.environment if not each.startswith(prefix)] == []
    settings = one.settings()
    expected = {endpoint.port for endpoint in STACK[name].endpoints}
    assert {getattr(settings, each, -1) for each in ("port", "http_port", "metrics_port")} - {-1} == expected
    assert {port["containerPort"] for port in one.raw["ports"]} == expected
    service = of_kind(overlay, "Service")[name]["spec"]
    named = {port["name"]: port["containerPort"] for port in one.raw["ports"]}
    if name == "gateway":
        # What anybody may come to: its metrics ask for no certificate.
        named.pop("metrics")
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == named
    assert service["selector"]["app.kubernetes.io/name"] == name
    if name != "runner":
        assert settings.host == "0.0.0.0"
        assert (settings.tls_client_ca_file is None) == (name == "gateway")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the tool for Secrets makes, by name."""
    folder = tmp_path_factory.mktemp("keys")
    make(folder, holders(), own=False)
    return {each["metadata"]["name"]: each for each in json.loads(json.dumps(resources(folder, "isthmus")))}


@overlays
@services
def test_every_file_that_is_named_is_mounted(overlay: str, name: str, made: dict[str, Any]) -> None:
    one, known = container(overlay, name), volumes(overlay, name)
    pod = workloads(overlay)[name]["spec"]["template"]["spec"]
    assert {mount for each in pod["containers"] + pod["initContainers"] for mount in _mounted(each)} == set(
        known
    )
    assert known["identity"]["secret"]["secretName"] == f"{one.prefix}-identity"
    assert known["tls"]["secret"]["secretName"] == f"{one.prefix}-tls"
    assert set(made[f"{one.prefix}-identity"]["data"]) == {"identity.key"}
    assert set(made[TRUST]["data"]) == {f"{each}.pub" for each in topology.IDENTITIES}
    (identity,) = pod["initContainers"]
    for path in one.files():
        (mount,) = (each for each in one.mounts if f"{path}/".startswith(f"{each}/"))
        inside = path.removeprefix(mount).lstrip("/")
        match one.mounts[mount]:
            case "run":
                assert path == identity["command"][-1]
            case "tls" | "public-tls":
                assert inside in made[f"{one.prefix}-tls"]["data"]
            case "trust":
                assert not inside
            case "data":
                pass
            case other:
                pytest.fail(f"{path} is on {other}")


def _mounted(raw: dict[str, Any]) -> list[str]:
    return [mount["name"] for mount in raw["volumeMounts"]]


@overlays
def test_a_pod_can_do_little(overlay: str) -> None:
    for name, workload in workloads(overlay).items():
        pod = workload["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        if name in STACK:
            assert pod["securityContext"]["runAsUser"] == SERVICE_UID
            assert pod["serviceAccountName"] in of_kind(overlay, "ServiceAccount")
        for raw in (*pod["containers"], *pod.get("initContainers", ())):
            assert raw["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert set(raw["resources"]["requests"]) == set(raw["resources"]["limits"]) == {"cpu", "memory"}
        for raw in pod["containers"]:
            assert raw["readinessProbe"]
            assert raw["livenessProbe"]


@overlays
def test_whoever_has_several_replicas_keeps_one_through_a_drain(overlay: str) -> None:
    budgets = of_kind(overlay, "PodDisruptionBudget")
    several = {name for name, each in workloads("production").items() if each["spec"]["replicas"] > 1}
    assert set(budgets) == several == {"gateway", "engine"}
    for name, budget in budgets.items():
        labels = workloads(overlay)[name]["spec"]["template"]["metadata"]["labels"]
        assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()


@overlays
def test_policies_allow_every_call_that_is_configured_and_no_other(overlay: str) -> None:
    configured = set()
    for name in STACK:
        one = container(overlay, name)
        for key, text in one.environment.items():
            for host, port in re.findall(r"(?<![\w.])([a-z][a-z-]*):(\d{4,5})\b", text):
                if port not in EXTERNAL and not key.endswith("_ADVERTISED_ADDRESS"):
                    configured.add((name, host, port))
    ports = {
        name: {p["name"]: str(p["containerPort"]) for p in container(overlay, name).raw["ports"]}
        for name in STACK
    }
    entering, leaving = set(), set()
    for policy in of_kind(overlay, "NetworkPolicy").values():
        own = policy["spec"]["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/name")
        if own is None or own not in STACK:
            continue
        for rule in policy["spec"].get("ingress", ()):
            for peer in rule.get("from", ()):
                caller = peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"]
                entering |= {(caller, own, ports[own].get(p["port"], "")) for p in rule["ports"]}
        for rule in policy["spec"].get("egress", ()):
            for peer in rule.get("to", ()):
                callee = peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"]
                leaving |= {(own, callee, str(p["port"])) for p in rule["ports"]}
    assert entering - {("runner", "runner", "")} == configured
    assert leaving - {("runner", "runner", "20000")} == configured


def test_production_runs_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    images = {name: container("production", name).image for name in STACK}
    for name, image in images.items():
        kind = "isthmus-runner" if name == "runner" else "isthmus"
        assert image == f"example.invalid/{kind}:{version}"


def test_what_two_places_need_is_the_same_in_both() -> None:
    for name in ("pg_hba.conf", "databases.sql"):
        copy = KUBERNETES / "overlays" / "development" / name
        assert copy.read_text("utf-8") == (COMPOSE / "postgres" / name).read_text("utf-8")


def test_certificates_and_monitors_are_those_of_the_services() -> None:
    certificates = of_kind("production", "Certificate")
    names = {container("production", name).prefix for name in STACK}
    assert set(certificates) == {*names, "prometheus", "authority"}
    for name in names:
        spec = certificates[name]["spec"]
        assert spec["secretName"] == f"{name}-tls"
        # Clients ask for the Service's name, and the probe for the loopback.
        assert {name, "localhost"} <= set(spec["dnsNames"])
        assert spec["ipAddresses"] == ["127.0.0.1"]
    monitors = of_kind("production", "PodMonitor")
    assert set(monitors) == set(STACK)
    for name, monitor in monitors.items():
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["tlsConfig"]["serverName"] == container("production", name).prefix


def test_the_tool_prints_what_kubectl_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    assert main(["--keys", str(tmp_path / "keys")]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    for each in (items[0], items[-1], *(each for each in items if each["kind"] == "ConfigMap")):
        kubernetes_validate.validate(each, "1.32", strict=True)
    made = {each["metadata"]["name"] for each in items}
    wanted = {
        source.get("secretName") or source["name"]
        for workload in workloads("development").values()
        for volume in workload["spec"]["template"]["spec"]["volumes"]
        for kind in ("secret", "configMap")
        if (source := volume.get(kind))
    }
    assert wanted - made - set(of_kind("development", "ConfigMap")) == set()
    assert main(["--keys", str(tmp_path / "keys"), "--identity-only"]) == 0
    only = {each["metadata"]["name"] for each in json.loads(capsys.readouterr().out)["items"]}
    assert only == {TRUST, *(f"{name}-identity" for name in topology.IDENTITIES)}
    assert (tmp_path / "keys").stat().st_mode & 0o077 == 0

"""The processes of the local stack: ports, commands, settings, how each tells that it is healthy."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from deploy.local.errors import StackError
from deploy.local.layout import ROOT, Layout, Options

HOST = "127.0.0.1"
METRICS = 1000
"""A service's metrics are on its port plus this."""
GATEWAY, GATEWAY_HTTP, TUNNEL, DEPLOYER, PROMETHEUS, GRAFANA = 7400, 7480, 7405, 7410, 7490, 7491
SERVICES = ("deployer", "tunnel", "gateway")
MONITORING = ("prometheus", "grafana")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A port that a process listens on, and what for."""

    what: str
    port: int
    scheme: Literal["grpc", "grpcs", "http", "https"] = "grpc"

    @property
    def address(self) -> str:
        """Return what a client is given: host:port for gRPC, else a URL."""
        place = f"{HOST}:{self.port}"
        return place if self.scheme.startswith("grpc") else f"{self.scheme}://{place}"


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the stack.

    Attributes:
        name: also its name in every command, and of its log.
        command: program and arguments.
        environment: variables on top of the supervisor's own.
        endpoints: what it listens on; the first is the one to probe.
        probe: path of the HTTP health check, or "" for gRPC's health service.
        start_order: lower ones are started first.
        stop_s: seconds between SIGTERM and SIGKILL.
    """

    name: str
    command: tuple[str, ...]
    endpoints: tuple[Endpoint, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    probe: str = ""
    start_order: int = 10
    stop_s: int = 15


def shifted(port: int, options: Options) -> int:
    """Return a port of the stack moved by its offset.

    Raises:
        StackError: the offset moves it out of range.
    """
    moved = port + options.port_offset
    if not 1024 <= moved <= 65535:
        raise StackError(
            f"--port-offset {options.port_offset} moves port {port} to {moved}; "
            f"ports go from 1024 to 65535, so the offset from -6376 to {65535 - METRICS - DEPLOYER}"
        )
    return moved


def _service(
    name: str,
    module: tuple[str, ...],
    port: int,
    layout: Layout,
    options: Options,
    environ: Mapping[str, str],
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command of a service, and the settings that every service has."""
    prefix = f"ISTHMUS_{name.upper()}_"
    settings = {
        "HOST": HOST,
        "PORT": str(shifted(port, options)),
        "METRICS_PORT": str(shifted(port + METRICS, options)),
        "IDENTITY_KEY_FILE": str(layout.identity_dir / f"{name}.key"),
        "IDENTITY_TRUST_DIR": str(layout.trust_dir),
    }
    # What the caller set for a service (its log level, a limit) reaches it; what the stack decides wins.
    mine = {key: value for key, value in environ.items() if key.startswith(prefix)}
    mine |= {prefix + key: value for key, value in settings.items()}
    return (sys.executable, "-m", *module), mine


def database_url(layout: Layout, name: str) -> str:
    """Return the URL of a service's SQLite database."""
    return f"sqlite:///{layout.data_dir(name) / f'{name}.db'}"


def services(layout: Layout, options: Options, environ: Mapping[str, str]) -> list[Process]:
    """Return the services of the stack."""

    def local(port: int) -> str:
        return f"{HOST}:{shifted(port, options)}"

    deployer_command, deployer = _service(
        "deployer", ("services.deployer",), DEPLOYER, layout, options, environ
    )
    deployer |= {
        "ISTHMUS_DEPLOYER_DATABASE_URL": database_url(layout, "deployer"),
        "ISTHMUS_DEPLOYER_DATA_DIR": str(layout.data_dir("deployer") / "blobs"),
        "ISTHMUS_DEPLOYER_SIGNING_KEY_FILE": str(layout.data_dir("deployer") / "signing.key"),
    }
    tunnel_command, tunnel = _service(
        "tunnel", ("services.gateway", "--role", "tunnel"), TUNNEL, layout, options, environ
    )
    tunnel |= {"ISTHMUS_TUNNEL_DATA_DIR": str(layout.data_dir("tunnel"))}
    gateway_command, gateway = _service("gateway", ("services.gateway",), GATEWAY, layout, options, environ)
    gateway |= {
        "ISTHMUS_GATEWAY_HTTP_PORT": str(shifted(GATEWAY_HTTP, options)),
        "ISTHMUS_GATEWAY_DATABASE_URL": database_url(layout, "gateway"),
        "ISTHMUS_GATEWAY_UPSTREAMS": f"deployer={local(DEPLOYER)},tunnel={local(TUNNEL)}",
    }
    if options.tls:
        gateway |= {
            "ISTHMUS_GATEWAY_TLS_CERT_FILE": str(layout.tls_dir / "gateway.pem"),
            "ISTHMUS_GATEWAY_TLS_KEY_FILE": str(layout.tls_dir / "gateway.key"),
        }

    def metrics(port: int) -> Endpoint:
        return Endpoint("metrics", shifted(port + METRICS, options), "http")

    return [
        Process(
            "deployer",
            deployer_command,
            (Endpoint("tasks, releases, devices", shifted(DEPLOYER, options)), metrics(DEPLOYER)),
            deployer,
        ),
        Process(
            "tunnel",
            tunnel_command,
            (Endpoint("the devices' frames", shifted(TUNNEL, options)), metrics(TUNNEL)),
            tunnel,
        ),
        Process(
            "gateway",
            gateway_command,
            (
                Endpoint(
                    "the door: every service", shifted(GATEWAY, options), "grpcs" if options.tls else "grpc"
                ),
                Endpoint(
                    "blobs over HTTP", shifted(GATEWAY_HTTP, options), "https" if options.tls else "http"
                ),
                metrics(GATEWAY),
            ),
            gateway,
            start_order=20,
        ),
    ]


def prometheus(binary: Path, layout: Layout, options: Options, digest: str) -> Process:
    """Return the process of Prometheus; ``digest`` is that of its configuration, a new one restarts it."""
    data = layout.data_dir("prometheus")
    port = shifted(PROMETHEUS, options)
    command: tuple[str, ...] = (
        str(binary),
        f"--config.file={data / 'prometheus.yml'}",
        f"--storage.tsdb.path={data / 'data'}",
        "--storage.tsdb.retention.time=7d",
        f"--web.listen-address={HOST}:{port}",
        "--log.level=warn",
    )
    # Debian's build looks for its pages in /usr/share, where a copy that was fetched hasn't put them.
    pages = binary.parent.parent / "share" / "prometheus" / "web"
    if pages.is_dir():
        command += (f"--web.local-assets={pages}/",)
    return Process(
        "prometheus",
        command,
        (Endpoint("metrics of all, alerts", port, "http"),),
        {"ISTHMUS_CONFIG_DIGEST": digest},
        probe="/-/ready",
        start_order=30,
    )


def grafana(binary: Path, layout: Layout, options: Options, digest: str) -> Process:
    """Return the process of Grafana, provisioned from ``deploy/grafana``."""
    data = layout.data_dir("grafana")
    port = shifted(GRAFANA, options)
    server = (str(binary),) if binary.name == "grafana-server" else (str(binary), "server")
    homes = [Path("/usr/share/grafana"), binary.resolve().parent.parent]
    home = next((path for path in homes if (path / "conf" / "defaults.ini").exists()), homes[-1])
    environment = {
        "GF_SERVER_HTTP_ADDR": HOST,
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_PATHS_DATA": str(data),
        "GF_PATHS_LOGS": str(data / "log"),
        "GF_PATHS_PLUGINS": str(data / "plugins"),
        "GF_PATHS_PROVISIONING": str(ROOT / "deploy" / "grafana" / "provisioning"),
        # Whoever is on this machine may look; it listens on the loopback only.
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
        "ISTHMUS_PROMETHEUS_URL": f"http://{HOST}:{shifted(PROMETHEUS, options)}",
        "ISTHMUS_DASHBOARDS": str(ROOT / "deploy" / "grafana" / "dashboards"),
        "ISTHMUS_CONFIG_DIGEST": digest,
    }
    return Process(
        "grafana",
        (*server, "--homepath", str(home)),
        (Endpoint("dashboards", port, "http"),),
        environment,
        probe="/api/health",
        start_order=40,
    )

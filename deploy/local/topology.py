"""The processes of the local stack: ports, commands, settings, how each tells that it is healthy."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from deploy.local.errors import StackError
from deploy.local.layout import ROOT, Layout, Options

HOST = "127.0.0.1"
METRICS = 1000
"""A service's metrics are on its port plus this."""
GATEWAY, GATEWAY_HTTP, TUNNEL, DEPLOYER, ENGINE, SCHEDULER = 7400, 7480, 7405, 7410, 7420, 7430
TUNER, SERVING, SIMULATOR = 7440, 7450, 7460
RUNNER = 7431
"""It listens on its metrics port only."""
GANGS = (7461, 7477)
"""First and last of the ports that workers of one job meet on. A stack moved by hundreds never needs them."""
ETCD, ETCD_PEERS, PROMETHEUS, GRAFANA = 7379, 7378, 7490, 7491
IDENTITIES = (
    "deployer",
    "tunnel",
    "engine",
    "scheduler",
    "scheduler-runner",
    "serving",
    "tuner",
    "simulator",
    "gateway",
)
"""Whoever signs for itself to the others."""
OPTIONAL = ("engine", "scheduler", "runner", "serving", "tuner", "simulator", "prometheus", "grafana")
"""What can be left out; the scheduler takes its etcd and its runner along, serving the tuner."""
_ALONG = {"scheduler": ("runner",), "serving": ("tuner",)}
NODE = "local"
"""The node that the stack's runner is."""


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
        node: the node that it serves as, of a runner: that and the scheduler say whether it is there.
        behind_the_door: whether the gateway passes calls on to it.
        start_order: lower ones are started first.
        stop_s: seconds between SIGTERM and SIGKILL.
    """

    name: str
    command: tuple[str, ...]
    endpoints: tuple[Endpoint, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    probe: str = ""
    node: str = ""
    behind_the_door: bool = False
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
            "ports go from 1024 to 65535, so the offset from "
            f"{1024 - ETCD_PEERS} to {65535 - METRICS - SIMULATOR}"
        )
    return moved


def _settings(
    name: str,
    layout: Layout,
    environ: Mapping[str, str],
    **settings: object,
) -> dict[str, str]:
    """Return a service's environment: what the caller set for it, and what the stack decides, which wins."""
    prefix = _prefix(name)
    longer = tuple(
        _prefix(other) for other in IDENTITIES if _prefix(other).startswith(prefix) and other != name
    )
    mine = {
        key: value
        for key, value in environ.items()
        if key.startswith(prefix) and not (longer and key.startswith(longer))
    }
    decided = {
        "IDENTITY_KEY_FILE": layout.identity_dir / f"{name}.key",
        "IDENTITY_TRUST_DIR": layout.trust_dir,
        **settings,
    }
    return mine | {prefix + key: str(value) for key, value in decided.items()}


def _prefix(name: str) -> str:
    return f"ISTHMUS_{name.upper().replace('-', '_')}_"


def _listening(port: int, options: Options) -> dict[str, object]:
    """Return the settings of whoever listens."""
    traced = {"OTLP_ENDPOINT": options.otlp_endpoint} if options.otlp_endpoint else {}
    return {
        "HOST": HOST,
        "PORT": shifted(port, options),
        "METRICS_PORT": shifted(port + METRICS, options),
        **traced,
    }


def database_url(layout: Layout, name: str) -> str:
    """Return the URL of a service's SQLite database."""
    return f"sqlite:///{layout.data_dir(name) / f'{name}.db'}"


def services(layout: Layout, options: Options, environ: Mapping[str, str]) -> list[Process]:
    """Return the services of the stack, as far as they aren't left out."""

    def local(port: int) -> str:
        return f"{HOST}:{shifted(port, options)}"

    def endpoints(what: str, port: int) -> tuple[Endpoint, ...]:
        metrics = Endpoint("metrics", shifted(port + METRICS, options), "http")
        return Endpoint(what, shifted(port, options)), metrics

    def service(
        name: str, what: str, port: int, *arguments: str, behind_the_door: bool = True, **settings: object
    ) -> Process:
        return Process(
            name,
            (sys.executable, "-m", *arguments),
            endpoints(what, port),
            _settings(name, layout, environ, **_listening(port, options), **settings),
            behind_the_door=behind_the_door,
        )

    deployer = layout.data_dir("deployer")
    found = [
        service(
            "deployer",
            "tasks, releases, devices",
            DEPLOYER,
            "services.deployer",
            DATABASE_URL=database_url(layout, "deployer"),
            DATA_DIR=deployer / "blobs",
            SIGNING_KEY_FILE=deployer / "signing.key",
            # Empty: versions are published untried.
            SIMULATOR_TARGET="" if "simulator" in options.without else local(SIMULATOR),
        ),
        service(
            "tunnel",
            "the devices' frames",
            TUNNEL,
            *("services.gateway", "--role", "tunnel"),
            DATA_DIR=layout.data_dir("tunnel"),
            # Empty: what scripts ask is answered with NO_SERVING.
            SERVING_TARGET="" if "serving" in options.without else local(SERVING),
        ),
        service(
            "engine",
            "plans of models",
            ENGINE,
            "services.engine",
            DATA_DIR=layout.data_dir("engine"),
            DEPLOYER_TARGET=local(DEPLOYER),
        ),
        service(
            "scheduler",
            "jobs, queues, nodes",
            SCHEDULER,
            "services.scheduler",
            DATA_DIR=layout.data_dir("scheduler"),
            ETCD_ENDPOINTS=local(ETCD),
            DEPLOYER_TARGET=local(DEPLOYER),
        ),
        Process(
            "runner",
            (sys.executable, "-m", "services.scheduler", "--role", "runner"),
            (Endpoint("metrics", shifted(RUNNER + METRICS, options), "http"),),
            _settings(
                "scheduler-runner",
                layout,
                environ,
                NODE=NODE,
                METRICS_PORT=shifted(RUNNER + METRICS, options),
                FIRST_PORT=shifted(GANGS[0], options),
                LAST_PORT=shifted(GANGS[1], options),
                STATE_DIR=layout.data_dir("runner"),
                SCHEDULER_TARGET=local(SCHEDULER),
                DEPLOYER_TARGET=local(DEPLOYER),
            ),
            node=NODE,
            start_order=15,
        ),
        service(
            "serving",
            "models' endpoints",
            SERVING,
            "services.serving",
            DATA_DIR=layout.data_dir("serving"),
            DEPLOYER_TARGET=local(DEPLOYER),
        ),
        service(
            "tuner",
            "experiments with their configurations",
            TUNER,
            "services.tuner",
            DATA_DIR=layout.data_dir("tuner"),
            DATABASE_URL=database_url(layout, "tuner"),
            SERVING_TARGET=local(SERVING),
            DEPLOYER_TARGET=local(DEPLOYER),
        ),
        service(
            "simulator",
            "versions tried over recorded events",
            SIMULATOR,
            *("services.device_agent", "--role", "simulator"),
            # The deployer alone calls it.
            behind_the_door=False,
            DATA_DIR=layout.data_dir("simulator"),
            DEPLOYER_TARGET=local(DEPLOYER),
        ),
    ]
    left_out = {*options.without, *(along for name in options.without for along in _ALONG.get(name, ()))}
    found = [process for process in found if process.name not in left_out]
    return [*found, _gateway(layout, options, environ, [each for each in found if each.behind_the_door])]


def _gateway(
    layout: Layout, options: Options, environ: Mapping[str, str], upstreams: Sequence[Process]
) -> Process:
    """Return the process of the gateway, before these."""
    settings = _listening(GATEWAY, options) | {
        "HTTP_PORT": shifted(GATEWAY_HTTP, options),
        "DATABASE_URL": database_url(layout, "gateway"),
        "UPSTREAMS": ",".join(f"{each.name}={each.endpoints[0].address}" for each in upstreams),
    }
    if options.tls:
        settings |= {
            "TLS_CERT_FILE": layout.tls_dir / "gateway.pem",
            "TLS_KEY_FILE": layout.tls_dir / "gateway.key",
        }
    return Process(
        "gateway",
        (sys.executable, "-m", "services.gateway"),
        (
            Endpoint(
                "the door: every service", shifted(GATEWAY, options), "grpcs" if options.tls else "grpc"
            ),
            Endpoint("blobs over HTTP", shifted(GATEWAY_HTTP, options), "https" if options.tls else "http"),
            Endpoint("metrics", shifted(GATEWAY + METRICS, options), "http"),
        ),
        _settings("gateway", layout, environ, **settings),
        start_order=20,
    )


def etcd(binary: Path, layout: Layout, options: Options) -> Process:
    """Return the process of etcd, a cluster of one, for the scheduler's objects."""
    clients, peers, metrics = (
        Endpoint(what, shifted(port, options), "http")
        for what, port in (
            ("the scheduler's objects", ETCD),
            ("its peers", ETCD_PEERS),
            ("metrics", ETCD + METRICS),
        )
    )
    return Process(
        "etcd",
        (
            str(binary),
            *("--name", "local", "--data-dir", str(layout.data_dir("etcd") / "member.etcd")),
            *("--listen-client-urls", clients.address, "--advertise-client-urls", clients.address),
            *("--listen-peer-urls", peers.address, "--initial-advertise-peer-urls", peers.address),
            *("--initial-cluster", f"local={peers.address}", "--listen-metrics-urls", metrics.address),
            # Watches that fall further behind list again; without a bound the history would fill the disk.
            *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h"),
            *("--logger", "zap"),
        ),
        (clients, peers, metrics),
        probe="/health",
        start_order=5,
    )


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
